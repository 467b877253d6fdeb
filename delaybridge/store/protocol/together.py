"""Several calls as one: what they ask of the store travels together."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

from delaybridge.store.protocol.verbs import Each, RedisCommand, Steps, grouped

T = TypeVar("T")


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
