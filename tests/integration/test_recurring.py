"""Recurring messages on a real Redis, with the time passed in: made once, changed exactly."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from delaybridge.errors import MessageConflict, MessageError
from delaybridge.message import Answer, Limits, decode_record
from delaybridge.recurring.definition import Definition, due_text
from delaybridge.store import keys
from delaybridge.store.calls import Calls
from delaybridge.store.looks import mend_looks
from delaybridge.store.recurring import define, recur
from tests.rigs.crew import Arrived, Crew
from tests.rigs.timetable import NAME, Timetable
from tests.rigs.waiting import until_async

NOW_MS = 1_800_000_000_000  # Fri 2027-01-15 08:00:00 UTC
MINUTE_MS = 60_000
LATE_MS = 2000


@pytest.fixture
def table(redis_url: str, namespace: str) -> Iterator[Timetable]:
    with Timetable(redis_url, namespace, NOW_MS) as table:
        yield table


def definition(**fields: Any) -> Definition:
    times = {} if "cron" in fields else {"every_ms": MINUTE_MS}
    return Definition(**{"name": NAME, "destination": "memory:q", "body": "x", **times, **fields})


def add(table: Timetable, *, replace: bool = False, **fields: Any) -> Answer:
    return table.run(table.calls.add_recurring(definition(**fields), replace=replace))  # type: ignore[no-any-return]


def ids(*minutes: int) -> list[str]:
    return [f"{NAME}@{due_text(NOW_MS + minute * MINUTE_MS)}" for minute in minutes]


def minutes_pass(table: Timetable, count: int) -> None:
    """Each second a worker looks, and what is due is delivered."""
    seconds_pass(table, count * 60)


def seconds_pass(table: Timetable, count: int) -> list[Any]:
    """The same; what the worker made."""
    made: list[Any] = []
    for _ in range(count):
        table.pass_ms(1000)
        made += table.make()
        table.deliver()
    return made


def sources(table: Timetable) -> list[str]:
    found = table.store.redis.hkeys(table.world.key("sources"))
    return sorted(name.decode() for name in found)


def test_each_run_arrives_once_at_its_time_under_its_name(table: Timetable) -> None:
    assert (
        add(table, body='{"due": "${due}", "ms": ${due_ms}, "of": "${name}", "x": "$${due}"}')
        is Answer.CREATED
    )
    made = table.make()
    assert [each.due_ms for each in made] == [[NOW_MS + MINUTE_MS]]
    stored = table.run(table.calls.get(ids(1)[0], None))
    due_ms = NOW_MS + MINUTE_MS
    body = {"due": "2027-01-15T08:01:00Z", "ms": due_ms, "of": NAME, "x": "${due}"}
    assert stored is not None and json.loads(stored.body) == body
    assert stored.due_ms == due_ms
    minutes_pass(table, 5)
    assert table.arrived == ids(1, 2, 3, 4, 5)


def test_one_run_is_ahead_however_many_workers_look(table: Timetable) -> None:
    add(table)
    for _ in range(3):
        table.make()
        table.pass_ms(1000)
    assert table.run(table.calls.stats()).delayed == 1


def test_what_one_worker_looks_at_is_left_to_it_for_one_and_a_half_seconds(
    table: Timetable,
) -> None:
    add(table)

    def taken(at_ms: int) -> list[str]:
        ((_, entries),) = table.store.run([recur(table.calls.namespace, 10, now_ms=at_ms)])
        return [entry.name for entry in entries]

    assert taken(NOW_MS) == [NAME]
    assert taken(NOW_MS + 1499) == []
    assert taken(NOW_MS + 1500) == [NAME]


def test_progress_is_written_only_over_the_progress_that_was_read(table: Timetable) -> None:
    add(table)
    ((_, (read,)),) = table.store.run([recur(table.calls.namespace, 10, now_ms=NOW_MS)])

    def write(progress: bytes) -> int:
        command = define(table.calls.namespace, read, read.raw, progress, NOW_MS)
        (answer,) = table.store.run([command])
        return answer

    assert write(b"further") == 1
    assert write(b"further") == 1  # sent again
    assert write(b"not as far") == 0
    assert table.store.redis.hget(keys.recurring_state(table.calls.namespace), NAME) == b"further"


def test_a_definition_is_listed_with_its_next_and_last_run(table: Timetable) -> None:
    add(table, cron="*/5 * * * *", tz="Europe/Berlin")
    table.make()
    minutes_pass(table, 6)
    (found,) = table.run(table.calls.all_recurring())
    assert found == table.run(table.calls.recurring(NAME))
    assert (found.state, found.error, found.missed) == ("active", "", 0)
    assert (found.last_ms, found.next_ms) == (NOW_MS + 5 * MINUTE_MS, NOW_MS + 10 * MINUTE_MS)
    assert found.definition is not None and found.definition.cron == "*/5 * * * *"


def test_the_same_definition_again_is_a_duplicate_and_another_a_conflict(table: Timetable) -> None:
    add(table)
    assert add(table) is Answer.DUPLICATE
    with pytest.raises(MessageConflict, match="replace"):
        add(table, body="y")
    assert add(table, body="y", replace=True) is Answer.REPLACED


def test_a_replaced_definition_sends_its_new_body_from_the_next_run_on(table: Timetable) -> None:
    add(table)
    table.make()
    assert add(table, body="y", replace=True) is Answer.REPLACED
    table.make()
    stored = table.run(table.calls.get(ids(1)[0], None))
    assert stored.body == b"y"
    minutes_pass(table, 2)
    assert table.arrived == ids(1, 2)
    assert len(sources(table)) == 1


def test_a_definition_replaced_while_its_run_is_with_the_broker_does_not_send_it_again(
    table: Timetable,
) -> None:
    add(table)
    table.make()
    table.pass_ms(MINUTE_MS - 1)
    table.claim()
    table.owner.fire(NOW_MS + MINUTE_MS + 1)  # one millisecond before its time, as workers do
    table.arrived += ids(1)
    assert add(table, body="y", replace=True) is Answer.REPLACED
    table.owner.settle(*table.owner.wheel)
    minutes_pass(table, 2)
    assert table.arrived == ids(1, 2)


def test_a_paused_definition_sends_nothing_and_goes_on_when_it_is_resumed(
    table: Timetable,
) -> None:
    add(table)
    table.make()
    pause = table.calls.pause_recurring
    assert table.run(pause(NAME, paused=True)) == {NOW_MS + MINUTE_MS: Answer.CANCELLED}
    assert table.run(pause(NAME, paused=True)) == {}
    minutes_pass(table, 3)
    assert table.run(table.calls.recurring(NAME)).state == "paused"
    assert table.run(pause(NAME, paused=False)) == {}
    minutes_pass(table, 2)
    assert table.arrived == ids(4, 5)
    assert table.run(table.calls.recurring(NAME)).missed == 0


def test_a_run_that_was_due_when_its_definition_was_paused_is_the_last_one(
    table: Timetable,
) -> None:
    add(table)
    minutes_pass(table, 2)
    table.pass_ms(MINUTE_MS)  # the third is due, and nobody has looked since
    table.run(table.calls.pause_recurring(NAME, paused=True))
    assert table.run(table.calls.recurring(NAME)).last_ms == NOW_MS + 3 * MINUTE_MS
    table.run(table.calls.pause_recurring(NAME, paused=False))
    assert table.run(table.calls.recurring(NAME)).last_ms == NOW_MS + 3 * MINUTE_MS


def test_a_removed_definition_leaves_nothing_behind(table: Timetable) -> None:
    add(table)
    table.make()
    remove = table.calls.remove_recurring
    assert table.run(remove(NAME)) == {NOW_MS + MINUTE_MS: Answer.CANCELLED}
    assert table.run(remove(NAME)) is None
    minutes_pass(table, 2)
    assert table.arrived == []
    assert sources(table) == []
    of = keys.recurring, keys.recurring_due, keys.recurring_state
    assert [table.store.redis.exists(key(table.calls.namespace)) for key in of] == [0, 0, 0]


@pytest.mark.parametrize(
    ("missed", "expected"), [("skip", []), ("one", [1]), ("all", [1, 2, 3, 4])]
)
def test_a_fleet_that_slept_makes_what_was_missed_by_the_policy(
    table: Timetable, missed: str, expected: list[int]
) -> None:
    add(table, missed=missed)
    table.make()
    # when nothing runs for four minutes and a half
    table.pass_ms(4 * MINUTE_MS + MINUTE_MS // 2)
    table.make()
    table.deliver()
    # then `skip` left its run a time to live, which a worker obeys
    late = table.run(table.calls.recurring(NAME))
    assert late.missed == 3
    assert table.arrived == ids(*(expected or [1]))
    minutes_pass(table, 1)
    assert table.arrived[-1:] == ids(5)


def test_a_run_that_may_be_skipped_expires_after_a_minute(table: Timetable) -> None:
    add(table, missed="skip", every_ms=10 * MINUTE_MS)
    table.make()
    ((id, record),) = table.store.redis.hgetall(table.world.key("messages")).items()
    assert decode_record(record[13:]).ttl_ms == MINUTE_MS


def test_a_definition_added_while_no_worker_runs_sends_its_first_run_late(
    table: Timetable,
) -> None:
    add(table)
    table.pass_ms(3 * MINUTE_MS + MINUTE_MS // 2)
    table.make()
    table.deliver()
    assert table.arrived == ids(1)


def test_all_missed_runs_are_bounded(table: Timetable) -> None:
    add(table, missed="all", every_ms=1000)
    table.pass_ms(5000 * 1000)
    table.make()
    for _ in range(20):
        table.deliver()
    assert 1000 <= len(table.arrived) <= 1000 + LATE_MS // 1000


def test_a_run_by_hand_does_not_disturb_the_plan(table: Timetable) -> None:
    add(table)
    table.make()
    receipt = table.run(table.calls.run_recurring(NAME))
    assert receipt.id.startswith(f"{NAME}@{due_text(NOW_MS)}/run-")
    other = table.run(table.calls.run_recurring(NAME))  # in the same millisecond
    assert (receipt.answer, other.answer) == ("created", "created")
    minutes_pass(table, 2)
    assert sorted(table.arrived[:2]) == sorted([receipt.id, other.id])
    assert table.arrived[2:] == ids(1, 2)


def test_a_backfill_makes_the_runs_that_were_not_made(table: Timetable) -> None:
    table.pass_ms(10 * MINUTE_MS)
    add(table)
    minutes_pass(table, 2)
    backfill = table.calls.backfill_recurring
    done = table.run(backfill(NAME, NOW_MS, NOW_MS + 12 * MINUTE_MS))
    assert (done.made, done.known) == (11, 1)  # 0 to 10; 11 was made by the plan
    again = table.run(backfill(NAME, NOW_MS, NOW_MS + 12 * MINUTE_MS))
    assert (again.made, again.known) == (0, 12)
    for _ in range(3):
        table.deliver()
    assert sorted(table.arrived) == ids(*range(13))
    assert table.run(backfill(NAME, NOW_MS, NOW_MS + 12 * MINUTE_MS)).made == 0
    minutes_pass(table, 2)
    assert not table.twice
    assert len(sources(table)) == 1


def test_a_backfill_of_the_future_is_refused(table: Timetable) -> None:
    add(table)
    with pytest.raises(MessageError, match="future"):
        table.run(table.calls.backfill_recurring(NAME, NOW_MS + MINUTE_MS, None))


def test_a_definition_that_makes_no_sense_is_shown_and_stops_no_other(table: Timetable) -> None:
    redis, of = table.store.redis, table.calls.namespace
    for name, raw in (("a", b"{"), ("b", b"[]"), ("c", b'{"every_ms": "x"}'), ("d", b"\xff")):
        redis.hset(keys.recurring(of), name, raw)
        redis.zadd(keys.recurring_due(of), {name: 0})
    add(table)
    made = table.make()
    assert [each.name for each in made if each.error] == ["a", "b", "c", "d"]
    minutes_pass(table, 1)
    assert table.arrived == ids(1)
    found = {each.name: each for each in table.run(table.calls.all_recurring())}
    assert [found[name].state for name in ("a", "b", "c", "d", NAME)] == ["failing"] * 4 + [
        "active"
    ]
    for name in "abcd":
        assert table.run(table.calls.remove_recurring(name)) == {}


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
    add(table, name="broken")
    add(table)
    redis, of = table.store.redis, table.calls.namespace
    stored = json.loads(redis.hget(keys.recurring(of), "broken"))
    redis.hset(keys.recurring(of), "broken", json.dumps({**stored, **fields}))
    redis.hset(keys.recurring_state(of), "broken", json.dumps({"planned_ms": 10**30}))
    redis.zadd(keys.recurring_due(of), {"broken": 0})
    minutes_pass(table, 1)
    assert table.arrived[-1:] == ids(1)
    assert len(table.run(table.calls.all_recurring())) >= 1
    assert table.run(table.calls.remove_recurring("broken")) is not None
    assert table.run(table.calls.recurring("broken")) is None


def test_a_definition_whose_broker_is_gone_says_so_and_goes_on_when_it_is_back(
    table: Timetable,
) -> None:
    add(table)
    kinds = table.calls.kinds
    table.calls.kinds = {"other": "memory"}
    (made,) = table.make()
    assert "'memory'" in made.error
    assert "no broker" in table.run(table.calls.recurring(NAME)).error
    table.calls.kinds = kinds
    minutes_pass(table, 1)
    assert table.run(table.calls.recurring(NAME)).error == ""
    assert table.arrived == ids(1)


def test_a_clock_that_is_set_back_repeats_no_run_and_is_reported(table: Timetable) -> None:
    add(table)
    minutes_pass(table, 10)
    table.pass_ms(-5 * MINUTE_MS)
    assert "set back" in table.run(table.calls.recurring(NAME)).error
    minutes_pass(table, 8)
    assert table.arrived == ids(*range(1, 14))


def test_a_plan_that_redis_has_lost_begins_again(table: Timetable) -> None:
    add(table)
    minutes_pass(table, 2)
    table.store.redis.delete(table.world.key("sources"))
    minutes_pass(table, 3)
    assert table.arrived == ids(1, 2, 3, 4, 5)


def test_a_look_that_only_begins_plans_again_is_followed_by_the_next(table: Timetable) -> None:
    add(table)
    minutes_pass(table, 2)
    table.store.redis.delete(table.world.key("sources"))
    table.pass_ms(MINUTE_MS)
    assert any(each.due_ms for each in table.make())


def test_a_look_that_only_finishes_changes_is_followed_by_the_next(table: Timetable) -> None:
    add(table)
    caller = table.call(table.calls.add_recurring(definition(body="y"), replace=True))
    while b'"was"' not in table.store.redis.hget(keys.recurring(table.calls.namespace), NAME):
        caller.step()  # it dies then
    table.pass_ms(MINUTE_MS)
    assert any(each.due_ms for each in table.make())


@pytest.mark.parametrize("look", [None, float("inf"), 9e15])
def test_a_look_that_redis_lost_or_that_is_damaged_is_mended(
    table: Timetable, look: float | None
) -> None:
    of = table.calls.namespace
    for name in (NAME, "paused", "ended"):
        add(table, name=name, end_ms=table.now_ms + 2 * MINUTE_MS if name == "ended" else None)
    minutes_pass(table, 2)
    table.run(table.calls.pause_recurring("paused", paused=True))
    assert table.run(mend_looks(of)) == []
    table.store.redis.delete(keys.recurring_due(of))
    if look is not None:
        table.store.redis.zadd(keys.recurring_due(of), {NAME: look})
    minutes_pass(table, 3)
    if look is None:
        found = table.run(table.calls.recurring(NAME))
        assert found.state == "failing" and found.error.startswith("Redis lost when")
    assert table.run(mend_looks(of)) == [NAME]
    minutes_pass(table, 2)
    states = {each.name: each.state for each in table.run(table.calls.all_recurring())}
    assert states == {NAME: "active", "paused": "paused", "ended": "ended"}
    assert [id for id in table.arrived if id.startswith(NAME)] == ids(1, 2, 3, 5, 6, 7)


def test_a_paused_definition_that_somebody_looks_at_stays_as_it_is(table: Timetable) -> None:
    of = table.calls.namespace
    add(table)
    table.run(table.calls.pause_recurring(NAME, paused=True))
    table.store.redis.zadd(keys.recurring_due(of), {NAME: 1})
    minutes_pass(table, 2)
    assert table.run(table.calls.recurring(NAME)).state == "paused"
    assert not table.store.redis.exists(keys.recurring_due(of))


@pytest.mark.parametrize(
    ("stored", "shown"), [(b"\xff\xfe", r"\xff\xfe"), (b"a b", "a b"), (b"", "")]
)
def test_a_definition_that_was_misnamed_by_hand_is_shown_and_can_be_removed(
    table: Timetable, stored: bytes, shown: str
) -> None:
    of = table.calls.namespace
    add(table)
    raw = table.store.redis.hget(keys.recurring(of), NAME)
    table.store.redis.hset(keys.recurring(of), stored, raw)
    table.store.redis.zadd(keys.recurring_due(of), {stored: 1})
    assert "remove it" in {each.name: each.error for each in table.make()}[shown]
    assert table.make() == []  # it waits for the next look
    (found, _) = sorted(table.run(table.calls.all_recurring()), key=lambda each: each.name == NAME)
    assert (found.name, found.state) == (shown, "failing")
    assert table.run(table.calls.remove_recurring(shown)) == {}
    assert table.store.redis.hkeys(keys.recurring(of)) == [NAME.encode()]
    assert table.store.redis.zrange(keys.recurring_due(of), 0, -1) == [NAME.encode()]
    with pytest.raises(MessageError, match="bad_name"):
        table.run(table.calls.remove_recurring(shown))


@pytest.mark.parametrize("how", ["remove", "replace"])
def test_a_change_to_what_makes_no_sense_is_said_once_and_another_takes_its_place(
    table: Timetable, how: str
) -> None:
    add(table)
    minutes_pass(table, 2)
    name = keys.recurring(table.calls.namespace)
    was = json.loads(table.store.redis.hget(name, NAME))
    table.store.redis.hset(name, NAME, json.dumps({"was": was, "since_ms": table.now_ms}))
    said = [made.error for made in seconds_pass(table, 90) if made.is_new]
    assert len(said) == 1 and "destination" in said[0]
    if how == "remove":
        assert table.run(table.calls.remove_recurring(NAME)) is not None
        assert not table.store.redis.exists(name) and not sources(table)
        return
    assert add(table, body="y", replace=True) == "replaced"
    assert len(sources(table)) == 1
    minutes_pass(table, 2)
    assert table.arrived == ids(1, 2, 4, 5)  # the third was cancelled: the old plan has ended


def test_the_number_of_definitions_is_bounded(
    table: Timetable, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("delaybridge.store.recurring.DEFINITIONS_LIMIT", 2)
    add(table)
    add(table, name="second")
    for paused in (False, True):
        with pytest.raises(MessageError, match="there are 2 definitions"):
            add(table, name="third", paused=paused)
    assert len(sources(table)) <= 2


async def test_workers_make_each_run_once_at_its_time_though_one_leaves(
    crew: Crew, arrived: Arrived
) -> None:
    calls = Calls(crew.namespace, {"memory": "memory://"}, None, Limits())
    found = definition(every_ms=1000)
    for name in ("one", "two"):
        crew.start(name)
    await crew.store.complete(calls.add_recurring(found, replace=False))
    await until_async(lambda: len(arrived.at_ms) >= 3, "three runs arrive")
    await crew.stop("one")
    await until_async(lambda: len(arrived.at_ms) >= 7, "seven runs arrive")
    assert not arrived.twice
    assert min(arrived.late_ms) >= 0
    due_ms = sorted(arrived.due_ms.values())
    assert due_ms == [*range(due_ms[0], due_ms[-1] + 1, 1000)]
