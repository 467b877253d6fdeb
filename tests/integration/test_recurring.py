"""Recurring messages on a real Redis, with the time passed in: made once, changed exactly."""

from __future__ import annotations

import json

import pytest

from delaybridge.errors import MessageConflict, MessageError
from delaybridge.message import Answer, Limits, decode_record
from delaybridge.operate.views.stats import read_stats
from delaybridge.recurring.definition import due_text
from delaybridge.recurring.definitions import Definitions
from delaybridge.recurring.stored import define, recur
from delaybridge.store.calls import Calls
from delaybridge.store.protocol import keys
from tests.rigs.crew import CALM, Arrived, Crew
from tests.rigs.timetable import MINUTE_MS, NAME, NOW_MS, Timetable, definition, ids, make_runs
from tests.rigs.waiting import until_async

LATE_MS = 2000


def test_each_run_arrives_once_at_its_time_under_its_name(table: Timetable) -> None:
    assert (
        table.add(body='{"due": "${due}", "ms": ${due_ms}, "of": "${name}", "x": "$${due}"}')
        is Answer.CREATED
    )
    made = table.make()
    assert [each.due_ms for each in made] == [[NOW_MS + MINUTE_MS]]
    stored = table.run(table.calls.get(ids(1)[0], None))
    due_ms = NOW_MS + MINUTE_MS
    body = {"due": "2027-01-15T08:01:00Z", "ms": due_ms, "of": NAME, "x": "${due}"}
    assert stored is not None and json.loads(stored.body) == body
    assert stored.due_ms == due_ms
    table.minutes_pass(5)
    assert table.arrived == ids(1, 2, 3, 4, 5)


def test_one_run_is_ahead_however_many_workers_look(table: Timetable) -> None:
    table.add()
    for _ in range(3):
        table.make()
        table.pass_ms(1000)
    assert table.run(read_stats(table.calls)).delayed == 1


def test_a_worker_that_dies_at_any_step_loses_no_run_and_doubles_none(
    redis_url: str, namespace: str
) -> None:
    """Also between taking the run that was set and setting the next one."""
    steps, is_done = 0, False
    while not is_done:
        with Timetable(redis_url, f"{namespace}-{steps}") as table:
            table.add()
            table.make()
            table.pass_ms(MINUTE_MS)  # a run is due, and the next one is to be set
            dying = table.call(make_runs(table.calls, now_ms=table.now_ms))
            for _ in range(steps):
                dying.step()
            is_done = dying.done
            for _ in range(14):
                table.pass_ms(5000)
                table.make()
                table.deliver()
            assert table.arrived == ids(1, 2), steps
        steps += 1
    assert steps > 2, "it takes, makes and writes down"


@pytest.mark.parametrize("replace", [False, True])
def test_twenty_processes_of_a_deploy_define_it_at_once(table: Timetable, replace: bool) -> None:
    """Ten of the old version and ten of the new one, each a step in turn, while workers look."""
    bodies = ["old", "new"] * 10
    table.add(body="old")
    table.make()
    table.pass_ms(MINUTE_MS)
    callers = [
        table.call(Definitions(table.calls).add(definition(body=body), replace=replace))
        for body in bodies
    ]
    while not all(each.done for each in callers):
        for each in callers:
            if not each.done:
                each.step()
        table.make()
    conflicts = [each for each in callers if isinstance(each.error, MessageConflict)]
    assert len(conflicts) == (0 if replace else 10)
    assert not [each.error for each in callers if each.error and each not in conflicts]
    table.seconds_pass(65)
    assert table.arrived == ids(1, 2)
    (found,) = table.run(Definitions(table.calls).list_all())
    assert found.definition is not None and found.definition.body in bodies
    assert len(table.sources()) == 1, "one plan is known"


def test_what_one_worker_looks_at_is_left_to_it_for_one_and_a_half_seconds(
    table: Timetable,
) -> None:
    table.add()

    def taken(at_ms: int) -> list[str]:
        ((_, entries),) = table.store.run([recur(table.calls.namespace, 10, now_ms=at_ms)])
        return [entry.name for entry in entries]

    assert taken(NOW_MS) == [NAME]
    assert taken(NOW_MS + 1499) == []
    assert taken(NOW_MS + 1500) == [NAME]


def test_progress_is_written_only_over_the_progress_that_was_read(table: Timetable) -> None:
    table.add()
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
    table.add(cron="*/5 * * * *", tz="Europe/Berlin")
    table.make()
    table.minutes_pass(6)
    (found,) = table.run(Definitions(table.calls).list_all())
    assert found == table.run(Definitions(table.calls).get(NAME))
    assert (found.state, found.error, found.missed) == ("active", "", 0)
    assert (found.last_ms, found.next_ms) == (NOW_MS + 5 * MINUTE_MS, NOW_MS + 10 * MINUTE_MS)
    assert found.definition is not None and found.definition.cron == "*/5 * * * *"


def test_the_same_definition_again_is_a_duplicate_and_another_a_conflict(table: Timetable) -> None:
    table.add()
    assert table.add() is Answer.DUPLICATE
    with pytest.raises(MessageConflict, match="replace"):
        table.add(body="y")
    assert table.add(body="y", replace=True) is Answer.REPLACED


def test_a_replaced_definition_sends_its_new_body_from_the_next_run_on(table: Timetable) -> None:
    table.add()
    table.make()
    assert table.add(body="y", replace=True) is Answer.REPLACED
    table.make()
    stored = table.run(table.calls.get(ids(1)[0], None))
    assert stored.body == b"y"
    table.minutes_pass(2)
    assert table.arrived == ids(1, 2)
    assert len(table.sources()) == 1


def test_a_definition_replaced_while_its_run_is_with_the_broker_does_not_send_it_again(
    table: Timetable,
) -> None:
    table.add()
    table.make()
    table.pass_ms(MINUTE_MS - 1)
    table.claim()
    table.owner.fire(NOW_MS + MINUTE_MS + 1)  # one millisecond before its time, as workers do
    table.arrived += ids(1)
    assert table.add(body="y", replace=True) is Answer.REPLACED
    table.owner.settle(*table.owner.wheel)
    table.minutes_pass(2)
    assert table.arrived == ids(1, 2)


def test_a_paused_definition_sends_nothing_and_goes_on_when_it_is_resumed(table: Timetable) -> None:
    table.add()
    table.make()
    pause = Definitions(table.calls).pause
    assert table.run(pause(NAME, paused=True)) == {NOW_MS + MINUTE_MS: Answer.CANCELLED}
    assert table.run(pause(NAME, paused=True)) == {}
    table.minutes_pass(3)
    assert table.run(Definitions(table.calls).get(NAME)).state == "paused"
    assert table.run(pause(NAME, paused=False)) == {}
    table.minutes_pass(2)
    assert table.arrived == ids(4, 5)
    assert table.run(Definitions(table.calls).get(NAME)).missed == 0


def test_a_run_that_was_due_when_its_definition_was_paused_is_the_last_one(
    table: Timetable,
) -> None:
    table.add()
    table.minutes_pass(2)
    table.pass_ms(MINUTE_MS)  # the third is due, and nobody has looked since
    table.run(Definitions(table.calls).pause(NAME, paused=True))
    assert table.run(Definitions(table.calls).get(NAME)).last_ms == NOW_MS + 3 * MINUTE_MS
    table.run(Definitions(table.calls).pause(NAME, paused=False))
    assert table.run(Definitions(table.calls).get(NAME)).last_ms == NOW_MS + 3 * MINUTE_MS


def test_a_removed_definition_leaves_nothing_behind(table: Timetable) -> None:
    table.add()
    table.make()
    remove = Definitions(table.calls).remove
    assert table.run(remove(NAME)) == {NOW_MS + MINUTE_MS: Answer.CANCELLED}
    assert table.run(remove(NAME)) is None
    table.minutes_pass(2)
    assert table.arrived == []
    assert table.sources() == []
    of = keys.recurring, keys.recurring_due, keys.recurring_state
    assert [table.store.redis.exists(key(table.calls.namespace)) for key in of] == [0, 0, 0]


@pytest.mark.parametrize(
    ("missed", "expected"), [("skip", []), ("one", [1]), ("all", [1, 2, 3, 4])]
)
def test_a_fleet_that_slept_makes_what_was_missed_by_the_policy(
    table: Timetable, missed: str, expected: list[int]
) -> None:
    table.add(missed=missed)
    table.make()
    # when nothing runs for four minutes and a half
    table.pass_ms(4 * MINUTE_MS + MINUTE_MS // 2)
    table.make()
    table.deliver()
    # then `skip` left its run a time to live, which a worker obeys
    late = table.run(Definitions(table.calls).get(NAME))
    assert late.missed == 3
    assert table.arrived == ids(*(expected or [1]))
    table.minutes_pass(1)
    assert table.arrived[-1:] == ids(5)


def test_a_run_that_may_be_skipped_expires_after_a_minute(table: Timetable) -> None:
    table.add(missed="skip", every_ms=10 * MINUTE_MS)
    table.make()
    ((id, record),) = table.store.redis.hgetall(table.world.key("messages")).items()
    assert decode_record(record[13:]).ttl_ms == MINUTE_MS


def test_a_definition_added_while_no_worker_runs_sends_its_first_run_late(table: Timetable) -> None:
    table.add()
    table.pass_ms(3 * MINUTE_MS + MINUTE_MS // 2)
    table.make()
    table.deliver()
    assert table.arrived == ids(1)


def test_all_missed_runs_are_bounded(table: Timetable) -> None:
    table.add(missed="all", every_ms=1000)
    table.pass_ms(5000 * 1000)
    table.make()
    for _ in range(20):
        table.deliver()
    assert 1000 <= len(table.arrived) <= 1000 + LATE_MS // 1000


def test_a_run_by_hand_does_not_disturb_the_plan(table: Timetable) -> None:
    table.add()
    table.make()
    receipt = table.run(Definitions(table.calls).run(NAME))
    assert receipt.id.startswith(f"{NAME}@{due_text(NOW_MS)}/run-")
    other = table.run(Definitions(table.calls).run(NAME))  # in the same millisecond
    assert (receipt.answer, other.answer) == ("created", "created")
    table.minutes_pass(2)
    assert sorted(table.arrived[:2]) == sorted([receipt.id, other.id])
    assert table.arrived[2:] == ids(1, 2)


def test_a_backfill_makes_the_runs_that_were_not_made(table: Timetable) -> None:
    table.pass_ms(10 * MINUTE_MS)
    table.add()
    table.minutes_pass(2)
    backfill = Definitions(table.calls).backfill
    done = table.run(backfill(NAME, NOW_MS, NOW_MS + 12 * MINUTE_MS))
    assert (done.made, done.known) == (11, 1)  # 0 to 10; 11 was made by the plan
    again = table.run(backfill(NAME, NOW_MS, NOW_MS + 12 * MINUTE_MS))
    assert (again.made, again.known) == (0, 12)
    for _ in range(3):
        table.deliver()
    assert sorted(table.arrived) == ids(*range(13))
    assert table.run(backfill(NAME, NOW_MS, NOW_MS + 12 * MINUTE_MS)).made == 0
    table.minutes_pass(2)
    assert not table.twice
    assert len(table.sources()) == 1


def test_a_backfill_of_the_future_is_refused(table: Timetable) -> None:
    table.add()
    with pytest.raises(MessageError, match="future"):
        table.run(Definitions(table.calls).backfill(NAME, NOW_MS + MINUTE_MS, None))


def test_the_number_of_definitions_is_bounded(
    table: Timetable, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("delaybridge.recurring.stored.DEFINITIONS_LIMIT", 2)
    table.add()
    table.add(name="second")
    for paused in (False, True):
        with pytest.raises(MessageError, match="there are 2 definitions"):
            table.add(name="third", paused=paused)
    assert len(table.sources()) <= 2


async def test_workers_make_each_run_once_at_its_time_though_one_leaves(
    crew: Crew, arrived: Arrived
) -> None:
    calls = Calls(crew.namespace, {"memory": "memory://"}, None, Limits())
    found = definition(every_ms=1000, missed="all")  # also those of a second without a CPU
    for name in ("one", "two"):
        crew.start(name, lease=CALM)
    await crew.store.complete(Definitions(calls).add(found, replace=False))
    await until_async(lambda: len(arrived.at_ms) >= 3, "three runs arrive")
    await crew.stop("one")

    def are_whole() -> bool:  # each is in a bucket of its own, so a late one may come last
        due_ms = sorted(arrived.due_ms.values())
        return len(due_ms) >= 7 and due_ms == [*range(due_ms[0], due_ms[-1] + 1, 1000)]

    await until_async(are_whole, lambda: f"seven runs arrive, and all: {arrived.due_ms}")
    assert not arrived.twice
    assert min(arrived.late_ms) >= 0
