"""Definitions that make no sense, that Redis lost, or whose clock or broker went away."""

from __future__ import annotations

import json
from typing import Any

import pytest

from delaybridge.errors import MessageError
from delaybridge.recurring.definitions import Definitions
from delaybridge.recurring.repair import mend_looks
from delaybridge.store.protocol import keys
from tests.rigs.timetable import MINUTE_MS, NAME, Timetable, definition, ids, make_runs


def test_a_definition_that_makes_no_sense_is_shown_and_stops_no_other(table: Timetable) -> None:
    redis, of = table.store.redis, table.calls.namespace
    for name, raw in (("a", b"{"), ("b", b"[]"), ("c", b'{"every_ms": "x"}'), ("d", b"\xff")):
        redis.hset(keys.recurring(of), name, raw)
        redis.zadd(keys.recurring_due(of), {name: 0})
    table.add()
    made = table.make()
    assert [each.name for each in made if each.error] == ["a", "b", "c", "d"]
    table.minutes_pass(1)
    assert table.arrived == ids(1)
    found = {each.name: each for each in table.run(Definitions(table.calls).list_all())}
    assert [found[name].state for name in ("a", "b", "c", "d", NAME)] == ["failing"] * 4 + [
        "active"
    ]
    for name in "abcd":
        assert table.run(Definitions(table.calls).remove(name)) == {}


@pytest.mark.parametrize(
    "fields",
    [
        {"every_ms": -5}, {"every_ms": 0}, {"every_ms": 10**30}, {"every_ms": "x"},
        {"every_ms": None}, {"every_ms": None, "cron": "* *"}, {"start_ms": 10**30},
        {"every_ms": None, "cron": "* * * * *", "tz": "Mars"}, {"end_ms": -1}, {"ttl_ms": 10**40},
        {"plan": {"birth": "b", "after_ms": 10**30}}, {"plan": 5}, {"plan": {"birth": 5}},
        {"was": 5}, {"was": {}, "since_ms": "x"}, {"backfill": 5}, {"headers": 5}, {"missed": "x"},
        {"destination": 5}, {"body": {}}, {"retry": {"x": 1}}, {"priority": 10**9},
    ],
    ids=str,
)  # fmt: skip
def test_whatever_someone_wrote_by_hand_hangs_and_stops_nothing(
    table: Timetable, fields: dict[str, Any]
) -> None:
    table.add(name="broken")
    table.add()
    redis, of = table.store.redis, table.calls.namespace
    stored = json.loads(redis.hget(keys.recurring(of), "broken"))
    redis.hset(keys.recurring(of), "broken", json.dumps({**stored, **fields}))
    redis.hset(keys.recurring_state(of), "broken", json.dumps({"planned_ms": 10**30}))
    redis.zadd(keys.recurring_due(of), {"broken": 0})
    table.minutes_pass(1)
    assert table.arrived[-1:] == ids(1)
    assert len(table.run(Definitions(table.calls).list_all())) >= 1
    assert table.run(Definitions(table.calls).remove("broken")) is not None
    assert table.run(Definitions(table.calls).get("broken")) is None


def test_a_definition_whose_broker_is_gone_says_so_and_goes_on_when_it_is_back(
    table: Timetable,
) -> None:
    table.add()
    kinds = table.calls.kinds
    table.calls.kinds = {"other": "memory"}
    (made,) = table.make()
    assert "'memory'" in made.error
    assert "no broker" in table.run(Definitions(table.calls).get(NAME)).error
    table.calls.kinds = kinds
    table.minutes_pass(1)
    assert table.run(Definitions(table.calls).get(NAME)).error == ""
    assert table.arrived == ids(1)


def test_a_clock_that_is_set_back_repeats_no_run_and_is_reported(table: Timetable) -> None:
    table.add()
    table.minutes_pass(10)
    table.pass_ms(-5 * MINUTE_MS)
    assert "set back" in table.run(Definitions(table.calls).get(NAME)).error
    table.minutes_pass(8)
    assert table.arrived == ids(*range(1, 14))


def test_a_plan_that_redis_has_lost_begins_again(table: Timetable) -> None:
    table.add()
    table.minutes_pass(2)
    table.store.redis.delete(table.world.key("sources"))
    table.minutes_pass(3)
    assert table.arrived == ids(1, 2, 3, 4, 5)


def test_a_look_that_only_begins_plans_again_is_followed_by_the_next(table: Timetable) -> None:
    table.add()
    table.minutes_pass(2)
    table.store.redis.delete(table.world.key("sources"))
    table.pass_ms(MINUTE_MS)
    assert any(each.due_ms for each in table.make())


def test_a_look_that_only_finishes_changes_is_followed_by_the_next(table: Timetable) -> None:
    table.add()
    caller = table.call(Definitions(table.calls).add(definition(body="y"), replace=True))
    while b'"was"' not in table.store.redis.hget(keys.recurring(table.calls.namespace), NAME):
        caller.step()  # it dies then
    table.pass_ms(MINUTE_MS)
    assert any(each.due_ms for each in table.make())


def test_a_change_that_its_bucket_refuses_hinders_no_other(table: Timetable) -> None:
    redis, of = table.store.redis, table.calls.namespace
    for name in ("refused", NAME):
        table.add(name=name)
        change = definition(name=name, body="y")
        caller = table.call(Definitions(table.calls).add(change, replace=True))
        while b'"was"' not in redis.hget(keys.recurring(of), name):
            caller.step()  # it dies then
        table.pass_ms(1)  # the refused one comes first
    sources = Definitions(table.calls).bucket_for(definition(name="refused")).key("sources")
    assert sources != table.world.key("sources")
    redis.set(sources, "x")
    table.pass_ms(MINUTE_MS)
    made = table.run(make_runs(table.calls, now_ms=table.now_ms))
    assert {each.name: "wrong type" in each.error for each in made} == {
        "refused": True,
        NAME: False,
    }
    assert b'"was"' not in redis.hget(keys.recurring(of), NAME)
    redis.delete(sources)
    table.pass_ms(MINUTE_MS)
    table.make()
    assert b'"was"' not in redis.hget(keys.recurring(of), "refused")


@pytest.mark.parametrize("look", [None, float("inf"), 9e15])
def test_a_look_that_redis_lost_or_that_is_damaged_is_mended(
    table: Timetable, look: float | None
) -> None:
    of = table.calls.namespace
    for name in (NAME, "paused", "ended"):
        table.add(name=name, end_ms=table.now_ms + 2 * MINUTE_MS if name == "ended" else None)
    table.minutes_pass(2)
    table.run(Definitions(table.calls).pause("paused", paused=True))
    assert table.run(mend_looks(of)) == []
    table.store.redis.delete(keys.recurring_due(of))
    if look is not None:
        table.store.redis.zadd(keys.recurring_due(of), {NAME: look})
    table.minutes_pass(3)
    if look is None:
        found = table.run(Definitions(table.calls).get(NAME))
        assert found.state == "failing" and found.error.startswith("Redis lost when")
    assert table.run(mend_looks(of)) == [NAME]
    table.minutes_pass(2)
    states = {each.name: each.state for each in table.run(Definitions(table.calls).list_all())}
    assert states == {NAME: "active", "paused": "paused", "ended": "ended"}
    assert [id for id in table.arrived if id.startswith(NAME)] == ids(1, 2, 3, 5, 6, 7)


def test_a_paused_definition_that_somebody_looks_at_stays_as_it_is(table: Timetable) -> None:
    of = table.calls.namespace
    table.add()
    table.run(Definitions(table.calls).pause(NAME, paused=True))
    table.store.redis.zadd(keys.recurring_due(of), {NAME: 1})
    table.minutes_pass(2)
    assert table.run(Definitions(table.calls).get(NAME)).state == "paused"
    assert not table.store.redis.exists(keys.recurring_due(of))


@pytest.mark.parametrize(
    ("stored", "shown"), [(b"\xff\xfe", r"\xff\xfe"), (b"a b", "a b"), (b"", "")]
)
def test_a_definition_that_was_misnamed_by_hand_is_shown_and_can_be_removed(
    table: Timetable, stored: bytes, shown: str
) -> None:
    of = table.calls.namespace
    table.add()
    raw = table.store.redis.hget(keys.recurring(of), NAME)
    table.store.redis.hset(keys.recurring(of), stored, raw)
    table.store.redis.zadd(keys.recurring_due(of), {stored: 1})
    assert "remove it" in {each.name: each.error for each in table.make()}[shown]
    assert table.make() == []  # it waits for the next look
    (found, _) = sorted(
        table.run(Definitions(table.calls).list_all()), key=lambda each: each.name == NAME
    )
    assert (found.name, found.state) == (shown, "failing")
    assert table.run(Definitions(table.calls).remove(shown)) == {}
    assert table.store.redis.hkeys(keys.recurring(of)) == [NAME.encode()]
    assert table.store.redis.zrange(keys.recurring_due(of), 0, -1) == [NAME.encode()]
    with pytest.raises(MessageError, match="bad_name"):
        table.run(Definitions(table.calls).remove(shown))


@pytest.mark.parametrize("how", ["remove", "replace"])
def test_a_change_to_what_makes_no_sense_is_said_once_and_another_takes_its_place(
    table: Timetable, how: str
) -> None:
    table.add()
    table.minutes_pass(2)
    name = keys.recurring(table.calls.namespace)
    was = json.loads(table.store.redis.hget(name, NAME))
    table.store.redis.hset(name, NAME, json.dumps({"was": was, "since_ms": table.now_ms}))
    said = [made.error for made in table.seconds_pass(90) if made.is_new]
    assert len(said) == 1 and "destination" in said[0]
    if how == "remove":
        assert table.run(Definitions(table.calls).remove(NAME)) is not None
        assert not table.store.redis.exists(name) and not table.sources()
        return
    assert table.add(body="y", replace=True) == "replaced"
    assert len(table.sources()) == 1
    table.minutes_pass(2)
    assert table.arrived == ids(1, 2, 4, 5)  # the third was cancelled: the old plan has ended
