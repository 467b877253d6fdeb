"""Verbs: each is one row, and the methods of both clients come from it.

A row has a sans-I/O function `(holder, ...) -> Steps[T]`, which checks its arguments before any
I/O; its signature and docstring are those of the methods. `Blocking` and `Awaiting` complete a
class of rows: `Client.cancel` returns T, `AsyncClient.cancel` is a coroutine. Routes, commands and
bulk jobs read the other fields: `MessageVerbs.cancel.scope`, or `verbs_of(MessageVerbs)`.
"""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable, Coroutine, Generator, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import wraps
from typing import TYPE_CHECKING, Any, Concatenate, Generic, ParamSpec, Self, TypeVar, overload

from delaybridge.client.requests import Requests
from delaybridge.message import State

if TYPE_CHECKING:
    from delaybridge.client.batching import Batching
    from delaybridge.store.calls import Calls
    from delaybridge.store.redis.store import AsyncStore, Store

P = ParamSpec("P")
T = TypeVar("T")
V = TypeVar("V", bound="Verb[..., Any]")


class Scope(StrEnum):
    """What a token allows; each includes those before it."""

    OPEN = "open"  # without a token
    READ = "read"
    WRITE = "write"
    ADMIN = "admin"


@dataclass(frozen=True, kw_only=True)
class Verb(Generic[P, T]):
    """One thing that clients do; `verb` makes it of a function.

    call: the function; its first argument is the object that has the verb. help: one line, in the
    imperative. scope: what a token needs for it. is_audited: it is noted in the audit. unknown: for
    an id that is unknown, what follows `no message ID`. states: of the messages that it changes.
    is_destructive: people are asked first. is_batched: an `AsyncClient` sends it with the other
    calls of its tick. moved_to: the object of the client that has it now, `dead`.
    """

    call: Callable[Concatenate[Any, P], Generator[Any, Any, T]]
    help: str
    scope: Scope
    is_audited: bool = False
    unknown: str = ""
    states: Sequence[State] = ()
    is_destructive: bool = False
    is_batched: bool = False
    moved_to: str = ""

    if TYPE_CHECKING:  # the classes have functions instead, see `_complete`

        @overload
        def __get__(
            self, holder: None, owner: type[Blocking]
        ) -> Callable[Concatenate[Any, P], T]: ...
        @overload
        def __get__(
            self, holder: None, owner: type[Awaiting]
        ) -> Callable[Concatenate[Any, P], Coroutine[Any, Any, T]]: ...
        @overload
        def __get__(self, holder: Blocking, owner: type[Any]) -> Callable[P, T]: ...
        @overload
        def __get__(
            self, holder: Awaiting, owner: type[Any]
        ) -> Callable[P, Coroutine[Any, Any, T]]: ...
        @overload
        def __get__(self, holder: Requests | None, owner: type[Requests]) -> Self: ...
        def __get__(self, holder: Any, owner: type[Any]) -> Any: ...

    @property
    def name(self) -> str:
        """The name of the method: `cancel`."""
        return self.call.__name__

    @property
    def subject(self) -> str:
        """The name of the first argument: `id`, `messages`, `destination`, `topic`, `items` ..."""
        code = self.call.__code__
        return "" if code.co_argcount < 2 else str(code.co_varnames[1])


def verb(
    scope: Scope, help: str, **rest: Any
) -> Callable[[Callable[Concatenate[Any, P], Generator[Any, Any, T]]], Verb[P, T]]:
    """Make a row of a function in a class of verbs; rest: further fields of `Verb`."""
    return lambda call: Verb(call=call, help=help, scope=scope, **rest)


def moved(row: V, to: str) -> V:
    """The row under its former name: its methods warn that it is at `client.TO` now."""
    return replace(row, moved_to=to)


def verbs_of(holder: type[Requests]) -> dict[str, Verb[..., Any]]:
    """The rows of a class by name, without those that have moved."""
    rows = ((name, row) for each in reversed(holder.__mro__) for name, row in vars(each).items())
    return {name: row for name, row in rows if isinstance(row, Verb) and not row.moved_to}


class Blocking(Requests):
    """Completes verbs before they return. Base of `Client` and of the objects that it has."""

    _store: Store

    def __init__(self, calls: Calls, store: Store) -> None:
        super().__init__(calls)
        self._store = store

    def __init_subclass__(cls) -> None:
        _complete(cls, _blocking)


class Awaiting(Requests):
    """Completes verbs in coroutines. Base of `AsyncClient` and of the objects that it has."""

    _store: AsyncStore
    _batching: Batching

    def __init__(self, calls: Calls, store: AsyncStore, batching: Batching) -> None:
        super().__init__(calls)
        self._store, self._batching = store, batching

    def __init_subclass__(cls) -> None:
        _complete(cls, _awaiting)


def _complete(cls: type[Requests], method_of: Callable[[Verb[..., Any]], Any]) -> None:
    """Give a class the method of each row that it has; the rows stay in its bases.

    A method that an application's subclass has under the name of a verb stays.
    """
    found: dict[str, Any] = {}
    for each in reversed(cls.__mro__):
        found |= vars(each)
    for name, row in found.items():
        if isinstance(row, Verb):
            method = _deprecated(row) if row.moved_to else method_of(row)
            method.__qualname__, method.__module__ = f"{cls.__name__}.{name}", cls.__module__
            method.__signature__ = _signature(row.call)
            setattr(cls, name, method)


def _blocking(row: Verb[..., Any]) -> Any:
    call = row.call

    @wraps(call)
    def method(self: Blocking, *args: Any, **fields: Any) -> Any:
        return self._store.complete(call(self, *args, **fields))

    return method


def _awaiting(row: Verb[..., Any]) -> Any:
    call = row.call
    if row.is_batched:

        @wraps(call)
        async def method(self: Awaiting, *args: Any, **fields: Any) -> Any:
            return await self._batching.complete(call(self, *args, **fields))

    else:

        @wraps(call)
        async def method(self: Awaiting, *args: Any, **fields: Any) -> Any:
            return await self._store.complete(call(self, *args, **fields))

    return method


def _deprecated(row: Verb[..., Any]) -> Any:
    home, name = row.moved_to, row.name

    @wraps(row.call)
    def method(self: Requests, *args: Any, **fields: Any) -> Any:
        what = f"client.{name} is deprecated: call client.{home}.{name}"
        warnings.warn(what, DeprecationWarning, stacklevel=2)
        return getattr(getattr(self, home), name)(*args, **fields)

    return method


def _signature(call: Any) -> inspect.Signature:
    """The signature of a method: it returns the T of `Steps[T]`."""
    found = inspect.signature(call)
    returned = str(found.return_annotation)
    return found.replace(return_annotation=returned.partition("[")[2].removesuffix("]"))
