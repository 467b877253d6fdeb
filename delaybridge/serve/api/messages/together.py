"""The messages of one request, read and stored together; each has a result of its own."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from delaybridge.client.requests import receipt_unless_conflict
from delaybridge.message import Message, OnConflict
from delaybridge.serve.api.messages.shapes import RESULTS, NewMessage, due_text, too_late
from delaybridge.serve.http.problems import Problem, problem_of
from delaybridge.serve.shared.call import Call
from delaybridge.store.messages.scheduling import Receipt


class BatchItem(msgspec.Struct, omit_defaults=True):
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
    by_policy: dict[OnConflict, list[tuple[int, Message]]] = {}
    for number, one in enumerate(read):
        found.append(None)
        try:
            if isinstance(one, Problem):
                raise one
            by_policy.setdefault(one.on_conflict, []).append((number, one.message()))
        except Exception as exc:
            found[number] = _refused(problem_of(exc))
    for policy, waiting in by_policy.items():
        messages = [message for _, message in waiting]
        outcomes = await call.client.schedule_each(messages, on_conflict=policy)
        for (number, _), outcome in zip(waiting, outcomes, strict=True):
            found[number] = _item(outcome)
    return found


def _item(outcome: Receipt | Exception) -> BatchItem:
    if isinstance(outcome, Receipt) and (found := RESULTS.get(outcome)):
        due_ms = outcome.due_ms
        return BatchItem(found[0], outcome.id, found[1], due_text(due_ms), due_ms)
    try:
        if isinstance(outcome, Exception):
            raise outcome
        receipt = receipt_unless_conflict(outcome)
        raise too_late(receipt.id, receipt.answer)
    except Exception as exc:
        return _refused(problem_of(exc))


def _refused(problem: Problem) -> BatchItem:
    """The result of a message that was not stored."""
    return BatchItem(problem.status, code=problem.code, detail=problem.detail, at=problem.at)
