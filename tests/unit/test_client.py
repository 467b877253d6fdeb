"""The values that a client returns."""

from __future__ import annotations

import copy
import pickle

from delaybridge import Answer, Receipt


def test_a_receipt_can_be_copied_and_pickled() -> None:
    receipt = Receipt(Answer.CREATED, "order-42", 1_900_000_000_000, 3)
    for again in (copy.copy(receipt), copy.deepcopy(receipt), pickle.loads(pickle.dumps(receipt))):
        assert again == "created"
        assert repr(again) == repr(receipt)
