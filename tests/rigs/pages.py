"""The programs in the pages of docs/, which tests run as they stand there."""

from __future__ import annotations

from tests.rigs.fleet import ROOT


def program(page: str, title: str, changes: dict[str, str]) -> str:
    """The first program below a title of docs/PAGE, with other names of servers and tables."""
    text = (ROOT / "docs" / page).read_text()
    found = text.partition(f"## {title}\n")[2].split("```python\n")[1].split("```")[0]
    for old, new in changes.items():
        assert old in found
        found = found.replace(old, new)
    return found
