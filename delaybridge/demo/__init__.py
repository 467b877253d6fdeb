"""`delaybridge demo`: the whole bridge on one screen, one of its workers killed, and a verdict.

Runs a private Redis, two `delaybridge scan` processes, and a consumer that imports only its client
library. However it ends, every process is ended and every queue or topic removed.
"""

from __future__ import annotations

import json
import signal
import sys
from contextlib import ExitStack

from delaybridge import __version__
from delaybridge.client import Client
from delaybridge.demo.brokers import Target, target
from delaybridge.demo.observer import Failed
from delaybridge.demo.play import Plan, Play
from delaybridge.demo.servers import Child, environment, private_redis, python
from delaybridge.demo.show import Screen, verdict_lines
from delaybridge.demo.verdict import POISON, Verdict, judge
from delaybridge.worker.interrupts import interrupts

_NAMESPACE = "demo"
_WORKERS = ("w1", "w2")
_TIMEOUT_S = 5.0
# The workers' settings that differ from the defaults, as environment variables.
_SETTINGS = {
    "BUCKETS": 8,
    "LEASE__TTL_MS": 1000,
    "LEASE__RENEW_MS": 300,
    "RETRY__MAX_ATTEMPTS": 3,
    "RETRY__BASE_MS": 400,
    "RETRY__MAX_MS": 1000,
}


def run(
    *,
    broker: str | None = None,
    messages: int = 300,
    seconds: int = 10,
    kill: bool = True,
    color: bool = True,
) -> int:
    """Run the demo; 0 if the verdict is PASS, else 1.

    broker: an amqp:// or kafka:// URL; None for a stand-in for Kafka. kill: whether a worker gets a
    SIGKILL. ConfigError, PublishUnavailable: the demo cannot start. Ctrl-C raises.
    """
    return perform(Plan(messages=messages, seconds=seconds, kill=kill), broker, color=color)


def perform(plan: Plan, broker: str | None, *, color: bool = False) -> int:
    """As `run`, for any plan."""
    ends = signal.SIGINT, signal.SIGTERM, signal.SIGHUP
    with interrupts(*ends) as check, ExitStack() as stack:
        screen = stack.enter_context(Screen(sys.stdout, color=color))
        screen.line(f"{f'delaybridge {__version__} demo':<61}(Ctrl-C to stop)", bold=True)
        try:
            place, play = _set_up(stack, screen, plan, broker)
            faults = _show_verdict(screen, judge(play.run(check)), place)
        except Failed as failure:
            faults = [str(failure)]
        screen.footer(())
        if faults:
            screen.line(f"FAIL: {'; '.join(faults)}", color="red", bold=True)
            return 1
        screen.line("PASS", color="green", bold=True)
        return 0


def _show_verdict(screen: Screen, verdict: Verdict, place: Target) -> list[str]:
    """Show the verdict's figures; returns its faults."""
    screen.footer(())
    screen.line()
    for line in verdict_lines(verdict):
        screen.line(line)
    if place.stand_in:
        screen.line("(lateness of librdkafka's mock, a stand-in; with a real broker: --broker URL)")
    return verdict.faults()


def _set_up(
    stack: ExitStack, screen: Screen, plan: Plan, broker: str | None
) -> tuple[Target, Play]:
    """Start everything and show what was started; it ends with the stack."""
    place = stack.enter_context(target(broker))
    store = stack.enter_context(private_redis())
    screen.line(f"store     {store.about}  {store.url}  nothing on disk")
    screen.line(f"broker    {place.about}")
    screen.line(f"          {place.own}")
    settings = environment(
        **_SETTINGS,
        NAMESPACE=_NAMESPACE,
        REDIS_URL=store.url,
        REDIS__TIMEOUT_S=0.5,
        **{f"BROKERS__{place.kind.upper()}": place.url},
    )
    workers = []
    for name in _WORKERS:
        command = python("-m", "delaybridge", "--json", "scan", "--name", name)
        workers.append(stack.enter_context(Child(name, command, settings)))
    consumer = stack.enter_context(
        Child(
            "consumer",
            python(str(plan.consumer)),
            environment(),
            stdin=json.dumps(place.consume) + "\n",
        )
    )
    brokers = {place.kind: place.url}
    client = stack.enter_context(
        Client(
            store.url,
            namespace=_NAMESPACE,
            brokers=brokers,
            buckets=_SETTINGS["BUCKETS"],
            timeout_s=_TIMEOUT_S,
        )
    )
    for line in _cast_lines(plan, workers, consumer, place):
        screen.line(line)
    return place, Play(plan, screen, client, place, workers, consumer)


def _cast_lines(plan: Plan, workers: list[Child], consumer: Child, place: Target) -> list[str]:
    """The processes and the plan, for people."""
    pids = "  ".join(f"{worker.name} (pid {worker.pid})" for worker in workers)
    library = {"kafka": "confluent_kafka", "rabbitmq": "pika"}[place.kind]
    buckets, lease_s = _SETTINGS["BUCKETS"], _SETTINGS["LEASE__TTL_MS"] // 1000
    lines = [
        f"workers   {pids}  {buckets} buckets, lease {lease_s} s",
        f"consumer  pid {consumer.pid}, imports only {library}, not delaybridge",
        f"plan      {plan.messages:,} messages within {plan.seconds} s, "
        f"one of them undeliverable ({POISON});",
        f"          {plan.cancelled} cancelled, {plan.rescheduled} rescheduled",
    ]
    if plan.kill:
        lines[-1] += f"; at {plan.kill_at_s:g} s a worker is killed"
    return lines
