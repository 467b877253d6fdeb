"""Calls of several commands, sans I/O: generators that yield commands and are sent the replies."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Sequence
from functools import partial
from itertools import islice
from typing import Any, TypeVar

from delaybridge.errors import StoreDenied, StoreError, StoreUnavailable
from delaybridge.store.command import Command

T = TypeVar("T")
Steps = Generator[Sequence[Command[Any]], list[Any], T]
"""Yields what to run, is sent the replies. An error of the store ends it."""


class Each(list[Command[Any]]):
    """Commands whose errors are sent as replies, each in its command's place."""


def of_all(answers: Iterable[Any]) -> StoreError | None:
    """The first error among answers that is no matter of one bucket, if there is one."""
    return next((a for a in answers if isinstance(a, StoreUnavailable | StoreDenied)), None)


def together(calls: Sequence[Steps[T]]) -> Steps[list[T | Exception]]:
    """Several calls as one: their commands travel together. The result or error of each."""
    results: list[Any] = [None] * len(calls)
    asked: dict[int, Sequence[Command[Any]]] = {}

    def advance(number: int, step: Callable[[], Sequence[Command[Any]]]) -> None:
        try:
            asked[number] = step()
        except StopIteration as done:
            results[number] = done.value
        except Exception as exc:
            results[number] = exc

    for number, call in enumerate(calls):
        advance(number, partial(next, call))
    while asked:
        under_way = list(asked.items())
        asked.clear()
        replies = iter((yield Each(command for _, own in under_way for command in own)))
        for number, own in under_way:
            mine = list(islice(replies, len(own)))
            error = next((reply for reply in mine if isinstance(reply, Exception)), None)
            if error is None or isinstance(own, Each):
                advance(number, partial(calls[number].send, mine))
            else:
                advance(number, partial(calls[number].throw, error))
    return results
