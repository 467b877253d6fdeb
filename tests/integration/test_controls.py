"""Rules and recurring definitions in the ledger: what is recorded, and which change counts."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest

from delaybridge import Client
from delaybridge.ledger.comparing import reinstating
from delaybridge.recurring.runs import RunMaking
from delaybridge.store.calls import Calls
from delaybridge.store.protocol import keys
from delaybridge.store.protocol.verbs import Work
from tests.rigs.controls_site import PLACE, ControlsSite
from tests.rigs.ledgers import LedgerProbe, made
from tests.rigs.timetable import make_runs
from tests.servers.postgres import PostgresServer


@pytest.fixture
def site(redis_url: str, namespace: str, ledger_url: str) -> Iterator[ControlsSite]:
    site = ControlsSite(redis_url, namespace, ledger_url)
    yield site
    site.close()


pytestmark = pytest.mark.slow_with("mariadb", "postgres")


def test_every_change_is_recorded_also_that_a_rule_was_removed(site: ControlsSite) -> None:
    site.client.destinations.pause(PLACE)
    assert (site.recorded() or {})["paused"] is True
    site.client.destinations.set_rule(PLACE, rate=5.0)
    assert site.recorded() == site.rule()
    assert site.rule()["rate"] == 5
    site.client.destinations.resume(PLACE)
    assert site.recorded() == {"rate": 5}
    site.client.destinations.set_rule(PLACE)
    assert site.recorded() == {}


def test_all_of_it_comes_back_after_a_wipe_but_what_was_removed(site: ControlsSite) -> None:
    site.client.destinations.pause(PLACE)
    site.client.destinations.pause("kafka:gone")
    site.client.destinations.resume("kafka:gone")
    site.client.recurring.add("daily", PLACE, "x", cron="0 3 * * *")
    site.client.recurring.add("off", PLACE, "x", cron="0 4 * * *")
    site.client.recurring.pause("off")
    site.client.recurring.add("over", PLACE, "x", cron="0 5 * * *")
    site.client.recurring.remove("over")
    assert site.agree() == 0
    assert site.are_agreed
    before = {one.name: (one.definition, one.state) for one in site.client.recurring.list()}
    rule = site.rule()
    site.wipe()
    assert not site.are_agreed
    assert site.agree() == 3
    assert site.are_agreed
    assert site.rule() == rule
    assert site.rule("kafka:gone") == {}
    after = {one.name: (one.definition, one.state) for one in site.client.recurring.list()}
    assert after == before
    assert {*after} == {"daily", "off"}


def test_where_redis_came_back_older_the_later_change_counts(site: ControlsSite) -> None:
    site.client.destinations.pause("kafka:removed")
    site.client.destinations.set_rule("kafka:changed", rate=1.0)
    site.client.destinations.set_rule("kafka:same", rate=1.0)
    site.agree()
    older = site.snapshot()
    site.client.destinations.pause(PLACE)
    site.client.destinations.resume("kafka:removed")
    site.client.destinations.set_rule("kafka:changed", rate=2.0)
    site.go_back(older)
    assert not site.are_agreed
    assert site.agree() == 3
    assert site.are_agreed
    assert site.rule()["paused"]
    assert site.rule("kafka:removed") == {}
    assert (site.rule("kafka:changed"), site.rule("kafka:same")) == ({"rate": 2}, {"rate": 1})


def test_where_the_ledger_came_back_older_the_later_change_counts(
    site: ControlsSite, ledger: LedgerProbe
) -> None:
    site.client.destinations.pause(PLACE)
    site.client.destinations.set_rule("kafka:a", rate=1.0)
    site.client.destinations.set_rule("kafka:a")
    ledger.ask("DELETE FROM control WHERE name = :name", name=f"paused:{PLACE}".encode())
    ledger.ask("UPDATE control SET value = :one, changed_ms = 1", one=b'{"rate":1}')
    assert site.agree() == 0
    assert (site.recorded(), site.recorded("kafka:a")) == (site.rule(), {})
    assert site.rule()["paused"]
    assert site.rule("kafka:a") == {}


def test_a_full_redis_is_compared_all_the_same(site: ControlsSite) -> None:
    """Else nothing is claimed from it, and it stays full."""
    site.client.destinations.pause(PLACE)
    site.agree()
    site.redis.hdel(keys.controls(site.namespace), "healed")
    site.redis.config_set("maxmemory", 1)
    try:
        assert site.agree() == 0
        assert site.are_agreed
    finally:
        site.redis.config_set("maxmemory", 0)


def test_a_rule_that_is_lost_with_its_time_comes_back_also_if_the_ledger_was_older_once(
    site: ControlsSite,
) -> None:
    site.client.destinations.pause(PLACE)
    site.agree()
    namespace = site.namespace
    site.redis.hset(keys.ledger(namespace), "back", 2**50)
    of = keys.destinations, keys.controls, keys.unrecorded
    site.redis.delete(*(each(namespace) for each in of))
    site.agree()
    assert site.rule()["paused"]


@pytest.mark.parametrize("is_here", [True, False])
def test_a_pause_wins_a_tie(site: ControlsSite, ledger: LedgerProbe, is_here: bool) -> None:
    site.client.destinations.pause(PLACE)
    paused = site.rule()
    at_ms = site.changed_ms("paused")
    if not is_here:
        site.redis.hdel(keys.destinations(site.namespace), PLACE)
        site.redis.hdel(keys.controls(site.namespace), f"rule:paused:{PLACE}")
        site.redis.zadd(keys.unrecorded(site.namespace), {f"rule:paused:{PLACE}": at_ms})
    ledger.ask("DELETE FROM control")
    site.record(None if is_here else paused, at_ms)
    site.agree()
    assert site.rule() == site.recorded() == paused


def test_a_change_that_is_recorded_late_does_not_undo_a_later_one(site: ControlsSite) -> None:
    site.record({"rate": 1}, 5)
    site.record({"rate": 2}, 4)
    site.record(None, 4)
    assert site.recorded() == {"rate": 1}
    site.record(None, 6)
    site.record({"rate": 3}, 5)
    assert site.recorded() == {}


def test_of_two_who_change_a_rule_at_once_the_ledger_has_what_redis_has(site: ControlsSite) -> None:
    def change(client: Client, turn: int) -> None:
        if turn % 3:
            client.destinations.set_rule(PLACE, rate=1.0 + turn)
        elif turn % 2:
            client.destinations.pause(PLACE)
        else:
            client.destinations.resume(PLACE)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda turn: change((site.client, site.other)[turn % 2], turn), range(40)))
    assert site.recorded() == site.rule()


def test_a_change_is_later_than_all_before_it_whatever_the_clock_says(site: ControlsSite) -> None:
    site.client.destinations.pause(PLACE)
    future_ms = site.changed_ms("paused") + 3_600_000
    site.redis.hset(keys.controls(site.namespace), "clock", future_ms)
    site.client.destinations.resume(PLACE)
    site.client.destinations.limit(PLACE, 1.0)
    assert site.changed_ms("rate") == future_ms + 2
    site.wipe()
    site.agree()
    assert site.changed_ms("rate") == future_ms + 2
    site.client.destinations.limit(PLACE, 2.0)
    assert site.changed_ms("rate") > future_ms + 2
    assert site.recorded() == {"rate": 2}


def test_what_was_there_before_the_ledger_is_recorded_but_not_what_makes_no_sense(
    site: ControlsSite,
) -> None:
    name, raw = keys.destinations(site.namespace), keys.recurring(site.namespace)
    site.redis.hset(name, PLACE, '{"paused":true}')
    site.redis.hset(name, "x" * 2000, "{}")
    site.redis.hset(raw, "a b", "{}")
    site.agree()
    assert site.are_agreed
    assert site.recorded() == {"paused": True}
    found = site.recorder.ledger.run(Work(site.recorder.controls.all))
    assert [each.name for each in found] == [f"paused:{PLACE}".encode()]
    site.redis.delete(name)
    site.redis.hset(keys.controls(site.namespace), "healed", "another run:x")
    site.agree()
    assert site.rule() == {"paused": True}


@pytest.mark.parametrize("what", ["another comparison", "a change"])
def test_a_comparison_is_in_vain_if_something_came_between(site: ControlsSite, what: str) -> None:
    site.client.destinations.pause(PLACE)
    site.wipe()
    steps = site.agreeing()
    asked = next(steps)
    with pytest.raises(StopIteration) as ended:
        while True:
            if isinstance(asked, Work):  # it has read Redis
                answer = site.recorder.ledger.run(asked)
                if what == "a change":
                    site.other.destinations.set_rule(PLACE, rate=5.0)
                else:
                    assert site.agree() == 1
                    site.client.destinations.resume(PLACE)
            else:
                answer = site.store.run(asked)
            asked = steps.send(answer)
    assert ended.value.value is None
    assert site.rule() == ({"rate": 5} if what == "a change" else {})
    assert site.are_agreed is (what != "a change")


def test_workers_who_compare_at_once_leave_it_to_one_unless_he_died(site: ControlsSite) -> None:
    site.client.destinations.pause(PLACE)
    site.wipe()
    steps = site.agreeing("dead")
    asked = next(steps)
    while not isinstance(asked, Work):
        asked = steps.send(site.store.run(asked))
    assert site.agree("other") is None
    assert site.rule() == {}
    name = keys.controls(site.namespace)
    healed = site.redis.hget(name, "healed").decode()  # type: ignore[union-attr]
    run, _, began = healed.partition(":")
    began_ms, _, rest = began.partition(".")
    site.redis.hset(name, "healed", f"{run}:{int(began_ms) - 15_000}.{rest}")
    assert site.agree("other") == 1
    assert site.are_agreed


def test_what_was_removed_is_forgotten_in_time_and_nothing_else(site: ControlsSite) -> None:
    site.client.destinations.pause(PLACE)
    site.client.destinations.pause("kafka:removed")
    site.client.destinations.resume("kafka:removed")
    at_ms = site.client.run(Calls.now_ms)
    for before_ms, left in ((at_ms - 60_000, {}), (at_ms + 60_000, None)):
        forget = partial(site.recorder.controls.forget, before_ms=before_ms)
        site.recorder.ledger.run(Work(forget))
        assert site.recorded("kafka:removed") == left
    assert site.recorded() == site.rule()


def test_a_pause_that_is_ended_before_it_has_come_back_does_not_come_back(
    site: ControlsSite,
) -> None:
    site.client.destinations.pause(PLACE)
    site.wipe()
    site.client.destinations.resume(PLACE)
    assert site.agree() == 0
    assert site.rule() == site.recorded() == {}


def test_a_change_that_was_recorded_is_forgotten_and_no_other(site: ControlsSite) -> None:
    site.client.destinations.pause(PLACE)
    site.client.destinations.pause("kafka:b")
    site.client.destinations.resume("kafka:b")
    times = site.store.run([reinstating.unrecorded(site.namespace, 9)])[0]
    assert {*times} == {b"rule:paused:kafka:b", f"rule:paused:{PLACE}".encode()}
    clock = site.redis.hget(keys.controls(site.namespace), "clock")
    assert times[b"rule:paused:kafka:b"] == int(clock or 0), "its removal, not the pause"
    site.client.destinations.resume(PLACE)
    found = site.store.complete(reinstating.read_changed(site.namespace, times))
    assert [(each.name, each.value) for each in found] == [(b"paused:kafka:b", b"")], (
        "not the changed one"
    )
    site.store.run(reinstating.recorded(site.namespace, found))
    left = site.store.run([reinstating.unrecorded(site.namespace, 9)])[0]
    assert {*left} == {f"rule:paused:{PLACE}".encode()}


def test_runs_that_were_made_are_not_made_again(site: ControlsSite, ledger: LedgerProbe) -> None:
    site.client.recurring.add("often", "kafka:often", "x", every="1h")
    site.agree()
    definition = site.client.recurring.list()[0].definition
    assert definition is not None
    now_ms = site.client.run(Calls.now_ms)
    made_at = [site.client.run(lambda calls: make_runs(calls, now_ms=now_ms + 5)) for _ in range(2)]
    (first,) = (each.due_ms for one in made_at for each in one if each.due_ms)
    site.redis.flushdb()
    site.client.run(lambda calls: calls.open(again=True))
    assert site.agree() == 1
    now_ms = site.client.run(Calls.now_ms)
    again = site.client.run(lambda calls: make_runs(calls, now_ms=now_ms + 5))
    assert [each.name for each in again] == ["often"], "it is looked at"
    assert not [each.due_ms for each in again if each.due_ms]
    name = RunMaking(site.calls).bucket_for(definition).key("sources")
    assert site.redis.hvals(name) == [str(first[-1]).encode()], "who acts late makes none, too"
    (one,) = site.client.recurring.list()
    assert (one.state, one.next_ms) == ("active", first[-1])
    (found,) = ledger.ask("SELECT count(*) FROM message")
    assert found[0] == 1


def test_a_pause_works_while_the_database_is_down_and_says_that_it_is_not_recorded(
    redis_url: str, namespace: str, caplog: pytest.LogCaptureFixture
) -> None:
    with PostgresServer() as database:
        site = ControlsSite(redis_url, namespace, made(database.url))
        try:
            database.stop()
            with caplog.at_level(logging.WARNING):
                assert site.client.destinations.pause(PLACE).paused
            assert f"control_not_recorded rule:{PLACE} is in force" in caplog.text
            assert site.rule()["paused"]
        finally:
            site.close()
