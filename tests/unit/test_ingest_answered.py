"""What becomes of held messages once the store has answered."""

from __future__ import annotations

import pytest

from delaybridge.accept.accept import Accepted
from delaybridge.errors import StoreFull, StoreUnavailable
from delaybridge.ingest.entries import Change, Schedule
from delaybridge.ingest.rabbitmq.answered import ready, sorted_out
from delaybridge.ingest.rabbitmq.channel import HeldMessage
from delaybridge.ingest.rabbitmq.messages import RawMessage
from delaybridge.ingest.storing import Found
from delaybridge.message import Answer, OnConflict

STAMP = b"once"


def message(id: str = "x", key: bytes = b"x") -> HeldMessage:
    accepted = Accepted(id, key, "+0", 255, b"p")
    return held(1, id, Schedule(accepted, STAMP, OnConflict.FAIL, b"p"))


def cancel(id: str = "x", key: bytes | None = b"x") -> HeldMessage:
    return held(2, id, Change(id, key, STAMP))


def held(tag: int, id: str, entry: Schedule | Change) -> HeldMessage:
    return HeldMessage(RawMessage(tag, False, b"", b"", b""), STAMP, id, entry)


@pytest.mark.parametrize("first", [Answer.IN_FLIGHT, StoreFull("full")])
def test_a_change_whose_answer_is_known_waits_as_another_call(first: Found) -> None:
    change = cancel()
    done, late, refused = sorted_out([message(), change], [first, Answer.CANCELLED], 1)
    assert (done, late, refused) == ([], {1: first, 2: Answer.CANCELLED}, [])
    assert change.stamp == change.entry.stamp != STAMP


def test_a_change_whose_answer_is_unknown_is_sent_again_as_it_is() -> None:
    change, silent = cancel(), StoreUnavailable("silent")
    sorted_out([message(), change], [silent, silent], 1)
    assert change.stamp == change.entry.stamp == STAMP


@pytest.mark.parametrize("key", [None, b"x"])
def test_a_message_is_sent_once_a_change_before_it_in_its_id_is_answered(key: bytes | None) -> None:
    first, change, second = message(), cancel("x", key), message()
    other, behind, another = message("y", b"k"), message("z", b"x"), cancel("w", None)
    now, later = ready([first, change, second, other, behind, another])
    assert now == [first, change, other, another]
    assert later == [second, behind]
    assert ready(later) == (later, [])


def test_a_message_waits_for_one_of_its_id_under_another_key() -> None:
    first, second, third, change = message(), message("x", b"k"), message(), cancel()
    same = [message(), message(), cancel(), cancel("x", None)]
    assert ready([first, second, third, change]) == ([first], [second, third, change])
    assert ready(same) == (same, [])
