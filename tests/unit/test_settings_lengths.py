"""Texts, names and lists that are too long: refused by their length, in a short line, cheaply."""

from __future__ import annotations

import time
from contextlib import suppress
from typing import Any

import pytest

from delaybridge.errors import ConfigError
from delaybridge.operate.terminal.failure import Failure
from delaybridge.operate.terminal.invocation import Invocation
from delaybridge.operate.terminal.output import Output
from delaybridge.settings.names import BROKERS, KeyPath, fields_of
from delaybridge.settings.settings import Settings
from tests.rigs.hostile import HUGE_NUMBER
from tests.rigs.settings_file import load, refusal

pytestmark = pytest.mark.usefixtures("elsewhere")

PATHS = [path if path != BROKERS else (*BROKERS, "eu") for path, *_ in fields_of(Settings)]
SECTIONS = sorted({path[:-1] for path in PATHS})
LIKE = ["a", "9", "[", "a,", "1-", "redis://h:", "amqp://h?a&"]
MANY = 100_000  # characters; more than any setting takes


def section_of(section: KeyPath, value: object) -> dict[str, Any]:
    """The flags that give all settings of a section this value."""
    values = {path[-1]: value for path in PATHS if path[:-1] == section}
    return {section[0]: values} if section else values


def cost_s(section: KeyPath, characters: int) -> float:
    """CPU time of reading such texts, the best of three."""
    costs = []
    for _ in range(3):
        began_s = time.process_time()
        for like in LIKE:
            with suppress(ConfigError):
                load(flags=section_of(section, (like * characters)[:characters]))
        costs.append(time.process_time() - began_s)
    return min(costs)


@pytest.mark.parametrize("section", SECTIONS, ids=".".join)
def test_a_text_that_is_too_long_is_refused_by_its_length(section: KeyPath) -> None:
    wanted = [".".join(path) for path in PATHS if path[:-1] == section]
    for like in LIKE:
        lines = refusal(flags=section_of(section, (like * MANY)[:MANY]))
        says = ": got a text of 100,000 characters; allowed: "
        assert [line.partition(says)[0].partition(": ")[2] for line in lines] == wanted
        assert max(map(len, lines)) < 600
    assert cost_s(section, 16_000) < 3 * cost_s(section, 8000)


@pytest.mark.parametrize("section", SECTIONS, ids=".".join)
def test_a_number_or_a_list_that_is_too_long_is_refused_in_a_short_line(section: KeyPath) -> None:
    for value in (HUGE_NUMBER, ["a"] * MANY, [HUGE_NUMBER], {"a" * MANY: 1}):
        assert max(map(len, refusal(flags=section_of(section, value)))) < 600


def test_a_name_that_is_too_long_is_refused_and_cut() -> None:
    long = "k" * MANY
    for given in (
        {"text": f"{long} = 1\n"},
        {"text": f"[scan]\n{long} = 1\n"},
        {"text": f"[brokers]\n{long} = 'amqp://h'\n"},
        {"env": {f"DELAYBRIDGE_{long.upper()}": "1"}},
        {"env": {f"DELAYBRIDGE_BROKERS__{long.upper()}": "amqp://h"}},
        {"env": {f"DELAYBRIDGE_SCAN__{long.upper()}": "1"}},
    ):
        (line,) = refusal(**given)
        assert len(line) < 600


@pytest.mark.parametrize("flags", [["a" * MANY], [f"{'a' * MANY}=amqp://h"] * 2])
def test_a_broker_s_flag_that_is_too_long_is_refused_and_cut(flags: list[str]) -> None:
    with pytest.raises(Failure) as refused:
        Invocation(Output(False, False), brokers=tuple(flags)).load({})
    assert len(str(refused.value)) < 600


def test_of_many_faults_the_first_hundred_are_explained() -> None:
    lines = refusal("\n".join(f"k{number} = 1" for number in range(5000)))
    assert (len(lines), lines[-1]) == (101, "and 4,900 more")
    (line,) = refusal("[brokers]\n" + "\n".join(f"k{n} = 'x://h'" for n in range(1001)))
    assert line.endswith("allowed: up to 1000 brokers")


def test_a_thousand_routes_one_after_another_are_accepted() -> None:
    """Each step of each message's way is looked up, not searched for."""
    routes = [f"e{n}.delay=e{n + 1}.delay" for n in range(1000)]
    given = {"brokers": {"rabbitmq": "amqp://h"}, "ingest": {"exchanges": routes}}
    assert len(load(flags=given).ingest.exchanges) == 1000
    routes[-1] = "e999.delay=e0.delay"
    (line,) = refusal(flags=given)
    assert "messages would loop forever" in line


def test_a_url_may_hold_a_certificate() -> None:
    url = f"kafkas://h?ssl.ca.pem={'x' * 60_000}"
    assert load(env={"DELAYBRIDGE_BROKERS__KAFKA": url}).brokers["kafka"] == url
