"""The pictures of the docs are what their programs draw today."""

from __future__ import annotations

from tools import rooms, states


def test_the_picture_of_the_states_is_drawn_from_the_table() -> None:
    assert states.PICTURE.read_text() == states.drawn(), "python -m tools.states"


def test_the_picture_of_the_rooms_is_drawn_from_the_imports() -> None:
    assert rooms.PICTURE.read_text() == rooms.drawn(), "python -m tools.rooms"
