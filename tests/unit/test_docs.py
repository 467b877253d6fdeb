"""The pages say what there is: links lead somewhere, every public name has its place."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import delaybridge
from delaybridge import AsyncClient, Client

ROOT = Path(__file__).parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")])
LINK = re.compile(r"\[[^\]]*\]\((?!https?:)([^)#]*)(?:#([^)]*))?\)")
INTERNAL = {
    "accept",
    "schedule_accepted",
    "kinds",
    "store",
}  # for the drop-in producers and the CLI


def anchors(page: Path) -> set[str]:
    titles = re.findall(r"^#+ (.*)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_link_leads_to_a_file_and_a_title(page: Path) -> None:
    for path, anchor in LINK.findall(page.read_text()):
        target = (page.parent / path) if path else page
        assert target.exists(), f"{page.name}: {path}"
        if anchor:
            assert anchor in anchors(target), f"{page.name}: {path}#{anchor}"


def test_every_page_is_reached_from_the_readme() -> None:
    reached = {path for path, _ in LINK.findall((ROOT / "README.md").read_text())}
    for page in (ROOT / "docs").glob("*.md"):
        assert f"docs/{page.name}" in reached or page.name == "settings.md"


@pytest.mark.parametrize("client", [Client, AsyncClient])
def test_the_python_page_names_every_public_method(client: type) -> None:
    page = (ROOT / "docs" / "python.md").read_text()
    methods = {name for name in vars(client) if not name.startswith("_")} - INTERNAL
    assert {name for name in methods if not re.search(rf"\b{name}\b", page)} == set()


def test_the_python_page_names_every_public_error() -> None:
    page = (ROOT / "docs" / "python.md").read_text()
    errors = {
        name
        for name in delaybridge.__all__
        if isinstance(made := getattr(delaybridge, name), type) and issubclass(made, Exception)
    }
    assert {name for name in errors if f"`{name}`" not in page} == set()
