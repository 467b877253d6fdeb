"""The messages of one request, read and stored together; each has a result of its own."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import groupby
from operator import itemgetter
from typing import Any

import msgspec

from delaybridge.client.requests import receipt_unless_conflict
from delaybridge.errors import MessageError
from delaybridge.gathering import Gathering
from delaybridge.message import Message, OnConflict
from delaybridge.serve.api.messages.shapes import RESULTS, NewMessage, due_text, too_late
from delaybridge.serve.http.problems import Problem, problem_of
from delaybridge.serve.shared.call import Call
from delaybridge.store.messages.scheduling import Receipt

_Waiting = tuple[OnConflict, int, Message]  # its policy and its place
_policy_of = itemgetter(0)


class BatchItem(msgspec.Struct, omit_defaults=True, gc=False):
    """status: as if the message had been sent alone. Then its receipt, or what is wrong with it.

    line: the number of its line, from 1, in a stream.
    """

    status: int
    id: str | None = None
    result: str | None = None
    due: str | None = None
    due_ms: int | None = None
    code: str | None = None
    detail: str | None = None
    at: str | None = None
    line: int | None = None


async def scheduled_together(call: Call, read: Iterable[NewMessage | Problem]) -> list[BatchItem]:
    """Schedule messages; one that is refused, or could not be read, hinders no other."""
    found: list[Any] = []
    waiting: list[_Waiting] = []
    for number, one in enumerate(read):
        found.append(None)
        try:
            if isinstance(one, Problem):
                raise one
            waiting.append((one.on_conflict, number, one.message()))
        except Exception as exc:
            found[number] = _refused(problem_of(exc))
    for policy, some in _in_order(waiting):
        together = [*some]
        items = await stored_together(call, [each[2] for each in together], policy)
        for (_, number, _), item in zip(together, items, strict=True):
            found[number] = item
    return found


async def stored_together(
    call: Call, messages: list[Message], policy: OnConflict = OnConflict.FAIL
) -> list[BatchItem]:
    """As `scheduled_together`, of messages with one policy."""
    outcomes = await call.client.schedule_each(messages, on_conflict=policy)
    return [*_items(outcomes, messages)]


def _in_order(waiting: list[_Waiting]) -> Iterable[tuple[OnConflict, Iterable[_Waiting]]]:
    """Those with one policy together; by turns if an id is there twice, which may have two."""
    policies = {policy for policy, *_ in waiting}
    if len(policies) > 1:
        names = [name for _, _, message in waiting if (name := _name(message)) is not None]
        if len(set(names)) == len(names):
            waiting = sorted(waiting, key=_policy_of)
    return groupby(waiting, _policy_of)


def _name(message: Message) -> str | None:
    """What another message would have to have, too, to be the same."""
    return message.delay.key if isinstance(message.delay, Gathering) else message.id


def _items(
    outcomes: Iterable[Receipt | Exception], messages: Iterable[Message]
) -> Iterator[BatchItem]:
    due_ms, due, why, problem = -1, "", None, None
    for outcome, message in zip(outcomes, messages, strict=True):
        if isinstance(outcome, Exception):
            if problem is None or outcome is not why:  # many may have one, which is told once
                why, problem = outcome, problem_of(outcome)
            yield _refused(problem)
        elif found := RESULTS.get(outcome):
            if outcome.due_ms != due_ms:
                due_ms = outcome.due_ms
                due = due_text(due_ms)
            yield BatchItem(found[0], outcome.id, found[1], due, due_ms)
        else:
            yield _refused(_too_late(outcome, message))


def _too_late(receipt: Receipt, message: Message) -> Problem:
    try:
        receipt_unless_conflict(receipt, message)
    except MessageError as exc:
        return problem_of(exc)
    return too_late(receipt.id, receipt.answer)


def _refused(problem: Problem) -> BatchItem:
    """The result of a message that was not stored."""
    return BatchItem(problem.status, code=problem.code, detail=problem.detail, at=problem.at)
