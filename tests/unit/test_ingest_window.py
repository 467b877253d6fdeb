"""Batches of records leave room for those that may have to be set aside."""

from __future__ import annotations

import pytest

from delaybridge.ingest.kafka.window import BATCH_MESSAGES, FIRST_BATCH_MESSAGES, BatchWindow

MIB = 2**20


def test_batches_grow_while_nothing_is_set_aside() -> None:
    window = BatchWindow(32 * MIB)
    found = []
    for _ in range(10):
        found.append(window.next_messages)
        window.took([100] * found[-1])
    assert found[:3] == [FIRST_BATCH_MESSAGES * 2**n for n in range(3)]
    assert found[-1] == BATCH_MESSAGES


@pytest.mark.parametrize("size", [10, 64 * 1024])
def test_what_is_set_aside_of_several_topics_leaves_room(size: int) -> None:
    window = BatchWindow(32 * MIB)
    for _ in range(10):
        window.took([size] * window.next_messages)
    held, on_their_way = 0, list[int]()
    for _ in range(8):  # each record of these has to be set aside
        on_their_way.append(window.next_messages)
        window.took([size] * on_their_way[-1])
        if len(on_their_way) == 3:
            held += on_their_way.pop(0)
            window.room = 1 - window.share(held, held * size)
    assert window.share(held + sum(on_their_way), (held + sum(on_their_way)) * size) < 1
