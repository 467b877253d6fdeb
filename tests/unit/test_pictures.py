"""The pictures of the docs are those that their programs draw."""

from __future__ import annotations

from tools import states


def test_the_picture_of_the_states_is_drawn_from_the_table() -> None:
    assert states.PICTURE.read_text() == states.drawn(), "python -m tools.states"
