"""`Last-Event-ID`: whatever a client sends, it is told where to go on; and what others publish."""

from __future__ import annotations

import pytest

from delaybridge.operate.notices.event_channel import Beat, Told
from delaybridge.serve.shared.event_fanout import EventHub, _kept_gap
from delaybridge.settings.settings import Settings

SENT = [
    *("9" * 5000, "9" * 5000 + "-w-1-0", "-", "--", "-5-w", "0-", "1e9-w", "0x5-w", "٣-w", "²-w"),
    *("1" * 15 + "-w.x-1-0", "\x00", "\xff", " 1-w", "null", "1_0-w", "1.5-w", "+1-w"),
]


@pytest.mark.parametrize("id", SENT, ids=range(len(SENT)))
def test_an_id_of_any_form_has_a_place(id: str) -> None:
    hub = EventHub(Settings())
    hub._add(_kept_gap("some may be missing"))
    number, gap = hub.place_of(id)
    assert 0 <= number <= hub.count
    is_time = id.startswith("1" * 15)
    assert (number, gap is None) == ((1, True) if is_time else (0, False))


def test_an_event_of_any_name_and_fields_is_one_event_and_hides_no_message() -> None:
    hub = EventHub(Settings())
    fields = {"ids": None, "n": "m1"}
    hub._take(Beat("w\r\n1", "i", 1, [Told(10**18, 10**18, "a\r\n\ndata: b", fields)]))
    (kept,), _ = hub.since(0)
    text = kept.text.decode()
    assert "\r" not in text and [line.partition(":")[0] for line in text.strip().split("\n")] == [
        "id", "event", "data",
    ]  # fmt: skip
    assert hub.told_of("m1") == []
