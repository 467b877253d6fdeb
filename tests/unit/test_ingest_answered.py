"""What becomes of held messages once the store has answered."""

from __future__ import annotations

import pytest

from delaybridge.accept.accept import Accepted
from delaybridge.errors import StoreFull, StoreUnavailable
from delaybridge.ingest.entries import Change, Schedule
from delaybridge.ingest.rabbitmq.answered import sorted_out
from delaybridge.ingest.rabbitmq.channel import HeldMessage
from delaybridge.ingest.rabbitmq.messages import RawMessage
from delaybridge.ingest.storing import Found
from delaybridge.message import Answer, OnConflict

STAMP = b"once"


def message() -> HeldMessage:
    accepted = Accepted("x", b"x", "+0", 255, b"p")
    return held(1, Schedule(accepted, STAMP, OnConflict.FAIL, b"p"))


def cancel() -> HeldMessage:
    return held(2, Change("x", b"x", STAMP))


def held(tag: int, entry: Schedule | Change) -> HeldMessage:
    return HeldMessage(RawMessage(tag, False, b"", b"", b""), STAMP, "x", entry)


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
