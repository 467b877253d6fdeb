"""The constants that the scripts and Python both state are the same."""

from __future__ import annotations

import re

import pytest

from delaybridge.message import Answer
from delaybridge.store.protocol.record import BACKDATED
from delaybridge.store.protocol.replies import ANSWERS
from delaybridge.store.protocol.scripts import scripts

_CONSTANTS = re.compile(r"^local ([A-Z_]+(?:, [A-Z_]+)*) = ([0-9]+(?:, [0-9]+)*)\b", re.MULTILINE)
NUMBERS = {answer.name: number for number, answer in ANSWERS.items()}


def constants_of(verb: str) -> dict[str, int]:
    return {
        name: int(number)
        for names, numbers in _CONSTANTS.findall(scripts()[verb][0])
        for name, number in zip(names.split(", "), numbers.split(", "), strict=True)
    }


def test_every_answer_has_a_number() -> None:
    assert NUMBERS.keys() == set(Answer.__members__)


@pytest.mark.parametrize("verb", sorted(scripts()))
def test_a_script_gives_each_answer_its_number(verb: str) -> None:
    stated = {name: n for name, n in constants_of(verb).items() if name in NUMBERS}
    assert stated == {name: NUMBERS[name] for name in stated}


@pytest.mark.parametrize("verb", ["schedule", "reschedule"])
def test_a_script_writes_the_head_version_that_python_reads(verb: str) -> None:
    assert constants_of(verb)["BACKDATED"] == BACKDATED


def test_all_scripts_keep_calls_for_the_same_ten_minutes() -> None:
    kept = {verb: constants_of(verb).get("KEEP_CALLS_MS") for verb in scripts()}
    assert {ms for ms in kept.values() if ms is not None} == {10 * 60 * 1000}
