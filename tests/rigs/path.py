"""The path of one message through the package, measured: its files, lines and changes of file.

    python -m tests.rigs.path [--write]

prints the table, from a Redis and a RabbitMQ of its own. One message is scheduled, published and
settled, and every line of the package that runs meanwhile is noted. The work that a worker also
does without a message (the pulse, renewals) is subtracted: a stack of calls that was seen in the
same time without a message, each of three times, does not count. A change of file is counted as a
reader meets it, who reads each function once, where it is first called. --write puts the list into
docs/internals.md.
"""

from __future__ import annotations

import asyncio
import re
import socket
import sys
import textwrap
import threading
import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import pairwise
from types import CodeType, FrameType
from typing import Any, NamedTuple

import pytest
import redis

from delaybridge import Client
from delaybridge.settings.settings import Settings
from delaybridge.store.protocol import keys
from delaybridge.worker.service import Identity
from delaybridge.worker.worker import Worker
from tests.rigs.bridge import ROOT, rabbitmq_channel
from tests.rigs.waiting import PATIENCE_S, quiet_async, until_async

PACKAGE = ROOT / "delaybridge"
PAGE = ROOT / "docs" / "internals.md"
LIST = re.compile("(?<=<!-- path -->\n).*?(?=<!-- /path -->)", re.DOTALL)
SELDOM_S = 3600.0  # nothing recurring mixes with the message
LEASE = {"ttl_ms": 180_000, "renew_ms": 60_000}
DELAY_S, SETTLED_S, IDLE_S = 0.3, 0.3, 1.1
Trace = Callable[[FrameType, str, Any], Any]


class Step(NamedTuple):
    """A function of the package was called, or (called=False) one of its lines ran."""

    thread: int
    stack: tuple[CodeType, ...]  # of the package, the innermost first
    line: int
    called: bool

    @property
    def file(self) -> str:
        """Relative to the package, as the docs write it."""
        return self.stack[0].co_filename.removeprefix(f"{PACKAGE}/")


class Recorder:
    """The steps of every thread while `on`."""

    def __init__(self) -> None:
        self.on = False
        self.steps: list[Step] = []
        self.sent_at: dict[int, int] = {}  # thread -> its steps before its first byte left

    def __call__(self, frame: FrameType, event: str, argument: Any) -> Trace | None:
        if not frame.f_code.co_filename.startswith(f"{PACKAGE}/"):
            return None
        if self.on and event in ("call", "line"):
            step = Step(threading.get_ident(), _stack(frame), frame.f_lineno, event == "call")
            self.steps.append(step)
        return self

    def note_byte(self) -> None:
        """A byte leaves in this thread."""
        thread = threading.get_ident()
        if self.on:
            self.sent_at.setdefault(thread, len(_of_thread(self.steps, thread)))

    def take(self) -> list[Step]:
        """The steps so far."""
        steps, self.steps = self.steps, []
        return steps


def _stack(frame: FrameType | None) -> tuple[CodeType, ...]:
    found = []
    while frame is not None:
        if frame.f_code.co_filename.startswith(f"{PACKAGE}/"):
            found.append(frame.f_code)
        frame = frame.f_back
    return tuple(found)


def _of_thread(steps: Sequence[Step], thread: int) -> list[Step]:
    return [step for step in steps if step.thread == thread]


class Way(NamedTuple):
    """Steps in order, and what reading them costs."""

    steps: Sequence[Step]

    def files(self) -> list[str]:
        """In order of first entry."""
        return list(dict.fromkeys(step.file for step in self.steps))

    def lines(self) -> Counter[str]:
        """Of each file the different lines that ran."""
        return Counter(file for file, _ in {(step.file, step.line) for step in self.steps})

    def functions(self) -> list[CodeType]:
        """In order of first call; a comprehension is read with the function around it."""
        called = dict.fromkeys(step.stack[0] for step in self.steps if step.called)
        return [
            code for code in called if not code.co_name.startswith("<") or "lambda" in code.co_name
        ]

    def entries(self) -> Counter[str]:
        """How often a reader of these functions, in that order, opens each file."""
        files = [code.co_filename.removeprefix(f"{PACKAGE}/") for code in self.functions()]
        return Counter(b for a, b in pairwise(["", *files]) if a != b)


class Life(NamedTuple):
    """What a message's life runs through. scheduling: until its first byte leaves the client."""

    scheduling: Way
    whole: Way


@contextmanager
def recording() -> Iterator[Recorder]:
    """Trace this thread, and every new one; and notice the bytes that leave."""
    recorder = Recorder()
    with pytest.MonkeyPatch.context() as patch:
        for name in ("send", "sendall", "sendmsg"):
            patch.setattr(socket.socket, name, _noticed(getattr(socket.socket, name), recorder))
        patch.setattr("delaybridge.worker.eventlog._SUMMARY_S", SELDOM_S)
        patch.setattr("delaybridge.worker.pulse.EVERY_S", SELDOM_S)
        threading.settrace(recorder)
        sys.settrace(recorder)
        try:
            yield recorder
        finally:
            sys.settrace(None)
            threading.settrace(None)


def _noticed(send: Any, recorder: Recorder) -> Any:
    def noticed(self: socket.socket, *arguments: Any) -> Any:
        recorder.note_byte()
        return send(self, *arguments)

    return noticed


def measure(redis_url: str, rabbitmq_url: str) -> Life:
    """One message is scheduled with a worker that has published before, and is settled."""
    return asyncio.run(_measure(redis_url, rabbitmq_url))


async def _measure(redis_url: str, rabbitmq_url: str) -> Life:
    name = f"path-{uuid.uuid4().hex[:12]}"
    brokers, stored = {"rabbitmq": rabbitmq_url}, keys.bucket_key(name, 0, "messages")
    patient = {"url": redis_url, "timeout_s": PATIENCE_S}  # an error would run through others
    overrides = {"redis": patient, "namespace": name, "brokers": brokers}
    settings = Settings.load(overrides={**overrides, "buckets": 1, "lease": LEASE}, environ={})
    with rabbitmq_channel(rabbitmq_url) as channel, recording() as recorder:
        channel.queue_declare(name, durable=True)
        worker = Worker(settings, Identity.of_this_process("w"))
        working = asyncio.create_task(worker.work())
        with Client(redis_url, namespace=name, brokers=brokers, buckets=1) as client:
            for number in range(3):
                await _pass_through(client, stored, name, f"warm{number}", redis_url)
            spans = [await _idle_stacks(recorder) for _ in range(3)]
            recorder.sent_at.clear()
            recorder.on = True
            thread = await _pass_through(client, stored, name, "traced", redis_url)
            recorder.on = False
        worker.stop()
        await working
        channel.queue_delete(name)
    steps, idle = recorder.take(), set.intersection(*spans)
    own, others = _of_thread(steps, thread), [each for each in steps if each.thread != thread]
    scheduling = own[: recorder.sent_at[thread]]
    return Life(Way(scheduling), Way([each for each in own + others if each.stack not in idle]))


async def _idle_stacks(recorder: Recorder) -> set[tuple[CodeType, ...]]:
    """What runs for a while without a message."""
    await quiet_async(SETTLED_S)  # the end of a message's life is not idle work
    recorder.on = True
    await quiet_async(IDLE_S)
    recorder.on = False
    return {step.stack for step in recorder.take()}


async def _pass_through(client: Client, stored: str, name: str, id: str, redis_url: str) -> int:
    """Schedule it, and wait until it is settled: not in the hash `stored`. Returns the thread."""
    schedule = partial(client.schedule, f"rabbitmq:/{name}", id.encode(), delay=DELAY_S, id=id)

    def in_thread() -> int:
        schedule(headers={"a": "b"}, properties={"type": "t"})
        return threading.get_ident()

    with redis.Redis.from_url(redis_url) as plain:
        thread = await asyncio.to_thread(in_thread)
        await until_async(lambda: not plain.exists(stored), f"{id} is settled")
    return thread


def table(life: Life) -> Iterator[str]:
    """For people."""
    lines, entries = life.whole.lines(), life.whole.entries()
    functions = Counter(code.co_filename for code in life.whole.functions())
    scheduling = life.scheduling.files()
    yield f"{'':3} {'file':40} functions  lines  opened"
    for number, file in enumerate(life.whole.files(), 1):
        mark = "s" if file in scheduling else " "
        counts = f"{functions[f'{PACKAGE}/{file}']:9}  {lines[file]:5}  {entries[file]:6}"
        yield f"{number:3} {file:40} {counts}  {mark}"
    for name, way in (("s: schedule side", life.scheduling), ("whole life", life.whole)):
        total, changes = sum(way.lines().values()), sum(way.entries().values()) - 1
        yield f"{name}: {len(way.files())} files, {total} lines, {changes} changes of file"


def described(files: Sequence[str]) -> str:
    """The list for the page, wrapped."""
    named = ", ".join(f"`{file}`" for file in files)
    return "\n" + textwrap.fill(named, 120, break_on_hyphens=False) + "\n\n"


def main(words: Sequence[str]) -> None:
    from tests.servers import rabbitmq
    from tests.servers.redis import RedisServer

    with RedisServer() as server, next(rabbitmq.sources()).open() as broker:
        life = measure(server.url, broker.url)
    sys.stdout.write("\n".join(table(life)) + "\n")
    if "--write" in words:
        text = described(life.whole.files())
        PAGE.write_text(LIST.sub(lambda _: text, PAGE.read_text()))


if __name__ == "__main__":
    main(sys.argv[1:])
