"""The documentation as a site: every page is listed, no link is broken, all is on one host."""

from __future__ import annotations

import re
from pathlib import Path
from unittest.mock import Mock

import pytest
from markdown_it import MarkdownIt

from tests.rigs.fleet import ROOT
from tests.rigs.pages import PAGES
from tests.rigs.site_build import build
from tools import site

MOST_PAGES, MOST_WORDS = 45, 66_700
FETCHED = re.compile(
    r"<(?:script|link|img|iframe|source)\b[^>]*?\b(?:src|href)=\"?(https?:[^\"> ]+)"
)
FETCHED_BY_STYLE = re.compile(r"(?:url\(|@import )[\"']?(https?:[^\"')]+)")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the site."""
    folder = tmp_path_factory.mktemp("site")
    built = build(folder)  # --strict: a broken link ends it
    assert built.returncode == 0, built.stderr
    return folder


def counts(html: str) -> dict[str, int]:
    """How many there are of each part of a text."""
    parts = ("blockquote", "h1", "h2", "h3", "li", "ol", "p", "pre", "tr", "ul")
    return {part: len(re.findall(rf"<{part}[ >]", html)) for part in parts}


def test_the_site_shows_a_page_as_the_repository_does(folder: Path) -> None:
    """mkdocs reads an older Markdown: a list right behind another one is a part of it there."""
    reader = MarkdownIt("commonmark").enable("table")
    for page in (ROOT / "docs").glob("*.md"):
        if page.name not in ("README.md", "settings.md"):  # the site has more of them
            built = (folder / f"{page.stem}.html").read_text()
            shown = built.partition("<article")[2].partition("</article>")[0]
            assert counts(shown) == counts(reader.render(page.read_text())), page.name


def test_the_site_has_each_page_and_loads_nothing_from_another_host(folder: Path) -> None:
    pages = {page.name: page.read_text() for page in folder.glob("*.html")}
    listed = [page for group in site.groups().values() for page in group.values()]
    wanted = {page.removesuffix(".md") + ".html" for page in listed} | {"index.html", "404.html"}
    assert pages.keys() == wanted
    for found in (
        'src="demo.svg"',
        'href="celery.html"',
        "blob/main/CHANGELOG.md",
    ):
        assert found in pages["index.html"]
    assert {name: found for name, text in pages.items() if (found := FETCHED.findall(text))} == {}
    styles = [path.read_text() for path in folder.rglob("*.css")]
    assert styles
    assert [found for text in styles for found in FETCHED_BY_STYLE.findall(text)] == []


def test_the_index_lists_what_the_site_has_in_groups_and_it_is_short() -> None:
    groups = site.groups()
    assert [*groups] == ["Tutorials", "How-to guides", "Reference", "Explanation"]
    pages = [page for pages in groups.values() for page in pages.values()]
    own = {path.name for path in (ROOT / "docs").glob("*.md")} - {"README.md"}
    assert sorted(pages) == sorted({*own, *site.GENERATED})
    assert len(pages) + 1 <= MOST_PAGES
    assert sum(len((ROOT / page).read_text().split()) for page in PAGES) < MOST_WORDS


def test_the_help_of_a_command_is_a_link_and_a_file_elsewhere_one_to_the_repository() -> None:
    page, config = Mock(**{"file.src_uri": "a.md"}), Mock(extra={"repository": "https://host/repo"})
    text = (
        "`delaybridge message ls --help`, [all](../config/delaybridge.toml), [x](../x), [b](b.md#c)"
    )
    assert site.on_page_markdown(text, page, config, Mock()) == (
        "[`delaybridge message ls --help`](cli.md#delaybridge-message-ls), "
        "[all](settings.md#every-setting), [x](https://host/repo/blob/main/x), [b](b.md#c)"
    )


def test_the_pages_that_the_code_names_exist() -> None:
    """An error or a comment that leads to a page which is gone leads nowhere."""
    kinds = {".json", ".lua", ".py", ".sql", ".toml", ".yaml", ".yml"}
    files = [
        path
        for folder in ("bench", "config", "delaybridge", "deploy", "lua", "tests", "tools")
        for path in (ROOT / folder).rglob("*")
        if path.suffix in kinds
    ]
    named = {
        (str(path.relative_to(ROOT)), page)
        for path in files
        for page in re.findall(r"\bdocs/[a-z-]+\.md\b", path.read_text())
    }
    assert len(named) > 50
    assert {(file, page) for file, page in named if not (ROOT / page).exists()} == set()
