"""A failing test prints a screen at most; all that it has to say is in a file.

One failure that printed half a million lines would hide every other.
"""

from __future__ import annotations

import re
from collections.abc import Generator
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[2] / ".failures"
MOST_LINES, MOST_COLUMNS = 40, 200
MOST_LINES_PRINTED = 10  # of each section that the test printed or logged


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport]:
    """Cut what a failed test says, and keep the whole in `.failures/`."""
    report = yield
    if report.failed:
        said, sections = str(report.longrepr), list(report.sections)
        kept = _keep(f"{report.nodeid}.{report.when}", [said, *(": ".join(s) for s in sections)])
        if _cut(said, MOST_LINES) != said.rstrip("\n"):
            crash = getattr(report.longrepr, "reprcrash", None)
            first = str(getattr(crash, "message", "")).partition("\n")[0][:MOST_COLUMNS]
            report.longrepr = "\n".join([first, _cut(said, MOST_LINES), f"The whole: {kept}"])
        report.sections = [(name, _cut(text, MOST_LINES_PRINTED)) for name, text in sections]
    return report


def _cut(text: str, most: int) -> str:
    """The first quarter and the end: where it began, and what it found."""
    lines = [line[:MOST_COLUMNS] for line in text.splitlines()]
    if len(lines) <= most:
        return "\n".join(lines)
    head, tail = lines[: most // 4], lines[len(lines) - (most - most // 4) :]
    return "\n".join([*head, f"... {len(lines) - most} lines ...", *tail])


def _keep(name: str, texts: list[str]) -> Path:
    FOLDER.mkdir(exist_ok=True)
    path = FOLDER / (re.sub(r"[^\w.-]+", "_", name)[-150:] + ".txt")
    path.write_text("\n\n".join(texts), errors="replace")
    return path
