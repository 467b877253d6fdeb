"""Each script's header is true: keys, arguments and writes are those that its caller uses."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

from delaybridge.ledger.comparing import healing, reinstating
from delaybridge.recurring import stored
from delaybridge.store.messages import pulling
from delaybridge.store.namespace import orphans, registry
from delaybridge.store.protocol import moves
from delaybridge.store.protocol.bucket import Bucket
from delaybridge.store.protocol.keys import SCRIPT_KEYS
from delaybridge.store.protocol.scripts import scripts
from tests.rigs.sample_calls import BUCKET, SAMPLES

ROOT = Path(__file__).parents[2]
FILES = {path.stem: path for path in (ROOT / "lua").glob("*.lua")}
VERBS = sorted(FILES)
KEYS_PAGE = (ROOT / "docs" / "keys.md").read_text()

DECLARED = re.compile(r"^-- (KEYS|ARGV)\[(\d+)(\+?)\]\s+(\w+)\s*(.*)$")
STORES = "redis.pcall('HSETNX', KEYS[1], id, "
HARMLESS = re.compile(  # it writes nothing, only counts what was done, or `schedule` says as much
    re.escape(STORES) + r"|redis\.pcall\((?:'HDEL', KEYS\[\d\], ''\)|'(?:ZCARD|HLEN)'|"
    r"'HINCRBY', KEYS\[\d\], '\w+ed', |"
    r"'(?:ZADD', KEYS\[1\], 'XX', 0|ZMSCORE', KEYS\[1\]), ARGV\[1\]\))"
)
CALL = re.compile(r"redis\.call\('(\w+)',?\s*([^,)]*)")
KEYLESS = {"TIME", "PUBLISH", "SPUBLISH"}
FORBIDDEN = {"KEYS", "SCAN", "SMEMBERS", "HGETALL", "HKEYS", "HVALS", "EVAL", "FLUSHALL", "SELECT"}
EACH = {"two": 2, "three": 3, "four": 4, "five": 5, "six": 6, "eight": 8}


@dataclass(frozen=True)
class Declared:
    """One KEYS or ARGV line of a header. more: it covers all that follow, too."""

    number: int
    more: bool
    name: str
    text: str


@cache
def header(verb: str) -> tuple[str, ...]:
    """The comment at the beginning of a script, line by line."""
    lines = FILES[verb].read_text().splitlines()
    end = next(i for i, line in enumerate(lines) if not line.startswith("--"))
    return tuple(lines[:end])


def code(verb: str) -> str:
    lines = FILES[verb].read_text().splitlines()
    return "\n".join(re.sub(r"(^|\s)--.*$", "", line) for line in lines)


def declared(verb: str, kind: str) -> list[Declared]:
    found = (DECLARED.match(line) for line in header(verb))
    return [
        Declared(int(m[2]), m[3] == "+", m[4], m[5])
        for m in found
        if m is not None and m[1] == kind
    ]


def key_numbers(operand: str) -> set[int]:
    """The key that a command's first operand is, written as `KEYS[n]`."""
    return {int(number) for number in re.findall(r"^KEYS\[(\d+)\]$", operand)}


def each(verb: str, last: Declared, messages: int) -> int:
    """How many arguments that number of messages takes, by the header."""
    if verb == "schedule":  # id and entry of each; all are due at the same time
        return 2 * messages + 2 * bool(messages)
    if last.name == "groups":
        return messages * (2 + messages)
    if last.name in ("ids", "names"):
        return messages
    return messages * EACH[last.text.split()[0]]


def test_the_scripts_are_the_verbs() -> None:
    assert scripts().keys() == FILES.keys() == SCRIPT_KEYS.keys() == SAMPLES.keys()


@pytest.mark.parametrize("verb", VERBS)
def test_each_script_has_the_name_of_the_method_that_calls_it(verb: str) -> None:
    homes = (Bucket, registry, stored, pulling, healing, orphans, reinstating, moves)
    assert any(callable(getattr(home, verb, None)) for home in homes)
    assert SAMPLES[verb](1).name == verb


@pytest.mark.parametrize("verb", VERBS)
def test_a_header_describes_the_script_in_one_sentence(verb: str) -> None:
    lines = header(verb)
    sentence = " ".join(line.removeprefix("--").strip() for line in lines[: lines.index("--")])
    assert sentence[0].isupper() and sentence.endswith(".")
    assert not re.search(r"[.?!] ", sentence)


@pytest.mark.parametrize("verb", VERBS)
def test_a_header_then_lists_keys_arguments_answer_and_cost(verb: str) -> None:
    body = header(verb)[header(verb).index("--") + 1 :]
    begins = [line[3:7] for line in body if not line.startswith("--   ")]
    assert begins == sorted(begins, key=["KEYS", "ARGV", "retu", "cost"].index)
    assert set(begins) == {"KEYS", "ARGV", "retu", "cost"}
    assert begins.count("retu") == begins.count("cost") == 1


@pytest.mark.parametrize("verb", VERBS)
def test_the_keys_are_those_that_the_caller_passes(verb: str) -> None:
    keys = declared(verb, "KEYS")
    assert [key.number for key in keys] == list(range(1, len(keys) + 1))
    assert tuple(key.name for key in keys) == SCRIPT_KEYS[verb]
    passed = [name.rpartition(":")[2] for name in SAMPLES[verb](1).keys]
    assert passed == ["parked" if key.name == "listed" else key.name for key in keys]


@pytest.mark.parametrize("verb", VERBS)
def test_the_keys_have_the_types_that_the_page_of_keys_gives(verb: str) -> None:
    types = dict(re.findall(r"^\| `(\w+)` \| (\w+)", KEYS_PAGE, re.M)) | {"listed": "zset"}
    for key in declared(verb, "KEYS"):
        assert re.match(r"\w+", key.text)[0] == types[key.name]  # type: ignore[index]


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize("messages", [0, 1, 3])
def test_a_header_has_as_many_arguments_as_the_caller_passes(verb: str, messages: int) -> None:
    args = declared(verb, "ARGV")
    assert [arg.number for arg in args] == list(range(1, len(args) + 1))
    assert not any(arg.more for arg in args[:-1])
    expected = len(args)
    if args[-1].more:
        expected += each(verb, args[-1], messages) - 1
    assert len(SAMPLES[verb](messages).args) == expected


def test_settling_at_most_once_is_the_same_call() -> None:
    once, often = (
        settle("w:1:1", 1000, [(1, ["a", "b"])]) for settle in (BUCKET.settle_once, BUCKET.settle)
    )
    assert (once.name, once.keys, len(once.args)) == (often.name, often.keys, len(often.args))


@pytest.mark.parametrize("verb", VERBS)
def test_every_key_and_argument_declared_is_used_and_no_other(verb: str) -> None:
    text = code(verb)
    for kind in ("KEYS", "ARGV"):
        known = declared(verb, kind)
        used = {int(number) for number in re.findall(rf"{kind}\[(\d+)\]", text)}
        fixed = {item.number for item in known if not item.more}
        assert used <= {item.number for item in known}
        assert fixed <= used


@pytest.mark.parametrize("verb", VERBS)
def test_a_script_touches_declared_keys_only_and_never_reads_a_whole_key(verb: str) -> None:
    text = code(verb)
    assert text.count("redis.call(") == len(CALL.findall(text))
    assert text.count("redis.pcall") == len(HARMLESS.findall(text)), "no error is hidden"
    for command, operand in CALL.findall(text):
        assert command not in FORBIDDEN
        assert command in KEYLESS or key_numbers(operand), f"{command} {operand}"


@pytest.mark.parametrize("verb", VERBS)
def test_a_key_stands_literally_where_a_command_takes_it(verb: str) -> None:
    # Tair's proxy refuses scripts with a key in a variable or an expression.
    literal = re.findall(r"redis\.p?call\('\w+'((?:, KEYS\[\d+\])+)[,)]", code(verb))
    assert "".join(literal).count("KEYS") == code(verb).count("KEYS")


@pytest.mark.parametrize("verb", VERBS)
def test_no_script_has_a_first_line_that_redis_62_cannot_read(verb: str) -> None:
    # `#!lua` would also make a full Redis refuse the scripts that drain it.
    assert not FILES[verb].read_text().startswith("#!")
