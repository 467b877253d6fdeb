"""What becomes of held messages once the store has answered."""

from __future__ import annotations

import pytest

from delaybridge.errors import StoreFull, StoreUnavailable
from delaybridge.ingest.entries import Change, Schedule
from delaybridge.ingest.rabbitmq.answered import sorted_out
from delaybridge.ingest.rabbitmq.channel import HeldMessage
from delaybridge.ingest.rabbitmq.messages import RawMessage
from delaybridge.ingest.storing import Found
from delaybridge.message import Answer
from tests.unit.test_ingest_storing import cancel, schedule


def held(tag: int, entry: Schedule | Change) -> HeldMessage:
    return HeldMessage(RawMessage(tag, False, b"", b"", b""), entry.stamp, "x", entry)


@pytest.mark.parametrize("first", [Answer.IN_FLIGHT, StoreFull("full")])
def test_a_change_whose_answer_is_known_waits_as_another_call(first: Found) -> None:
    change = held(2, cancel("x", b"x"))
    stamp = change.stamp
    done, late, refused = sorted_out([held(1, schedule("x")), change], [first, Answer.CANCELLED], 1)
    assert (done, late, refused) == ([], {1: first, 2: Answer.CANCELLED}, [])
    assert change.stamp == change.entry.stamp != stamp


def test_a_change_whose_answer_is_unknown_is_sent_again_as_it_is() -> None:
    change, silent = held(2, cancel("x", b"x")), StoreUnavailable("silent")
    stamp = change.stamp
    sorted_out([held(1, schedule("x")), change], [silent, silent], 1)
    assert change.stamp == change.entry.stamp == stamp
