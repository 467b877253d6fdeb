"""What is common to all sources: entries become lines, and what is wrong with one is told."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import import_module
from typing import Any, NamedTuple

from delaybridge.carry.line import BadLine, Line
from delaybridge.errors import DelayBridgeError, MessageError, printable

PAGE = 100  # entries in memory at a time: some systems allow bodies of megabytes
_PLACEHOLDER = re.compile(r"\{(queue|name)\}")
_UNEXPECTED = (ValueError, TypeError, LookupError, AttributeError, ArithmeticError, RecursionError)


class SourceError(DelayBridgeError):
    """The other system's server does not answer, or refuses; the text is for the operator."""


class PendingLine(Line, kw_only=True):
    """A message that waits there. mark: what its source knows it by."""

    mark: Any = None

    def place(self, number: int) -> str:
        """Its id, which names its place there."""
        return printable(self.id)


class Source:
    """What one system holds for later."""

    def __init__(self, url: str, to: str, queues: Sequence[str], prefix: str) -> None:
        """to: destination with `{queue}` and `{name}`; empty: as the source says. queues: only
        these. prefix: of the system's keys. SourceError, ConfigError."""
        self.url, self.to, self.queues, self.prefix = url, to, queues, prefix

    def lines(self) -> Iterator[Line | BadLine]:
        """All entries, in bounded memory; bad ones are told in their place. SourceError."""
        raise NotImplementedError

    def remove(self, lines: Sequence[Line]) -> None:
        """Remove these at the source, and nothing else. SourceError."""
        raise NotImplementedError

    def close(self) -> None:
        """Close the connection; what was read stays there."""
        raise NotImplementedError

    def found(
        self, id: str, queue: str, name: str, due_ms: float, to: str = "", **fields: Any
    ) -> PendingLine:
        """The line of an entry, due never earlier than there."""
        if not isinstance(id, str) or not isinstance(name, str):
            raise MessageError("bad_id", "id", "it has no id or no name of its own")
        words = {"queue": queue, "name": name}
        destination = _PLACEHOLDER.sub(lambda word: words[word[1]], self.to) or to
        return PendingLine(
            id=id, destination=destination, due_ms=math.ceil(round(due_ms, 3)), **fields
        )

    def job(
        self, system: str, queue: str, id: str, name: str, due_ms: float, attempts: int,
        headers: Mapping[str, str] = {}, **data: Any,
    ) -> PendingLine:  # fmt: skip
        """The line of a job, whose body is JSON. system: before its id, to be unlike others."""
        job = {"queue": queue, "id": id, "name": name, "attempts": attempts, **data}
        text = json.dumps(job, allow_nan=False, ensure_ascii=False, separators=(",", ":"))
        body = text.encode(errors="backslashreplace")  # half an emoji, as JavaScript cuts it
        return self.found(system + id, queue, name, due_ms, body_base64=body, headers=dict(headers))


@contextmanager
def failures(*kinds: type[Exception]) -> Iterator[None]:
    """Turns errors of these kinds into a SourceError."""
    try:
        yield
    except kinds as exc:
        from delaybridge.amqp.connection import reason_of

        raise SourceError(f"the server that is read: {reason_of(exc)}") from exc


def marks(lines: Sequence[Line]) -> list[Any]:
    """What the source knows these lines by."""
    return [line.mark for line in lines if isinstance(line, PendingLine)]


def since(word: bytes, data: bytes) -> bytes:
    """The data from that word on, as the name of an entry; all of it if the word is not there."""
    return data[max(0, data.find(word)) :]


def place_of(*parts: bytes) -> str:
    """The place of an entry, as errors name it."""
    return printable(" ".join(part[:80].decode(errors="backslashreplace") for part in parts))


def read(key: bytes, name: bytes, reading: Callable[..., Any], *what: Any) -> Any:
    """What `reading` makes of an entry. Whatever is wrong with that is told, and never raised."""
    place = place_of(key, name)
    try:
        return reading(*what)
    except MessageError as exc:
        return BadLine(place, exc.field, exc.detail)
    except _UNEXPECTED as exc:
        fault = f"{type(exc).__name__}: {exc}"
        return BadLine(place, "entry", f"not of the expected form: {fault}"[:200])


class System(NamedTuple):
    """One system. reader: module and class, imported when it is needed. kind: of its URL.

    clearing: how its own tools remove what was imported; empty if `Source.remove` does.
    """

    reader: str
    kind: str
    clearing: str = ""

    def open(self, *given: Any) -> Source:
        """The source; the arguments are those of `Source`."""
        module, name = self.reader.split(".")
        reader: type[Source] = getattr(import_module(f"delaybridge.foreign.{module}"), name)
        return reader(*given)


_DELETEALL = "asynq task deleteall --queue Q --state scheduled, and --state retry"
_CLEAR = "Sidekiq::ScheduledSet.new.clear, and Sidekiq::RetrySet.new.clear"
SYSTEMS = {
    "bullmq": System("jobs.BullMQ", "redis", "await queue.clean(0, 0, 'delayed')"),
    "celery-redis": System("celery.CeleryRedis", "redis"),
    "celery-rabbitmq": System("celery.CeleryRabbitMQ", "rabbitmq"),
    "asynq": System("jobs.Asynq", "redis", _DELETEALL),
    "sidekiq": System("jobs.Sidekiq", "redis", _CLEAR),
}
"""By the name that `import --from` takes."""
