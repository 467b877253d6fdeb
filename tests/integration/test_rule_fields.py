"""What is changed while Redis lacks something, or has what is older, is later for that alone."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest

from delaybridge import Client
from delaybridge.errors import LedgerUnavailable
from delaybridge.ledger.comparing import reinstating
from delaybridge.ledger.reconciling.agreeing import Agreeing
from delaybridge.ledger.sql.rows import DEFINITION, Control
from delaybridge.store.protocol import keys
from delaybridge.store.protocol.verbs import Work
from tests.rigs.controls_site import PLACE, ControlsSite
from tests.rigs.ledgers import made

WHOLE = {"rate": 5, "dead_letter": "", "retry": {"base_ms": 500, "max_ms": 900}}


@pytest.fixture
def site(redis_url: str, namespace: str, tmp_path: Any) -> Iterator[ControlsSite]:
    site = ControlsSite(redis_url, namespace, made(f"sqlite:///{tmp_path / 'ledger.db'}"))
    yield site
    site.close()


@contextmanager
def without_a_ledger(site: ControlsSite, url: str) -> Iterator[Client]:
    with Client(url, namespace=site.namespace, brokers={"kafka": "kafka://h"}) as client:
        yield client


@contextmanager
def database_down(site: ControlsSite) -> Iterator[None]:
    ledger: Any = site.recorder.ledger

    def down(work: Work[Any]) -> None:
        raise LedgerUnavailable("ledger: down; nothing was written to it")

    ledger.run = down
    yield
    del ledger.run


@pytest.mark.parametrize("is_down", [True, False], ids=["database down", "database up"])
@pytest.mark.parametrize("what", ["rate", "retry", "pause", "resume"])
def test_a_change_of_a_rule_that_redis_lost_is_one_of_that_field_alone(
    site: ControlsSite, what: str, is_down: bool
) -> None:
    site.client.destinations.limit(PLACE, 5.0)
    site.client.destinations.retry_plan(PLACE, {"base_ms": 500, "max_ms": 900, "dead_letter": ""})
    site.client.destinations.pause(PLACE)
    site.wipe()
    changes = {
        "rate": lambda: site.client.destinations.limit(PLACE, 7.0),
        "retry": lambda: site.client.destinations.retry_plan(PLACE, {"max_ms": 700}),
        "pause": lambda: site.client.destinations.pause(PLACE),
        "resume": lambda: site.client.destinations.resume(PLACE),
    }
    if is_down:
        with database_down(site):
            changes[what]()
    else:
        changes[what]()
    assert site.agree() is not None
    after = site.rule()
    assert after == site.recorded()
    assert after.pop("paused", False) is (what != "resume")
    after.pop("paused_ms", None)
    retry = {"base_ms": 500, "max_ms": 700 if what == "retry" else 900}
    assert after == WHOLE | {"rate": 7 if what == "rate" else 5, "retry": retry}


def test_a_pause_of_what_is_paused_already_counts_more_than_an_end_that_redis_lost(
    site: ControlsSite,
) -> None:
    site.client.destinations.pause(PLACE)
    site.client.recurring.add("off", PLACE, "x", cron="0 4 * * *")
    site.client.recurring.pause("off")
    site.client.recurring.add("here", PLACE, "x", cron="0 4 * * *")
    older, before = site.snapshot(), site.rule()
    site.client.destinations.resume(PLACE)
    site.client.recurring.resume("off")
    site.client.recurring.remove("here")
    site.go_back(older)
    site.client.destinations.pause(PLACE)
    assert site.client.recurring.pause("off")
    site.client.recurring.add("here", PLACE, "x", cron="0 4 * * *")
    site.agree()
    assert site.rule() == site.recorded() == before
    states = {one.name: one.state for one in site.client.recurring.list()}
    assert states == {"off": "paused", "here": "active"}


def test_a_pause_of_a_client_without_a_ledger_is_not_undone(
    site: ControlsSite, redis_url: str
) -> None:
    site.client.destinations.resume(PLACE)
    site.client.destinations.limit(PLACE, 5.0)
    site.agree()
    site.wipe()
    with without_a_ledger(site, redis_url) as plain:
        plain.destinations.pause(PLACE)
    site.agree()
    assert site.rule() == site.recorded()
    assert (site.rule()["paused"], site.rule()["rate"]) == (True, 5)


def test_a_definition_that_redis_lost_is_removed_all_the_same(site: ControlsSite) -> None:
    site.client.recurring.add("gone", PLACE, "x", every="1h")
    site.client.recurring.add("stays", PLACE, "x", every="1h")
    site.wipe()
    assert not site.client.recurring.remove("gone")
    with pytest.raises(LedgerUnavailable, match="call again"):
        site.client.recurring.pause("stays")
    site.agree()
    assert [one.name for one in site.client.recurring.list()] == ["stays"]
    assert site.client.recurring.pause("stays")
    assert not site.client.recurring.pause("unknown")


def test_only_how_far_the_present_plan_is_goes_into_the_ledger(site: ControlsSite) -> None:
    run, records = site.recorder.ledger.run, site.recorder.controls
    value = b'{"plan":{"birth":"new"}}'
    run(Work(lambda on: records.record(on, [Control(DEFINITION, b"d", value, 5)])))
    run(Work(lambda on: records.made(on, b"d", "new", 5000)))
    run(Work(lambda on: records.made(on, b"d", "old", 9000)))
    (found,) = run(Work(records.all))
    assert (found.birth, found.made_ms) == ("new", 5000)


def test_a_time_that_somebody_wrote_by_hand_is_none(site: ControlsSite) -> None:
    site.client.destinations.pause(PLACE)
    name = keys.controls(site.namespace)
    site.redis.hset(name, mapping={f"rule:paused:{PLACE}": "soon", "rule:rate:kafka:x": "inf"})
    site.redis.zadd(keys.unrecorded(site.namespace), {"rule:rate:kafka:x": "inf"})
    assert site.agree() is not None
    assert site.rule()["paused"]


def test_what_only_a_worker_knows_is_in_redis_before_anybody_compares_it(
    site: ControlsSite,
) -> None:
    site.client.destinations.limit(PLACE, 5.0)
    site.agree()
    with database_down(site):
        site.client.destinations.pause(PLACE)
        site.client.recurring.add("job", PLACE, "x", every="1h")
    paused, at_ms = site.rule(), site.changed_ms("paused")
    times = site.store.run([reinstating.unrecorded(site.namespace)])[0]
    known = site.store.complete(reinstating.read_changed(site.namespace, times))
    site.wipe()
    steps = site.agreeing("new")
    asked: Any = next(steps)
    while not isinstance(asked, Work):  # it has read Redis
        asked = steps.send(site.store.run(asked))
    for _ in "ab":
        site.store.complete(reinstating.remind(site.namespace, known))
    assert (site.rule()["paused"], site.changed_ms("paused")) == (True, at_ms)
    assert site.store.run([reinstating.unrecorded(site.namespace)])[0] == times
    with pytest.raises(StopIteration) as ended:
        while True:
            is_work = isinstance(asked, Work)
            asked = steps.send(
                site.recorder.ledger.run(asked) if is_work else site.store.run(asked)
            )
    assert ended.value.value is None and not site.are_agreed
    assert site.agree("new") is not None
    assert site.rule() == site.recorded() == paused
    assert [one.name for one in site.client.recurring.list()] == ["job"]


class Counted:
    """A connection; how many statements it was given."""

    def __init__(self, on: Any) -> None:
        self._on, self.statements = on, 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._on, name)

    def execute(self, *args: Any) -> Any:
        self.statements += 1
        return self._on.execute(*args)


def test_many_are_recorded_by_few_statements_in_transactions_of_their_own(
    site: ControlsSite,
) -> None:
    raw = {f"kafka:{number}": '{"rate":1}' for number in range(450)}
    site.redis.hset(keys.destinations(site.namespace), mapping=raw)
    works, steps = list[int](), site.agreeing("w")
    asked: Any = next(steps)
    with pytest.raises(StopIteration):
        while True:
            if isinstance(asked, Work):
                counted = list[Counted]()

                def run(on: Any, work: Any = asked, seen: Any = counted) -> Any:
                    seen.append(Counted(on))
                    return work.run(seen[0])

                answer: Any = site.recorder.ledger.run(Work(run))
                works.append(counted[0].statements)
                if len(works) == 3:  # it began long ago, and is at work
                    _began_long_ago(site)
                    assert site.agree("other") is None
            else:
                answer = site.store.run(asked)
            asked = steps.send(answer)
    assert works == [1, 2, 2, 2]
    assert len(site.recorder.ledger.run(Work(site.recorder.controls.all))) == 450


def _began_long_ago(site: ControlsSite) -> None:
    name = keys.controls(site.namespace)
    healed, going = (each.decode() for each in site.redis.hmget(name, "healed", "going") if each)
    began_ms = healed.partition(":")[2].partition(".")[0]
    assert int(going.partition(".")[0]) >= int(began_ms)
    long_ago = healed.replace(began_ms, str(int(began_ms) - 20_000))
    went_ms = going.partition(".")[0]
    site.redis.hset(name, mapping={"healed": long_ago, "going": f"{went_ms}.{long_ago[1:]}"})


class Silent:
    """The store and the ledger of a worker; the ledger does not answer."""

    def __init__(self, site: ControlsSite) -> None:
        self._site, self.recorder = site, site.recorder
        self.ledger, self.controls, self.records = self, site.recorder.controls, None

    async def run_async(self, work: Work[Any]) -> Any:
        return self._site.recorder.ledger.run(work)

    async def complete(self, steps: Any) -> Any:
        return self._site.store.complete(steps)

    async def run(self, commands: Any) -> Any:
        return self._site.store.run(commands)


async def test_all_that_is_changed_during_an_outage_is_remembered_not_just_the_first(
    site: ControlsSite,
) -> None:
    site.agree()
    silent: Any = Silent(site)
    destinations: Any = SimpleNamespace(agree=True, known=True)
    unrecorded: dict[Any, Control] = {}
    agreeing = Agreeing(silent, silent, site.calls, destinations, silent, unrecorded)
    with database_down(site):
        _ = [site.client.destinations.pause(f"kafka:{number}") for number in range(230)]
        for _ in "ab":
            agreeing.take_replies(site.store.run_each(agreeing.commands()))
            with pytest.raises(LedgerUnavailable):
                await agreeing._record()
    assert len(unrecorded) == 230
    await agreeing._record()
    assert not unrecorded
    assert not site.redis.exists(keys.unrecorded(site.namespace))
    assert len(site.recorder.ledger.run(Work(site.recorder.controls.all))) == 230
