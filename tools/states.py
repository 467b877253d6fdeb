"""The states of a message and the verbs between them: `python -m tools.states` draws them.

tests/integration/test_states.py compares each arrow with what the script of that name does.
"""

from __future__ import annotations

from pathlib import Path

from tools.picture import Box, picture, text

PICTURE = Path(__file__).parents[1] / "docs" / "images" / "states.svg"
NEW, GONE = "not stored", "gone"
# From, to: the verbs that do it, those of clients first.
ARROWS: dict[tuple[str, str], tuple[str, ...]] = {
    (NEW, "delayed"): ("schedule",),
    (NEW, "dead"): ("quarantine",),
    ("delayed", "delayed"): ("reschedule",),
    ("delayed", "in_flight"): ("claim",),
    ("delayed", GONE): ("cancel",),
    ("in_flight", "delayed"): ("reschedule", "retry", "reclaim"),
    ("in_flight", "parked"): ("park", "offer"),
    ("in_flight", "dead"): ("bury",),
    ("in_flight", GONE): ("cancel", "settle"),
    ("parked", "delayed"): ("reschedule", "receive", "unpark"),
    ("parked", GONE): ("cancel",),
    ("dead", "delayed"): ("kick",),
    ("dead", GONE): ("cancel", "discard", "trim"),
}
_NOTES = {
    NEW: "",
    "delayed": "waits for its time",
    "in_flight": "on a wheel, or with the broker",
    "parked": "waits for broker or consumer",
    "dead": "given up, with a reason",
    GONE: "delivered, or not wanted",
}
# The middle and the width of each box.
_PLACES = {
    NEW: (70, 190, 110),
    "delayed": (300, 190, 190),
    "in_flight": (690, 190, 190),
    "parked": (495, 50, 190),
    "dead": (495, 310, 190),
    GONE: (495, 430, 590),
}
_HEIGHT = 46
# How an arrow goes, and where its words are.
_WAYS: dict[tuple[str, str], tuple[str, tuple[float, float]]] = {
    (NEW, "delayed"): ("M125 190L203 190", (164, 180)),
    (NEW, "dead"): ("M70 213C70 300 200 310 398 310", (150, 290)),
    ("delayed", "delayed"): ("M230 167C210 110 300 110 280 165", (240, 112)),
    ("delayed", "in_flight"): ("M395 182L593 182", (495, 174)),
    ("delayed", GONE): ("M250 213L250 405", (250, 370)),
    ("in_flight", "delayed"): ("M595 198L397 198", (495, 214)),
    ("in_flight", "parked"): ("M670 167Q640 100 592 70", (650, 110)),
    ("in_flight", "dead"): ("M670 213Q640 270 592 298", (648, 258)),
    ("in_flight", GONE): ("M740 213L740 405", (740, 320)),
    ("parked", "delayed"): ("M400 70Q350 100 325 165", (392, 128)),
    ("parked", GONE): ("M590 40C960 40 880 430 792 430", (840, 120)),
    ("dead", "delayed"): ("M400 298Q350 270 325 215", (348, 262)),
    ("dead", GONE): ("M495 333L495 405", (495, 374)),
}


def drawn() -> str:
    """The whole picture as SVG text."""
    boxes = [
        Box(name, x, y, width, _HEIGHT, _fill(name), _NOTES[name])
        for name, (x, y, width) in _PLACES.items()
    ]
    lines = [f'<path d="{_WAYS[way][0]}"/>' for way in ARROWS]
    words = [text(*_WAYS[way][1], ", ".join(verbs), "label") for way, verbs in ARROWS.items()]
    parts = [*lines, *(box.drawn() for box in boxes), *words]
    return picture(890, 470, "The states of a message", parts)


def _fill(name: str) -> str:
    return "#f6f8fa" if name in (NEW, GONE) else "#ddf4ff"


if __name__ == "__main__":
    PICTURE.write_text(drawn())
