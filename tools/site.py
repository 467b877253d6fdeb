"""What mkdocs asks while it builds the site: which pages there are, and where links out lead."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

from tools.reference import reference

ROOT = Path(__file__).parents[1]
INDEX, README = ROOT / "docs" / "README.md", ROOT / "README.md"
# Pages that no one writes: made at each build, and listed in a group of the index.
GENERATED: dict[str, tuple[str, str, Callable[[], str]]] = {
    "cli.md": ("Reference", "Commands", reference),
}
SAMPLE = ROOT / "config" / "delaybridge.toml"
_LINK = re.compile(r"^\| \[([^\]]+)\]\(([\w-]+\.md)\)", re.MULTILINE)
_LOCAL = re.compile(r"\]\((?!https?:|#)(docs/)?")
_OUT = re.compile(r"\]\(\.\./([^)]*)\)")
_HELP = re.compile(r"(?<!\[)`delaybridge ((?:[a-z-]+ )*)--help`(?!\])")


def groups() -> dict[str, dict[str, str]]:
    """The pages of each group of the index, by title: the site's navigation."""
    found = {}
    for section in INDEX.read_text().split("\n## ")[1:]:
        name = section.split("\n")[0].split(":")[0]
        pages = dict(_LINK.findall(section))
        pages |= {title: page for page, (group, title, _) in GENERATED.items() if group == name}
        found[name] = pages
    return {name: pages for name, pages in found.items() if pages}


def on_config(config: Any) -> Any:
    """Give the site the index's groups as its tabs."""
    tabs = [{name: [{t: p} for t, p in pages.items()]} for name, pages in groups().items()]
    config.nav = [{"Start": "README.md"}, *tabs]
    return config


def on_files(files: Files, config: Any) -> Files:
    """Add the pages that are generated."""
    for page, (_, _, made) in GENERATED.items():
        if (old := files.get_file_from_path(page)) is not None:
            files.remove(old)
        files.append(File.generated(config, page, content=made()))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Files) -> str:
    """Lead links out of docs/ to the repository, and the help of a command to its section.

    The first page is the README, and below it the index; that of the settings has them all.
    """
    if page.file.src_uri == INDEX.name:
        markdown = _of_docs(README.read_text()) + markdown[markdown.index("\n## ") :]
    elif page.file.src_uri == "settings.md":
        markdown += f"\n## Every setting\n\n```toml\n{SAMPLE.read_text()}```\n"
    markdown = markdown.replace("](../config/delaybridge.toml)", "](settings.md#every-setting)")
    markdown = _OUT.sub(rf"]({config.extra['repository']}/blob/main/\1)", markdown)
    return _HELP.sub(_to_section, markdown) if page.file.src_uri != "cli.md" else markdown


def _of_docs(readme: str) -> str:
    """The README, with links as they are in docs/."""
    return _LOCAL.sub(lambda found: f"]({found[1] or '../'}", readme).replace("](docs/", "](")


def _to_section(found: re.Match[str]) -> str:
    anchor = "-".join(["delaybridge", *found[1].split()])
    return f"[{found[0]}](cli.md#{anchor})"
