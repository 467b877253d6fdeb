"""Redis commands, and calls that need several of them, one after the other.

A call is a generator (`Steps`) without I/O: it yields the commands to run next and is sent their
replies. `Store.complete` and `AsyncStore.complete` run it to its end.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from hashlib import sha1
from importlib.resources import files
from importlib.resources.abc import Traversable
from itertools import chain, islice
from pathlib import Path
from typing import Any, Generic, TypeVar

import msgspec
from hiredis import pack_command

from delaybridge.errors import StoreDenied, StoreError, StoreMisnamed, StoreUnavailable
from delaybridge.store.protocol.keys import SCRIPT_KEYS

T = TypeVar("T")
Arg = str | bytes | int | float
_STORE_WIDE = (StoreUnavailable, StoreDenied, StoreMisnamed)


class RedisCommand(msgspec.Struct, Generic[T], frozen=True):
    """One script call, or one command of Redis itself (`is_plain`); `parse` reads its reply.

    Every command is safe to send again when its reply was lost. near: a key whose server is to
    answer a command without keys, such as TIME; empty: any server may.
    """

    name: str
    keys: tuple[str, ...]
    args: Sequence[Arg]
    parse: Callable[[Any], T]
    is_plain: bool = False
    near: str = ""


def as_received(reply: Any) -> Any:
    """The reply as Redis gave it."""
    return reply


def plain(
    name: str, *args: Arg, parse: Callable[[Any], T] = as_received, near: str = ""
) -> RedisCommand[T]:
    """A command of Redis itself, not a script. name: may be two words, as in `SCRIPT LOAD`."""
    return RedisCommand(name, (), args, parse, is_plain=True, near=near)


@dataclass(frozen=True, slots=True)
class Work(Generic[T]):
    """A step for the recorder's database: `run` is called in a transaction, perhaps twice."""

    run: Callable[[Any], T]


Steps = Generator[Sequence[RedisCommand[Any]], list[Any], T]
"""A call: yields the commands to run next, is sent their replies, returns its result.

Yielding none gives an event loop a turn in a long calculation.

The first error among the replies ends it, unless the commands were yielded as `Each`.
"""


LedgerSteps = Generator[Work[Any] | Sequence[RedisCommand[Any]], Any, T]
"""`Steps` that also yields `Work` for the recorder's database, and is sent its result."""


class Each(list[RedisCommand[Any]]):
    """Commands whose errors are sent as replies, each in its command's place.

    A function stands for the command that it returns. It is called when the command is sent first,
    so that Redis works on one while the next is made, and never again: the same bytes are sent.
    after_s: they are sent after this pause.
    """

    def __init__(
        self,
        commands: Iterable[RedisCommand[Any] | Callable[[], RedisCommand[Any]]],
        *,
        after_s: float = 0.0,
    ):
        super().__init__(commands)  # type: ignore[arg-type]  # functions, until they are sent
        self.after_s = after_s

    def __getitem__(self, place: Any) -> Any:
        command: Any = super().__getitem__(place)
        if not isinstance(command, RedisCommand):
            command = self[place] = command()
        return command

    def __iter__(self) -> Iterator[RedisCommand[Any]]:
        return map(self.__getitem__, range(len(self)))


def store_wide_error(answers: Iterable[Any]) -> StoreError | None:
    """The first error among answers that concerns the whole store, not one bucket."""
    return next((a for a in answers if isinstance(a, _STORE_WIDE)), None)


def grouped(groups: Sequence[Sequence[RedisCommand[Any]]]) -> Steps[list[list[Any]]]:
    """Groups of commands as one pipeline: the replies by group, errors among them."""
    replies = iter((yield Each(chain.from_iterable(groups))))
    return [list(islice(replies, len(group))) for group in groups]


def together(calls: Sequence[Steps[T]]) -> Steps[list[T | Exception]]:
    """Several calls as one: their commands travel together. The result or error of each."""
    results: list[Any] = [None] * len(calls)
    answers: dict[int, Any] = dict.fromkeys(range(len(calls)))  # sending None starts a generator
    while True:
        asked: dict[int, Sequence[RedisCommand[Any]]] = {}
        for number, answer in answers.items():
            try:
                asked[number] = _advance(calls[number], answer)
            except StopIteration as done:
                results[number] = done.value
            except Exception as exc:
                results[number] = exc
        if not asked:
            return results
        replies = yield from grouped([*asked.values()])
        answers = {
            number: _answer(asked[number], own) for number, own in zip(asked, replies, strict=True)
        }


def _advance(call: Steps[T], answer: Any) -> Sequence[RedisCommand[Any]]:
    return call.throw(answer) if isinstance(answer, Exception) else call.send(answer)


def _answer(asked: Sequence[RedisCommand[Any]], replies: list[Any]) -> list[Any] | Exception:
    """The replies to send to the call that asked, or the error to throw into it."""
    if isinstance(asked, Each):
        return replies
    return next((reply for reply in replies if isinstance(reply, Exception)), replies)


@cache
def scripts() -> dict[str, tuple[str, str]]:
    """Verb -> (source, SHA-1) of every script. StoreError if lua/ is of another version."""
    sources = {
        file.name.removesuffix(".lua"): file.read_text()
        for file in _folder().iterdir()
        if file.name.endswith(".lua")
    }
    if sources.keys() != SCRIPT_KEYS.keys():
        differ = ", ".join(sorted(sources.keys() ^ SCRIPT_KEYS.keys()))
        raise StoreError(
            f"the installed Lua scripts do not fit this version ({differ}): install it again"
        )
    return {
        verb: (source, sha1(source.encode(), usedforsecurity=False).hexdigest())
        for verb, source in sources.items()
    }


def _folder() -> Traversable:
    """lua/ inside the wheel; in an editable install the folder next to the package."""
    inside = files("delaybridge") / "lua"
    return inside if inside.is_dir() else Path(__file__).parents[3] / "lua"


def load_requests() -> list[bytes]:
    """Requests that load every script."""
    return [packed("SCRIPT", "LOAD", source) for source, _ in scripts().values()]


def request(command: RedisCommand[Any]) -> bytes:
    """The command as it goes over the wire."""
    if command.is_plain:
        return packed(*command.name.split(), *command.args)
    head, count = _head(command.name, command.keys)
    return b"*%d\r\n%b%b" % (count + len(command.args), head, _without_count(command.args))


# Verb, digest and keys are the same in every call for a bucket: packed once, they cost no more.
@lru_cache(10_000)
def _head(verb: str, keys: tuple[str, ...]) -> tuple[bytes, int]:
    """The beginning of a script call, and its number of words."""
    words = ("EVALSHA", scripts()[verb][1], len(keys), *keys)
    return _without_count(words), len(words)


def packed(*words: Any) -> bytes:
    """Words as one request, in Redis' protocol."""
    return pack_command(words)  # type: ignore[no-any-return]


def _without_count(words: Sequence[Any]) -> bytes:
    """Words packed, without the first line, which says how many they are."""
    request: bytes = pack_command(tuple(words))
    return request[request.index(b"\n") + 1 :]
