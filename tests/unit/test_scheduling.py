"""A schedule whose id is in flight: what is sent again, and when. Without a store."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from delaybridge import Client, Message
from delaybridge.message import Answer
from delaybridge.store.calls import Calls
from delaybridge.store.messages import scheduling
from delaybridge.store.messages.scheduling import Patience, Receipt
from delaybridge.store.protocol.layout import Epoch, Layout
from delaybridge.store.protocol.verbs import Each, new_stamp

IDS = ["a", "x", "b", "y", "x"]
CREATED, IN_FLIGHT = 1, 5


@pytest.fixture
def calls() -> Calls:
    """Of a namespace with one bucket, which is known."""
    calls = Client(buckets=1)._calls
    calls.following.learn(Layout((Epoch(0, 1),)), "birth")
    calls.placement.timeout_s = 3600.0
    return calls


def sent(command: Any) -> tuple[list[str], list[bytes]]:
    """The ids and the stamps of a script call."""
    count = command.args[9]
    ids, entries = command.args[10:][:count], command.args[10 + count :][:count]
    return ids, [entry[:4] for entry in entries]


def answered(
    calls: Calls, replies: Sequence[Sequence[int]], **options: Any
) -> tuple[list[Receipt], list[Any], list[float]]:
    """Schedule IDS; the receipts, what each call sent, and the pauses before them."""
    accept = Client(buckets=1).accept
    messages = [(new_stamp(), accept(Message("kafka:t", b"", at="2030-01-01T00:00:00Z", id=id)))
                for id in IDS]  # fmt: skip
    steps, told, pauses = calls.schedule(messages, scheduling.OnConflict.FAIL, **options), [], []
    asked: Any = next(steps)
    try:
        for answers in replies:
            assert isinstance(asked, Each)
            (command,) = asked
            told.append(sent(command))
            pauses.append(asked.after_s)
            asked = steps.send([command.parse([n for each in answers for n in (each, 0, 1)])])
    except StopIteration as done:
        return done.value, told, pauses
    raise AssertionError("it asks once more")


def test_of_a_batch_only_those_in_flight_are_sent_again_with_their_stamps(calls: Calls) -> None:
    first = [CREATED, IN_FLIGHT, CREATED, IN_FLIGHT, IN_FLIGHT]
    receipts, told, pauses = answered(calls, [first, [CREATED, IN_FLIGHT, 3], [CREATED]])
    assert [receipt.answer.value for receipt in receipts] == [*["created"] * 4, "conflict"]
    (_, stamps), (again, their), (last, its) = told
    assert (again, their) == (["x", "y", "x"], [stamps[1], stamps[3], stamps[4]])
    assert (last, its) == (["y"], [stamps[3]])
    assert pauses == [0.0, 0.002, 0.004]


def test_without_one_in_flight_nothing_is_sent_again(calls: Calls) -> None:
    _, told, pauses = answered(calls, [[CREATED, 2, 3, CREATED, CREATED]])
    assert (len(told), pauses) == (1, [0.0])


def test_who_does_not_wait_is_told_at_once(calls: Calls) -> None:
    receipts, told, _ = answered(calls, [[CREATED, IN_FLIGHT, *[CREATED] * 3]], waits=False)
    assert receipts[1] == Answer.IN_FLIGHT
    assert len(told) == 1


def test_patience_is_longer_each_time_and_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = [100.0]
    monkeypatch.setattr(scheduling.time, "monotonic", lambda: now_s[0])
    patience = Patience(5.0)
    assert [patience.pause_s() for _ in range(7)] == [0.002, 0.004, 0.008, 0.016, 0.032, 0.05, 0.05]
    now_s[0] = 104.99
    assert patience.pause_s() == 0.05
    now_s[0] = 105.0
    assert patience.pause_s() == 0.0
