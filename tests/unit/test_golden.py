"""What commands print without a server, word for word: the pages in `golden/`."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.rigs.command_line import Run
from tests.rigs.golden import pages, replay


@pytest.mark.parametrize("page", pages(Path(__file__).parent), ids=lambda page: page.stem)
def test_commands_print_what_their_page_says(page: Path, run: Run) -> None:
    replay(page, run)
