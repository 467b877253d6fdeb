"""`delaybridge demo`: the whole bridge on one screen, one of its workers killed, and a verdict.

Runs a private Redis unless one is given, two `delaybridge scan` processes, and a consumer that
imports only its client library. However the demo ends, no process and no queue or topic is left
behind.
"""

from __future__ import annotations

import json
import signal
from contextlib import ExitStack

from delaybridge import __version__
from delaybridge.client import Client
from delaybridge.demo.brokers import Target, target
from delaybridge.demo.observer import Failed, Observer
from delaybridge.demo.play import Plan, Play
from delaybridge.demo.result import POISON, RunResult
from delaybridge.demo.screen import Screen
from delaybridge.demo.servers import Process, environment, python
from delaybridge.demo.stores import place_at
from delaybridge.worker.interrupts import interrupts

__all__ = ["Plan", "run"]

_WORKERS = ("w1", "w2")
_LIBRARIES = {"kafka": "confluent_kafka", "rabbitmq": "pika"}
# The workers' settings that differ from the defaults, as environment variables.
_SETTINGS = {
    "BUCKETS": 8,
    "LEASE__TTL_MS": 1000,
    "LEASE__RENEW_MS": 300,
    "RETRY__MAX_ATTEMPTS": 3,
    "RETRY__BASE_MS": 400,
    "RETRY__MAX_MS": 1000,
}


def run(plan: Plan, broker: str | None, redis: str | None = None, *, color: bool = False) -> int:
    """Run the demo; 0 if the verdict is PASS, else 1.

    broker: an amqp:// or kafka:// URL; None for a stand-in for Kafka. redis: the URL of a store;
    None for a private one. color: whether to colour if stdout is a terminal. ConfigError,
    StoreError, PublishUnavailable: the demo cannot start. Ctrl-C raises.
    """
    ends = signal.SIGINT, signal.SIGTERM, signal.SIGHUP
    with interrupts(*ends) as check, ExitStack() as stack:
        screen = stack.enter_context(Screen(color=color))
        screen.line(f"{f'delaybridge {__version__} demo':<61}(Ctrl-C to stop)", style="bold")
        try:
            place, play = _set_up(stack, screen, plan, broker, redis)
            result = RunResult(play.run(check))
            screen.results(result, is_stand_in=place.is_stand_in)
            faults = result.faults()
        except Failed as failure:
            faults = [str(failure)]
        screen.show_live()
        if faults:
            screen.line(f"FAIL: {'; '.join(faults)}", style="bold red")
        else:
            screen.line("PASS", style="bold green")
        return 1 if faults else 0


def _set_up(
    stack: ExitStack, screen: Screen, plan: Plan, broker: str | None, redis: str | None
) -> tuple[Target, Play]:
    """Start everything and show it; it ends with the stack."""
    place = stack.enter_context(target(broker))
    stored = stack.enter_context(place_at(redis))
    for line in f"store     {stored.about}".splitlines():
        screen.line(line)
    screen.line(f"broker    {place.about}")
    kind, end = ("queue" if place.kind == "rabbitmq" else "topic"), ", deleted at the end"
    screen.line(f"          {kind} {place.name}{'' if place.is_stand_in else end}")
    settings = environment(
        **_SETTINGS,
        NAMESPACE=stored.namespace,
        REDIS_URL=stored.url,
        REDIS__TIMEOUT_S=0.5,
        **{f"BROKERS__{place.kind.upper()}": place.url},
    )
    scan = python("-m", "delaybridge", "--json", "scan", "--name")
    workers = [stack.enter_context(Process(n, [*scan, n], settings)) for n in _WORKERS]
    source = {"SOURCE": json.dumps(place.consume)}
    consumer = Process("consumer", python(str(plan.consumer)), environment() | source)
    stack.enter_context(consumer)
    brokers, buckets = {place.kind: place.url}, _SETTINGS["BUCKETS"]
    url, namespace = stored.url, stored.namespace
    client = Client(url, namespace=namespace, brokers=brokers, buckets=buckets, timeout_s=5.0)
    stack.enter_context(client)
    _introduce(screen, plan, workers, consumer, _LIBRARIES[place.kind])
    observer = Observer(screen, client, workers, consumer, bin_ms=plan.seconds * 100)
    return place, Play(plan, observer, client, place)


def _introduce(
    screen: Screen, plan: Plan, workers: list[Process], consumer: Process, library: str
) -> None:
    """Show the processes and the plan."""
    pids = "  ".join(f"{worker.name} (pid {worker.pid})" for worker in workers)
    lease_s = _SETTINGS["LEASE__TTL_MS"] // 1000
    screen.line(f"workers   {pids}  {_SETTINGS['BUCKETS']} buckets, lease {lease_s} s")
    screen.line(f"consumer  pid {consumer.pid}, imports only {library}, not delaybridge")
    screen.line(
        f"plan      {plan.messages:,} messages within {plan.seconds} s, "
        f"one of them undeliverable ({POISON});"
    )
    kill = f"; at {plan.kill_at_s:g} s a worker is killed" if plan.kill else ""
    screen.line(f"          {plan.cancelled} cancelled, {plan.rescheduled} rescheduled{kill}")
