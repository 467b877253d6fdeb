"""The pictures of the docs are what their programs draw today."""

from __future__ import annotations

import re

from tests.rigs.fleet import ROOT
from tests.rigs.pages import PAGES
from tools import rooms, states


def test_the_picture_of_the_states_is_drawn_from_the_table() -> None:
    assert states.PICTURE.read_text() == states.drawn(), "python -m tools.states"


def test_the_picture_of_the_rooms_is_drawn_from_the_imports() -> None:
    assert rooms.PICTURE.read_text() == rooms.drawn(), "python -m tools.rooms"


def test_each_picture_is_shown_by_a_page() -> None:
    text = "".join((ROOT / page).read_text() for page in PAGES)
    shown = {*re.findall(r"\bimages/([\w-]+\.\w+)", text)}
    assert {path.name for path in (ROOT / "docs" / "images").iterdir()} == shown
