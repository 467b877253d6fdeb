"""What is common to all sources: entries become lines, and what is wrong with one is told."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from typing import Any

from delaybridge.carry.line import BadLine, Line
from delaybridge.errors import DelayBridgeError, MessageError, printable

_PLACEHOLDER = re.compile(r"\{(queue|name)\}")
_UNEXPECTED = (ValueError, TypeError, LookupError, AttributeError, ArithmeticError, RecursionError)


class SourceError(DelayBridgeError):
    """The other system's server does not answer, or refuses; the text is for the operator."""


class PendingLine(Line, kw_only=True):
    """A message that waits there. mark: what its source knows it by."""

    mark: Any = None


class Source:
    """What one system holds for later."""

    def __init__(self, url: str, to: str, queues: Sequence[str], prefix: str) -> None:
        """to: destination with `{queue}` and `{name}`; empty: as the source says. queues: only
        these. prefix: of the system's keys. SourceError, ConfigError."""
        self.url, self.to, self.queues, self.prefix = url, to, queues, prefix

    def lines(self) -> Iterator[Line | BadLine]:
        """All entries, in bounded memory; bad ones are told in their place. SourceError."""
        raise NotImplementedError

    def remove(self, marks: Sequence[Any]) -> None:
        """Remove what has these marks at the source, and nothing else. SourceError."""
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
        due = math.ceil(round(due_ms, 3))
        return PendingLine(id=id, destination=destination, due_ms=due, **fields)


@contextmanager
def failures(*kinds: type[Exception]) -> Iterator[None]:
    """Turns errors of these kinds into a SourceError."""
    try:
        yield
    except kinds as exc:
        from delaybridge.amqp.connection import reason_of

        raise SourceError(f"the server that is read: {reason_of(exc)}") from exc


def place_of(*parts: bytes) -> str:
    """The place of an entry, as errors name it."""
    return printable(" ".join(part[:80].decode(errors="backslashreplace") for part in parts))


def read(key: bytes, name: bytes, reading: Callable[..., Any], *what: Any) -> Any:
    """What `reading` makes of an entry. Whatever is wrong with that is told, and never raised."""
    try:
        return reading(*what)
    except MessageError as exc:
        return BadLine(place_of(key, name), exc.field, exc.detail)
    except _UNEXPECTED as exc:
        fault = f"not of the expected form: {type(exc).__name__}: {exc}"
        return BadLine(place_of(key, name), "entry", fault[:200])


SYSTEMS = {
    "bullmq": ("redis", "bullmq.BullMQ"),
    "celery-redis": ("redis", "celery.CeleryRedis"),
    "celery-rabbitmq": ("rabbitmq", "celery.CeleryRabbitMQ"),
}
"""By the name that `import --from` takes: the kind of its URL, module and class."""


def opened(system: str, *given: Any) -> Source:
    """The source of a system; the arguments are those of `Source`."""
    module, name = SYSTEMS[system][1].split(".")
    reader: type[Source] = getattr(import_module(f"delaybridge.foreign.{module}"), name)
    return reader(*given)
