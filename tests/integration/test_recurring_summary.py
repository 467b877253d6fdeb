"""What `stats` and `health` count of recurring definitions is what the list of them shows."""

from __future__ import annotations

import json
import random
from itertools import product
from typing import Any

import pytest

from delaybridge.recurring import summary
from delaybridge.recurring.cron import cron_times
from delaybridge.recurring.definitions import Definitions
from delaybridge.recurring.summary import DefinitionCounts, count_definitions
from delaybridge.store.protocol import keys
from tests.rigs.timetable import MINUTE_MS, NOW_MS, Timetable

HOUR_MS, DAY_MS = 60 * MINUTE_MS, 1440 * MINUTE_MS
TIMES: tuple[dict[str, Any], ...] = (
    {},
    {"every_ms": DAY_MS},
    {"every_ms": HOUR_MS, "end_ms": NOW_MS + 90 * MINUTE_MS},
    {"every_ms": HOUR_MS, "missed": "skip"},
    {"every_ms": HOUR_MS, "missed": "all"},
    {"every_ms": HOUR_MS, "paused": True},
    {"cron": "30 9 * * MON-FRI", "tz": "Europe/Berlin"},
    {"cron": "*/5 * * * *"},
    {"cron": "0 9 1,15 * *"},
    {"cron": "0 0 9 L * *"},
)
BY_HAND: tuple[dict[str, Any], ...] = (
    *({"cron": "* *", "every_ms": None}, {"cron": "0 9 31 2 *", "every_ms": None}, {"plan": 5}),
    *({"cron": "0 9 * * *", "every_ms": None, "tz": "Mars"}, {"was": None}, {"paused": True}),
    *({"plan": {"birth": "b", "after_ms": 10**30}}, {"every_ms": -5}, {"body": {}}, {"name": 5}),
)


def counted(table: Timetable) -> DefinitionCounts:
    found: DefinitionCounts = table.run(count_definitions(table.calls))
    return found


def listed(table: Timetable) -> DefinitionCounts:
    """The same by the list."""
    found = table.run(Definitions(table.calls).list_all())
    failing = {each.name: each.error for each in found if each.state == "failing"}
    return DefinitionCounts(len(found), failing, sum(each.missed for each in found))


def damage(table: Timetable, draw: random.Random, names: list[str]) -> None:
    """What operators and a Redis that lost writes may do to some definitions."""
    redis, of = table.store.redis, table.calls.namespace
    for fields in draw.sample(BY_HAND, 5):
        name = draw.choice(names)
        stored = json.loads(redis.hget(keys.recurring(of), name))
        redis.hset(keys.recurring(of), name, json.dumps({**stored, **fields}))
    redis.hset(keys.recurring(of), mapping={"a": "{", "b": "[]", "c c": "{}", b"\xff": b"\xff"})
    progress: tuple[dict[str, Any], ...] = ({"planned_ms": 10**30}, {"error": "no"}, {})
    redis.hset(keys.recurring_state(of), draw.choice(names), json.dumps(draw.choice(progress)))
    redis.zrem(keys.recurring_due(of), draw.choice(names))


@pytest.mark.parametrize("seed", range(3))
def test_a_count_of_definitions_says_what_the_list_says_whatever_happens(
    table: Timetable, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    draw, closer, whole = random.Random(seed), list[str](), summary.recurring_of
    monkeypatch.setattr(
        summary, "recurring_of", lambda *of: (closer.append(of[0].name), whole(*of))[1]
    )
    assert counted(table) == DefinitionCounts()
    for n in range(30):
        table.add(name=f"job-{n}", **TIMES[n % len(TIMES)])
    assert counted(table) == listed(table)
    for ms in (0, MINUTE_MS, 3 * HOUR_MS, DAY_MS, -2 * HOUR_MS, 4 * HOUR_MS, -3 * DAY_MS):
        table.pass_ms(ms + draw.randrange(20_000))
        assert counted(table) == listed(table), "no worker looks"
        table.make()
        closer.clear()
        found = counted(table)
        assert found == listed(table)
        assert ms < 0 or not found.failing
        if ms > 0:
            assert len(closer) < 16, "most are told at a glance"
    assert found.failing and found.missed
    for _ in range(2):
        damage(table, draw, [f"job-{n}" for n in range(30)])
        assert counted(table) == listed(table)
        table.pass_ms(30_000)
        table.make()
        assert counted(table) == listed(table)


def test_a_definition_whose_clock_was_set_back_fails_in_the_count(table: Timetable) -> None:
    table.add(name="job", every_ms=HOUR_MS)
    table.add(name="other", every_ms=HOUR_MS)
    table.pass_ms(5 * HOUR_MS)
    table.make()
    assert counted(table).failing == {}
    table.pass_ms(-3 * HOUR_MS)
    found = counted(table)
    assert found == listed(table)
    assert all("set back" in found.failing[name] for name in ("job", "other"))


def test_an_expression_that_is_taken_for_granted_can_be_read_and_has_runs() -> None:
    fields = [
        [*map(str, range(60)), "*", "*/9"], [*map(str, range(24)), "*/9"],
        [*map(str, range(1, 32)), "*"], [*map(str, range(1, 13)), "*"],
        ["*", *map(str, range(8)), "MON-FRI"],
    ]  # fmt: skip
    days = [f"7 8 {day} {month} *" for day, month in product(fields[2], fields[3])]
    rest = [f"{each} 8 28 2 *" for each in fields[0]] + [f"7 {each} * * *" for each in fields[1]]
    every = [*days, *rest, *(f"7 8 * * {each}" for each in fields[4])]
    taken = [each for each in every if summary._PLAIN.fullmatch(each)]
    assert len(taken) == 29 * 13 + 62 + 25 + 10
    for expression in taken:
        assert next(cron_times(expression, "UTC", NOW_MS), None) is not None
    assert not summary._PLAIN.fullmatch("60 * * * *")
