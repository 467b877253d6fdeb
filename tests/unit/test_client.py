"""The values that a client returns, and how it spreads messages."""

from __future__ import annotations

import copy
import json
import pickle

from delaybridge import Answer, Receipt
from delaybridge.client.spreading import Spreading


def test_a_receipt_can_be_copied_and_pickled() -> None:
    receipt = Receipt(Answer.CREATED, "order-42", 1_900_000_000_000, 3)
    for again in (copy.copy(receipt), copy.deepcopy(receipt), pickle.loads(pickle.dumps(receipt))):
        assert again == "created"
        assert repr(again) == repr(receipt)


def test_a_receipt_is_the_text_of_its_answer_however_it_becomes_text() -> None:
    receipt = Receipt(Answer.CREATED, "order-42", 1_900_000_000_000, 3)
    texts = [str(receipt), f"{receipt}", f"{receipt:>7}", "%s" % receipt, "".join([receipt])]  # noqa: UP031
    texts += [json.loads(json.dumps(receipt)), receipt + "", str(receipt.answer)]
    assert receipt == "created"
    assert texts == ["created"] * len(texts)
    assert type(str(receipt)) is str
    assert "order-42" in repr(receipt)


def test_messages_are_spread_evenly_and_those_not_counted_come_last() -> None:
    spreading = Spreading(1000, {None: 4})
    assert spreading.later_ms(["a", "b"]) == [0, 250]
    assert spreading.later_ms(["c", "d", "e"]) == [500, 750, 750]
