"""Golden pages: what commands print, word for word, as a transcript that a test plays again.

A page is read line by line:

    # what follows is about ...
    @ an act of the test, by its name
    $ NAME=value delaybridge schedule kafka:t - --in 1h <<< body
      a line on stdout
    ! a line on stderr  [exit code, and the error's code]

An error is asked for as JSON, too: its code is shown, and its field and words must be the same.
`DELAYBRIDGE_TEST_UPDATE_GOLDEN=1 pytest ...` writes what is printed now into the pages.
"""

from __future__ import annotations

import difflib
import json
import os
import re
import shlex
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest

from delaybridge.operate.terminal.failure import Exit
from tests.rigs.command_line import Result, Run

SECRET = "S3CR3T-CANARY"  # the password in pages; no command prints it
# Nothing was done: it may run again.
_UNCHANGED = (Exit.REFUSED, Exit.NOT_FOUND, Exit.CONFLICT, Exit.UNREACHABLE)
DURATION = r"\d+(\.\d+)?(ms|s|m|h|d)(\d+(s|m|h|d))*"
# What differs from run to run. Times in 2035 are a page's own.
_VARIABLE = [
    (r"20(?!35)\d\d-\d\d-\d\dT[\d:]+\.\d+Z", "TIME"),
    (r"\b[A-Z][a-z]{2} 20(?!35)\d\d-\d\d-\d\d \d\d:\d\d", "DAY"),
    (rf"(?<!-)\bin {DURATION}(?=[ :,;.]|$)|\b{DURATION} ago\b", "WAIT"),
    (rf"(?<!-)\bfor {DURATION}(?=[ :,;.]|$)", "for WAIT"),
    (rf"\b{DURATION} (old|overdue)\b", r"WAIT \5"),
    (r"\b\d{5}d(\d+h)?\b", "DAYS"),
    (r"127\.0\.0\.1:(?!1\b)\d+", "127.0.0.1:PORT"),
    (r"\b[0-9a-v]{26}\b", "ID"),
    (r"/run-[0-9a-f]{8}\b", "/run-ID"),
    (r"redis-cli -h 127\.0\.0\.1 -p \d+", "redis-cli -h 127.0.0.1 -p PORT"),
]


def pages(folder: Path) -> list[Path]:
    found = sorted(folder.glob("golden/*.txt"))
    assert found, folder
    return found


def replay(
    page: Path,
    run: Run,
    *,
    acts: Mapping[str, Callable[[], object]] | None = None,
    names: Mapping[str, str] | None = None,
    skipped: str = r"(?!)",
) -> None:
    """Play the page, and compare.

    acts: what `@` does. names: what the page writes for a text that differs from run to run.
    skipped: a pattern of lines that depend on the server, and are not on the page.
    """
    lines = page.read_text().splitlines()
    played: list[str] = []
    for line in lines:
        if line.startswith(("  ", "! ")):
            continue
        played.append(line)
        if line.startswith("@ "):
            (acts or {})[line[2:]]()
        elif line.startswith("$ "):
            printed = [_without_variables(each, names or {}) for each in _played(line[2:], run)]
            assert SECRET not in "".join(printed), line
            played += [each for each in printed if not re.match(skipped, each)]
    compare(page, played)


def compare(page: Path, printed: list[str]) -> None:
    """The page is what is printed now, or becomes it."""
    if os.environ.get("DELAYBRIDGE_TEST_UPDATE_GOLDEN"):
        page.write_text("\n".join(printed) + "\n")
    kept = page.read_text().splitlines()
    difference = difflib.unified_diff(kept, printed, page.name, "now", lineterm="", n=1)
    assert printed == kept, "\n".join(difference)


def _played(line: str, run: Run) -> Iterator[str]:
    words, stdin = shlex.split(line), b""
    if words[-2:-1] == ["<<<"]:
        words, stdin = words[:-2], words[-1].encode()
    program = words.index("delaybridge")
    with pytest.MonkeyPatch.context() as environment:
        for variable in words[:program]:
            environment.setenv(*variable.split("=", 1))
        got = run(*words[program + 1 :], stdin=stdin)
        tag = str(int(got.code)) if got.code else ""
        if got.code in _UNCHANGED and got.err.startswith("error: ") and "--json" not in words:
            tag += f" {_code_of(run('--json', *words[program + 1 :], stdin=stdin), got)}"
    printed = [f"  {each}" for each in got.out.splitlines() if each]
    printed += [f"! {each}" for each in got.err.splitlines() if each]
    if tag:
        printed = [*(printed or ["!"])[:-1], f"{(printed or ['!'])[-1]}  [{tag}]"]
    yield from printed


def _code_of(in_json: Result, in_text: Result) -> str:
    """The code of an error; its other fields are those of the text."""
    error = json.loads(in_json.err)["error"]
    said = error.get("messages", [error["message"]])
    assert in_text.err.splitlines() == [f"error: {each}" for each in said]
    assert all(each.startswith(f"{error.get('field', '')}: ".lstrip(": ")) for each in said)
    assert (in_json.code, in_text.out, in_json.out) == (in_text.code, "", "")
    return str(error["code"])


def _without_variables(line: str, names: Mapping[str, str]) -> str:
    """Columns stand as far apart as what is in them allows, so that their width says nothing."""
    for text, name in names.items():
        line = line.replace(text, name)
    for pattern, name in _VARIABLE:
        line = re.sub(pattern, name, line)
    return line[:2] + re.sub(r"(?<=\S) {2,}", "  ", line[2:])
