"""The producer of a cell: schedules, cancels and reschedules, and writes down what it was told.

One line of JSON for each step of a call: before it is made (`invoke`), and when it is answered
(`ok`), refused (`fail`) or of unknown outcome (`info`).

python -m tests.chaos.load OPTIONS-AS-JSON
"""

from __future__ import annotations

import hashlib
import heapq
import json
import random
import sys
import time
from dataclasses import asdict, dataclass, field
from typing import Any

from delaybridge import Client, Message
from delaybridge.errors import DelayBridgeError
from delaybridge.message import new_id

TICK_S = 0.05


@dataclass
class Load:
    """What to send. destinations: each message goes to one of them at random."""

    redis_url: str
    namespace: str
    brokers: dict[str, str]
    destinations: list[str]
    history: str
    seconds: float = 8.0
    rate: float = 150.0  # messages a second
    first_s: float = 0.0  # the shortest delay
    delay_s: float = 4.0  # the longest
    cancels: float = 0.15  # of the messages
    reschedules: float = 0.15
    gets: float = 0.0
    keys: int = 0  # of half of the messages: later ones of a key are due later
    once: float = 0.05  # at most once
    large: float = 0.01  # bodies of 64 KiB
    body: str = ""  # of all messages, if not at random
    timeout_s: float = 2.0
    close_to_due: bool = False  # changes come just before the due time, or during a back-off
    seed: int = 7
    retry: dict[str, Any] | None = None
    wall_s: float = 0.0  # what to add to the monotonic clock, which nobody sets
    settings: dict[str, Any] = field(default_factory=dict)  # of the client

    def command(self) -> list[str]:
        """The command line that runs it."""
        return [sys.executable, "-m", "tests.chaos.load", json.dumps(asdict(self))]


class Producer:
    """Sends one load."""

    def __init__(self, load: Load) -> None:
        self._load, self._random = load, random.Random(load.seed)
        self._client = Client(
            load.redis_url,
            namespace=load.namespace,
            brokers=load.brokers,
            timeout_s=load.timeout_s,
            **load.settings,
        )
        self._file = open(load.history, "a", buffering=1)
        self._changes: list[tuple[float, int, str, str]] = []  # when, number, what, id
        self._keys: dict[str, str] = {}  # of messages that have one
        self._last_s: dict[str, float] = {}  # when the latest message of a key is due

    def run(self) -> None:
        """Send until the time is over, then make the changes that are left."""
        began_s, sent, load = time.monotonic(), 0, self._load
        while (passed_s := time.monotonic() - began_s) < load.seconds:
            count = min(int(passed_s * load.rate) - sent, 50)
            if count > 0:
                self._schedule(count)
                sent = max(sent + count, int((time.monotonic() - began_s) * load.rate) - 50)
            self._change()
            time.sleep(TICK_S)
        while self._changes:
            self._change()
            time.sleep(TICK_S)

    def _schedule(self, count: int) -> None:
        messages = [self._message() for _ in range(count)]
        for each in messages:
            self._write("schedule", "invoke", each.id or "", self._promised(each))
        try:
            receipts = self._client.schedule_many(messages)
        except DelayBridgeError as error:
            for each in messages:
                self._write("schedule", "info", each.id or "", {"why": repr(error)})
            return
        for receipt in receipts:
            self._write("schedule", "ok", receipt.id, {"due": receipt.due_ms, "say": receipt})
            self._plan(receipt.id, receipt.due_ms)

    def _message(self) -> Message:
        load, draw = self._load, self._random
        size = 65_536 if draw.random() < load.large else draw.choice((0, draw.randrange(500)))
        delay_s, id = load.first_s + draw.random() * load.delay_s, new_id()
        if load.keys and draw.random() < 0.5:
            self._keys[id] = key = f"k{load.seed}-{draw.randrange(load.keys)}"
            now_s = self._now_s()
            self._last_s[key] = max(now_s + delay_s, self._last_s.get(key, 0.0) + 0.02)
            delay_s = self._last_s[key] - now_s
        return Message(
            draw.choice(load.destinations),
            load.body.encode() or draw.randbytes(size),
            id=id,
            delay=delay_s,
            key=self._keys.get(id),
            headers={"x-mark": f"{draw.getrandbits(32):x}"},
            at_most_once=draw.random() < load.once,
            retry=load.retry,
        )

    def _promised(self, message: Message) -> dict[str, Any]:
        body: Any = message.body
        return {
            "to": message.destination,
            "sha": hashlib.sha1(body).hexdigest(),
            "mark": dict(message.headers)["x-mark"],  # type: ignore[arg-type]
            "once": message.at_most_once,
            "key": message.key,
            "least": int((self._now_s() + message.delay) * 1000),  # type: ignore[operator]
        }

    def _plan(self, id: str, due_ms: int) -> None:
        """Perhaps look for it, cancel or reschedule it later, before or shortly after it is due."""
        load, what = self._load, self._random.random()
        left_s = due_ms / 1000 - self._now_s()
        if load.gets and self._random.random() < load.gets:
            self._later(max(left_s, 0) * self._random.random(), "get", id)
        if what >= load.cancels + load.reschedules:
            return
        share = self._random.random() * 1.1
        if load.close_to_due:
            draw = self._random
            at_s = left_s + draw.choice((draw.uniform(-0.04, 0.01), draw.uniform(0.5, 3)))
        else:
            at_s = min(max(left_s, 0) * share, 6)
        verb = "cancel" if what < load.cancels or id in self._keys else "reschedule"
        self._later(at_s, verb, id)

    def _later(self, in_s: float, verb: str, id: str) -> None:
        heapq.heappush(self._changes, (time.monotonic() + in_s, len(self._changes), verb, id))

    def _change(self) -> None:
        until_s = time.monotonic()
        while self._changes and self._changes[0][0] <= until_s + TICK_S:
            at_s, _, verb, id = heapq.heappop(self._changes)
            time.sleep(max(0.0, at_s - time.monotonic()))
            delay_s = self._random.random() * 2
            moved = verb == "reschedule"
            lowest = {"due": int((self._now_s() + delay_s) * 1000)} if moved else {}
            self._write(verb, "invoke", id, lowest)
            try:
                self._write(verb, "ok", id, {"say": self._call(verb, id, delay_s), **lowest})
            except DelayBridgeError as error:
                self._write(verb, "info", id, {"why": repr(error), **lowest})

    def _call(self, verb: str, id: str, delay_s: float) -> str:
        """Without the key for half of those that have one: it is looked for everywhere."""
        key = self._keys.get(id) if self._random.random() < 0.5 else None
        if verb == "get":
            return "unknown" if self._client.get(id, key=key) is None else "found"
        if verb == "cancel":
            return self._client.cancel(id, key=key)
        return self._client.reschedule(id, delay=delay_s)

    def _now_s(self) -> float:
        return time.monotonic() + self._load.wall_s

    def _write(self, call: str, phase: str, id: str, more: dict[str, Any]) -> None:
        when = {"t": time.monotonic(), "at_us": int(self._now_s() * 1e6), "p": "load"}
        self._file.write(json.dumps({**when, "f": call, "phase": phase, "id": id, **more}) + "\n")


if __name__ == "__main__":
    Producer(Load(**json.loads(sys.argv[1]))).run()
