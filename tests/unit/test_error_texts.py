"""No error text of Redis decides anything: engines word them differently; code words they share."""

from __future__ import annotations

import re
from pathlib import Path

PACKAGE = Path(__file__).parents[2] / "delaybridge"
ROOMS = ("store", "operate/parts", "operate/doctor", "dedup", "publishers/redis_streams")
# A text that is looked for in an error's. A code word, in capitals, is the same on each engine.
READ = re.compile(
    r"""(["'])((?:(?!\1).)+)\1 (?:not )?in (?:text\b|str\((?:error|exc|reply|waited)\))"""
)
ALLOWED = {
    # What to name in the message for people; without the words it is less exact, not wrong.
    "store/redis/sentinels.py": {"unknown command", "No such master", "cluster support disabled"},
}


def test_only_code_words_are_read_and_where_a_text_is_it_only_words_a_message() -> None:
    found: dict[str, set[str]] = {}
    for path in (path for room in ROOMS for path in (PACKAGE / room).rglob("*.py")):
        texts = {match[2] for match in READ.finditer(path.read_text())}
        if read := {text for text in texts if re.search("[a-z]{2}", text)}:
            found[path.relative_to(PACKAGE).as_posix()] = read
    assert found == ALLOWED


def test_the_pattern_finds_what_it_is_for() -> None:
    assert READ.search('if "unknown command" in str(error):')
    assert READ.search("if 'appendonly' not in text:")
