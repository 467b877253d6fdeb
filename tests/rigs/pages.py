"""The code in the pages of docs/, which tests run as it stands there, and which test runs what."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass

from tests.rigs.fleet import ROOT

PAGES = [
    *("README.md", "CONTRIBUTING.md"),
    *sorted(f"docs/{path.name}" for path in (ROOT / "docs").glob("*.md")),
]
SHOWN = {"text"}  # output, or a drawing
READ = {"ini", "json", "toml", "yaml"}  # parsed
# Every other language runs. `sh`, `console` and `python` do so in tests/acceptance/test_pages.py,
# page by page, but for those that a test runs in its own way: so many, and in which file.
RECIPES, TUTORIALS = "tests/acceptance/test_recipes.py", "tests/acceptance/test_tutorials.py"
HTTP = "tests/acceptance/test_http_page.py"
RUN_BY = {
    ("README.md", "sh"): (4, "tests/acceptance/test_readme.py"),
    ("docs/celery.md", "python"): (1, TUTORIALS),
    ("docs/celery.md", "sh"): (4, TUTORIALS),
    ("docs/destinations.md", "python"): (1, "tests/integration/test_publish_http.py"),
    ("docs/effectively-once.md", "python"): (2, "tests/integration/test_dedup.py"),
    ("docs/http.md", "go"): (1, HTTP),
    ("docs/http.md", "java"): (1, HTTP),
    ("docs/http.md", "js"): (1, HTTP),
    ("docs/http.md", "python"): (4, "tests/integration/test_mounted_page.py"),
    ("docs/http.md", "sh"): (9, HTTP),
    ("docs/intercept.md", "python"): (5, "tests/rigs/site.py"),
    ("docs/leaving-the-plugin.md", "sh"): (4, TUTORIALS),
    ("docs/outbox.md", "python"): (2, "tests/integration/test_outbox.py"),
    ("docs/python.md", "python"): (6, TUTORIALS),
    ("docs/recipes.md", "go"): (1, RECIPES),
    ("docs/recipes.md", "java"): (1, RECIPES),
    ("docs/recipes.md", "js"): (1, RECIPES),
    ("docs/recipes.md", "python"): (11, RECIPES),
    ("docs/recipes.md", "sh"): (21, RECIPES),
    ("docs/security.md", "redis"): (7, "tests/integration/test_rights.py"),
    ("docs/security.md", "sql"): (1, "tests/integration/test_ledger.py"),
    ("docs/testing.md", "python"): (6, "tests/integration/test_testing.py"),
    ("docs/tracing.md", "python"): (1, "tests/integration/test_tracing_processes.py"),
    ("docs/tutorial-kafka.md", "sh"): (7, TUTORIALS),
    ("docs/tutorial-rabbitmq.md", "sh"): (8, TUTORIALS),
}
# So many no test runs, and why.
_PART = "part of a program; those of tests/clients are whole"
NOT_RUN = {
    ("docs/http.md", "nginx"): (1, "no nginx is installed; its lines are those of nginx's manual"),
    ("docs/leaving-the-plugin.md", "csharp"): (1, _PART),
    ("docs/leaving-the-plugin.md", "java"): (2, _PART),
}
_BLOCK = re.compile(
    r"^(?P<margin> *)```(?P<language>[\w-]*)\n(?P<code>.*?)^(?P=margin)```$",
    re.DOTALL | re.MULTILINE,
)
_INDENTED = re.compile(r"\n\n((?: {4}.*\n|\n)* {4}.*\n)")
_ENDS = "();<>|&\n"  # of a command
_HERE = re.compile(r"(<<-?'?(\w+)'?.*?\n).*?^\2$", re.DOTALL | re.MULTILINE)
COMMENT = re.compile(r"(?<!\S)#.*$", re.MULTILINE)
_SET = re.compile(r"[A-Z_]+=")  # a variable of one command
_FILE = re.compile(r"`([\w.-]+\.\w+)`[^`\n]*:\n\n$")


@dataclass(frozen=True)
class Block:
    """A fenced block of a page. file: the name that the line above gives it, if it does."""

    page: str
    language: str
    code: str
    file: str = ""

    def __str__(self) -> str:
        first = self.code.strip().partition("\n")[0]
        return f"{self.page} [{self.language}] {first[:60]}"


def every_block(page: str) -> list[Block]:
    """The fenced blocks of a page, from top to bottom."""
    text = (ROOT / page).read_text()
    return [
        Block(page, found["language"], _without(found["margin"], found["code"]), _name(text, found))
        for found in _BLOCK.finditer(text)
    ]


def _without(margin: str, code: str) -> str:
    return re.sub(rf"^{margin}", "", code, flags=re.MULTILINE)


def _name(text: str, block: re.Match[str]) -> str:
    found = _FILE.search(text, 0, block.start())
    return found[1] if found else ""


def indented(page: str) -> list[str]:
    """The blocks of a page that are only indented, which the rule does not see."""
    text = _BLOCK.sub("", (ROOT / page).read_text())
    return [
        found[1]
        for found in _INDENTED.finditer(text)
        if not re.search(r"^(?:\d+\.|[-*]) .*(?:\n {2,}.*)*\n*$", text[: found.start()])
    ]


def calls(code: str) -> Iterator[list[str]]:
    """The arguments of each call of `delaybridge` in a shell's code."""
    plain = COMMENT.sub("", _HERE.sub(r"\1", code.replace("\\\n", " ")))
    lexer = shlex.shlex(plain, posix=True, punctuation_chars=_ENDS)
    lexer.commenters = ""
    lexer.whitespace, lexer.whitespace_split = " \t", True
    words: list[str] = []
    for word in [*lexer, ";"]:
        if not set(word) <= set(_ENDS):
            words.append(word)
            continue
        while words and (words[0] in ("$", "exec") or _SET.match(words[0])):
            words = words[1:]
        if words[:1] == ["delaybridge"]:
            yield words[1:]
        words = []


def commands_in_sentences(page: str) -> set[str]:
    """The arguments of `delaybridge` wherever a page names a command outside of its blocks."""
    return set(re.findall(r"`delaybridge ([^`]+)`", _BLOCK.sub("", (ROOT / page).read_text())))


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
