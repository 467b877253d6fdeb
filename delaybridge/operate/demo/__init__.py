"""`delaybridge demo`: the whole bridge on one screen, one of its workers killed, and a verdict.

With `--serve` the load has no end, and the console shows it (`showcase.py`).

Runs a private Redis unless one is given, two `delaybridge scan` processes, and a consumer that
imports only its client library. However the demo ends, no process and no queue or topic is left
behind.
"""

from __future__ import annotations

import json
import signal
from collections.abc import Callable
from contextlib import ExitStack, suppress

from delaybridge import __version__
from delaybridge.client import Client
from delaybridge.operate.demo.brokers import target
from delaybridge.operate.demo.play import Plan, Play
from delaybridge.operate.demo.processes import Failed, Process, environment, python, settings_of
from delaybridge.operate.demo.result import RunResult
from delaybridge.operate.demo.screen import Screen
from delaybridge.operate.demo.showcase import (
    KINDS,
    Showcase,
    free_port,
    open_in_browser,
    until_serving,
)
from delaybridge.operate.demo.stores import place_at
from delaybridge.operate.terminal.interrupts import interrupts

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


def run(plan: Plan, *, color: bool = False) -> int:
    """Run the demo; 0 if the verdict is PASS, else 1.

    color: whether to colour if stdout is a terminal. ConfigError, StoreError, PublishUnavailable:
    the demo cannot start. Unless it serves, Ctrl-C raises.
    """
    ends = signal.SIGINT, signal.SIGTERM, signal.SIGHUP
    with interrupts(*ends) as check, ExitStack() as stack:
        screen = Screen(color=color)
        screen.line(f"{f'delaybridge {__version__} demo':<61}(Ctrl-C to stop)", bold=True)
        try:
            site = _Site(stack, screen, plan)
            faults = site.show(check) if plan.serve else site.play(check)
        except Failed as failure:
            faults = [str(failure)]
        if faults:
            screen.line(f"FAIL: {'; '.join(faults)}", bold=True, fg="red")
        else:
            screen.line("PASS", bold=True, fg="green")
        return 1 if faults else 0


class _Site:
    """Broker, store and processes, which both kinds of demo need; they end with the stack."""

    def __init__(self, stack: ExitStack, screen: Screen, plan: Plan) -> None:
        """Open broker and store, and show them."""
        self.stack, self.screen, self.plan = stack, screen, plan
        parts = [*KINDS] if plan.serve else []
        self.place = place = stack.enter_context(target(plan.broker, parts))
        self.stored = stored = stack.enter_context(place_at(plan.redis))
        for line in f"store     {stored.about}\nbroker    {place.about}".splitlines():
            screen.line(line)
        kind, end = ("queue" if place.kind == "rabbitmq" else "topic"), ", deleted at the end"
        screen.line(f"          {kind} {', '.join(place.names)}{'' if place.is_stand_in else end}")
        self.settings = environment(
            **_SETTINGS,
            NAMESPACE=stored.namespace,
            REDIS_URL=stored.url,
            REDIS__TIMEOUT_S=0.5,
            **{f"BROKERS__{place.kind.upper()}": place.url},
        )

    def play(self, check: Callable[[], None]) -> list[str]:
        """The run with a verdict; its faults."""
        workers = [self._worker(name) for name in _WORKERS]
        consumer, client = self._consumer(), self._client()
        pids = "  ".join(f"{worker.name} (pid {worker.pid})" for worker in workers)
        self.screen.line(f"workers   {pids}  {_SETTINGS['BUCKETS']} buckets, lease 1 s")
        library = _LIBRARIES[self.place.kind]
        self.screen.line(f"consumer  pid {consumer.pid}, imports only {library}, not delaybridge")
        for line in self.plan.lines():
            self.screen.line(line)
        play = Play(self.plan, self.screen, client, self.place, workers, consumer, self._worker)
        result = RunResult(play.run(check))
        self.screen.line()
        for line in result.lines():
            self.screen.line(line)
        if self.place.is_stand_in:
            self.screen.line("(of librdkafka's mock, a stand-in; with a real broker: --broker URL)")
        return result.faults()

    def show(self, check: Callable[[], None]) -> list[str]:
        """The load without end; its faults."""
        port = free_port(self.plan.port)
        # Longer than in the other demo, so that a takeover can be watched.
        self.settings |= settings_of(LEASE__TTL_MS=3000, LEASE__RENEW_MS=1000, REDIS__TIMEOUT_S=1.8)
        command = python("-m", "delaybridge", "--json", "serve", "--port", str(port))
        serving = self.stack.enter_context(Process("serve", command, self.settings))
        until_serving(serving)
        consumer = self._consumer()
        show = Showcase(self.screen, self._client(), self.place, self._worker)
        show.kills = self.plan.kill
        with suppress(KeyboardInterrupt):  # from the first invitation on, Ctrl-C is how it ends
            self._invite(port)
            show.run(consumer, serving, check)
        return show.verdict(consumer)

    def _invite(self, port: int) -> None:
        self.screen.line(f"console   http://127.0.0.1:{port}/", bold=True)
        if self.plan.browser:
            open_in_browser(f"http://127.0.0.1:{port}/")
        killed = "; a worker is killed every minute" if self.plan.kill else ""
        self.screen.line(f"plan      60 messages a second{killed};")
        self.screen.line("          every 20 s one that cannot be delivered, for the page Dead")

    def _worker(self, name: str) -> Process:
        scan = python("-m", "delaybridge", "--json", "scan", "--name", name)
        return self.stack.enter_context(Process(name, scan, self.settings))

    def _consumer(self) -> Process:
        source = {"SOURCE": json.dumps(self.place.consume)}
        process = Process("consumer", python(str(self.plan.consumer)), environment() | source)
        return self.stack.enter_context(process)

    def _client(self) -> Client:
        client = Client(
            self.stored.url,
            namespace=self.stored.namespace,
            brokers={self.place.kind: self.place.url},
            buckets=_SETTINGS["BUCKETS"],
            timeout_s=20.0,
        )
        return self.stack.enter_context(client)
