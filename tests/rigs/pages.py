"""The programs in the pages of docs/, which tests run as they stand there."""

from __future__ import annotations

import re

from tests.rigs.fleet import ROOT


def program(page: str, title: str, changes: dict[str, str]) -> str:
    """The first program below a title of docs/PAGE, with other names of servers and tables."""
    text = (ROOT / "docs" / page).read_text()
    found = text.partition(f"## {title}\n")[2].split("```python\n")[1].split("```")[0]
    for old, new in changes.items():
        assert old in found
        found = found.replace(old, new)
    return found


def blocks(page: str, language: str = "python", title: str = "") -> list[str]:
    """The blocks of a page (`README.md`, `docs/...`) in a language; below a title: of it alone."""
    text = (ROOT / page).read_text()
    if title:
        text = text.split(f"\n## {title}\n")[1].split("\n## ")[0]
    return re.findall(rf"```{language}\n(.*?)```", text, re.DOTALL)
