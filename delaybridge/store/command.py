"""What is sent to Redis: one script call or one plain command, with the reader of its reply."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

T = TypeVar("T")
Arg = str | bytes | int | float


@dataclass(frozen=True, slots=True)
class Command(Generic[T]):
    """One script call, or one plain Redis command (`plain`); `parse` reads its reply.

    Every command is safe to send again when its reply was lost.
    """

    name: str
    keys: tuple[str, ...]
    args: Sequence[Arg]
    parse: Callable[[Any], T]
    plain: bool = False


def unread(reply: Any) -> Any:
    """The reply as Redis gave it."""
    return reply


def plain(name: str, *args: Arg, parse: Callable[[Any], T] = unread) -> Command[T]:
    """A Redis command that is not a script."""
    return Command(name, (), args, parse, plain=True)
