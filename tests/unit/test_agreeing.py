"""With a ledger, a worker obeys what Redis says of destinations only if the ledger agrees."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from delaybridge.errors import LedgerUnavailable, StoreError, StoreUnavailable
from delaybridge.ledger.comparing.reinstating import pages
from delaybridge.ledger.reconciling import agreeing
from delaybridge.ledger.reconciling.agreed_rules import AgreedDestinations
from delaybridge.ledger.reconciling.agreeing import Agreeing
from delaybridge.ledger.reconciling.part import WorkerLedger
from delaybridge.ledger.recording.recorder import recorder_of
from delaybridge.ledger.sql.rows import RULE, Control, ControlName
from delaybridge.recurring.rounds import RecurringRuns
from delaybridge.settings.sections import LedgerSettings
from delaybridge.store.namespace.ledger_agreement import Agreement, agreed
from delaybridge.store.namespace.rules import Rule, Rules
from delaybridge.worker.parts import RunView
from delaybridge.worker.service import Identity

PAUSED, LIMITED = {"paused": True, "paused_ms": 7}, {"rate": 5}
GOOD = Agreement("run:1", 1, 0)
OTHERS = {
    "it was wiped": (Agreement(), Agreement()),
    "another run": (Agreement("other:1", 1), Agreement("other:1", 1)),
    "it is being compared": (Agreement("?run:1", 1), Agreement("?run:1", 1)),
    "compared again meanwhile": (Agreement("run:1", 1), Agreement("run:2", 1)),
    "it cannot be read": (StoreError("redis: x"), GOOD),
    "rules were deleted": (Agreement("run:1", 9), Agreement("run:1", 9)),
}


def replies(found: AgreedDestinations, rules: dict[str, Any], before: Any, after: Any) -> list[Any]:
    _, read, *_ = found.commands()
    flat = [part for name, rule in rules.items() for part in (name, json.dumps(rule))]
    return [before, read.parse([each.encode() for each in flat]), after, {"run_id": "run"}]


@pytest.fixture
def found() -> AgreedDestinations:
    found = AgreedDestinations("ns", {})
    found.take_replies(replies(found, {"kafka:a": PAUSED, "kafka:b": LIMITED}, GOOD, GOOD))
    assert found.agree
    return found


@pytest.mark.parametrize("what", OTHERS)
def test_until_both_agree_the_rules_known_before_stay_in_force(
    found: AgreedDestinations, what: str
) -> None:
    known, told = found.rules, list[Rules]()
    found.follow(told.append)
    found.take_replies(replies(found, {"kafka:b": {"rate": 9}}, *OTHERS[what]))
    assert not found.agree
    assert found.rules == known and not told
    found.take_replies(replies(found, {"kafka:b": {"rate": 9}}, GOOD, GOOD))
    assert found.rules.by_place == {"kafka:b": Rule(rate=9.0)}
    assert found.agree and len(told) == 1


def test_rules_are_known_as_long_as_they_are_read(
    found: AgreedDestinations, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a pause may have come meanwhile, and been lost."""
    wiped = replies(found, {}, Agreement(), Agreement())
    found.take_replies(wiped)
    assert found.known and not found.agree
    for unread in ([StoreUnavailable("redis: x")] * 4, []):
        if not unread:
            monkeypatch.setattr(found, "_read_s", found._read_s - 10)
        found.take_replies(unread or replies(found, {}, Agreement(), Agreement()))
        found.take_replies(replies(found, {}, Agreement(), Agreement()))
        assert not found.known
        found.take_replies(replies(found, {}, Agreement("run:2"), Agreement("run:2")))
        assert found.known


def test_a_pause_is_obeyed_whatever_the_ledger_says(found: AgreedDestinations) -> None:
    empty = Agreement()
    found.take_replies(replies(found, {"kafka:b": PAUSED, "kafka:c": PAUSED}, empty, empty))
    paused = {place for place, rule in found.rules.by_place.items() if rule.paused}
    assert paused == {"kafka:a", "kafka:b", "kafka:c"}
    assert found.rules.by_place["kafka:b"] == Rule(True, 5.0, paused_ms=7)
    found.take_replies(replies(found, {}, Agreement("run:2"), Agreement("run:2")))
    assert not found.rules.by_place


def test_a_worker_that_has_just_started_knows_nothing_yet() -> None:
    found = AgreedDestinations("ns", {})
    assert not found.agree
    found.take_replies(replies(found, {"kafka:a": PAUSED}, Agreement(), Agreement()))
    assert found.rules.by_place["kafka:a"].paused and not found.agree


async def test_no_run_is_made_of_definitions_that_may_be_of_the_past() -> None:
    calls: Any = SimpleNamespace(namespace="ns")
    store: Any = SimpleNamespace(recorder="a ledger")
    past: Any = None
    found = RecurringRuns()
    found.begin(RunView(store, calls, past, tuple, tuple, past, past, past))
    _, recur, number, _, _ = found.commands()
    taken = recur.parse([7, b"job", b"{}", b""])
    good = Agreement("run:1", 0, 1)
    for before, after, count in ((Agreement(), Agreement(), 1), (good, Agreement(), 1)):
        assert found._taken([before, taken, count, after, {"run_id": "run"}]) is None
        assert not found.agree
    assert found._taken([good, taken, 1, good, {"run_id": "run"}]) == taken
    assert found.agree
    assert found._taken([good, taken, 0, good, {"run_id": "run"}]) is None, "one was deleted"
    assert (recur.name, number.name) == ("recur", "HLEN")


def test_without_a_run_id_nothing_is_known() -> None:
    assert agreed([Agreement(":1"), Agreement(":1"), {}]) == (None, [])
    assert agreed([GOOD, "reply", GOOD, {"run_id": "run"}]) == (GOOD, ["reply"])


PAUSE, LIMIT = b'{"paused":true}', b'{"rate":5}'


@pytest.mark.parametrize(
    ("value", "at_ms", "other", "other_ms", "wins"),
    [
        (LIMIT, 6, PAUSE, 5, True),
        (b"", 6, PAUSE, 5, True),
        (PAUSE, 4, LIMIT, 5, False),
        (PAUSE, 5, LIMIT, 5, True),
        (PAUSE, 5, b"", 5, True),
        (LIMIT, 5, PAUSE, 5, False),
        (LIMIT, 5, b'{"rate":6}', 5, False),
        (b'{"rate":6}', 5, LIMIT, 5, True),
        (PAUSE, 5, PAUSE, 5, False),
        (b'{"paused":true,"rate":1}', 5, PAUSE, 5, False),
        (b"not JSON", 5, PAUSE, 5, False),
    ],
)
def test_the_later_change_counts_and_in_a_tie_a_pause(
    value: bytes, at_ms: int, other: bytes, other_ms: int, wins: bool
) -> None:
    here = Control(RULE, b"kafka:a", value, at_ms)
    assert here.wins(Control(RULE, b"kafka:a", other, other_ms)) is wins
    assert here.wins(None)


class Kept:
    """A worker's side of a ledger that is away as long as `error` is set. told: to Redis."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.error: Exception | None = None
        self.recorded: list[Control] = []
        self.told: list[int] = []
        self.found: dict[bytes, Control] = {}
        self.during: Callable[[], None] = lambda: None
        recorder: Any = SimpleNamespace(controls=self, ledger=self)
        reads = SimpleNamespace(
            read_changed=lambda _, times: [self.found[name] for name in times],
            pages=pages,
            recorded=lambda _, known: [each.changed_ms for each in known],
        )
        monkeypatch.setattr(agreeing, "reinstating", reads)
        calls: Any = SimpleNamespace(namespace="ns")
        self.unrecorded: dict[ControlName, Control] = {}
        nobody: Any = None
        kept: Any = self
        self.agreeing = Agreeing(kept, recorder, calls, nobody, nobody, self.unrecorded)

    async def changed(self, *found: Control) -> None:
        """Redis says that these have changed."""
        self.found = {b"rule:" + each.name: each for each in found}
        self.agreeing.take_replies([{name: each.changed_ms for name, each in self.found.items()}])
        await self.agreeing._record()

    async def complete(self, found: Any) -> Any:
        return found

    async def run(self, times: Sequence[int]) -> None:
        self.told += times

    async def run_async(self, work: Any) -> None:
        self.during()
        if self.error is not None:
            raise self.error
        work.run(None)

    def record(self, on: Any, found: Sequence[Control]) -> None:
        self.recorded += found


async def test_who_waited_for_the_ledger_compares_only_what_nobody_has_compared_since(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Else two workers whose database is slow compare in turn, and never agree."""
    reads, compared = list[bool](), list[str]()
    destinations: Any = SimpleNamespace(agree=False)

    async def read(_: Any) -> None:
        reads.append(destinations.agree)

    async def share() -> None:
        destinations.agree = True  # another worker's comparison has ended meanwhile

    async def compare(_: Any) -> None:
        compared.append("again")

    destinations.read = read
    reconciling: Any = SimpleNamespace(waiting=SimpleNamespace(ledger=SimpleNamespace(share=share)))
    monkeypatch.setattr(Agreeing, "_compare", compare)
    nothing: Any = None
    agreeing = Agreeing(nothing, nothing, nothing, destinations, reconciling, {})
    assert await agreeing._agree()
    assert (reads, compared) == ([False, True], [])


def limit(at_ms: int, place: bytes = b"kafka:a") -> Control:
    return Control(RULE, b"rate:" + place, LIMIT, at_ms)


async def test_what_the_ledger_did_not_take_is_remembered_and_the_latest_of_each(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    kept = Kept(monkeypatch)
    kept.error = LedgerUnavailable("ledger: gone")
    for change in (limit(5), limit(7), limit(6), limit(1, b"kafka:b")):
        with pytest.raises(LedgerUnavailable):
            await kept.changed(change)
    assert (kept.told, kept.recorded) == ([], [])
    kept.error = None
    await kept.changed()
    assert kept.recorded == [limit(7), limit(1, b"kafka:b")]
    assert kept.told == [7, 1]
    assert kept.unrecorded == {}


async def test_a_change_while_another_is_recorded_is_not_forgotten(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    kept, later = Kept(monkeypatch), limit(6)
    kept.during = lambda: kept.unrecorded.update({later.key: later})
    await kept.changed(limit(5))
    assert (kept.recorded, kept.told) == ([limit(5)], [5])
    assert kept.unrecorded == {later.key: later}


def test_what_only_this_worker_knows_to_be_paused_is_not_eased() -> None:
    """Somebody who did not know it has compared them: for him Redis and the ledger agree."""
    name = RULE, b"paused:kafka:a"
    unrecorded = {name: Control(*name, PAUSE, 5)}
    found = AgreedDestinations("ns", unrecorded)
    found.take_replies(replies(found, {"kafka:a": PAUSED, "kafka:b": LIMITED}, GOOD, GOOD))
    other = Agreement("run:2")
    for _ in "ab":
        found.take_replies(replies(found, {}, other, other))
        assert found.agree
        assert {place: rule.paused for place, rule in found.rules.by_place.items()} == {
            "kafka:a": True
        }
    del unrecorded[name]
    found.take_replies(replies(found, {}, other, other))
    assert not found.rules.by_place


async def test_a_report_tells_of_the_ledger_while_a_run_works(tmp_path: Path) -> None:
    """Also not of a run that ended before: then it was not closed."""
    settings: Any = SimpleNamespace(namespace="ns", ledger=LedgerSettings())
    store: Any = SimpleNamespace(recorder=recorder_of(f"sqlite:///{tmp_path}/db", "ns", 1.0, 0.0))
    calls: Any = SimpleNamespace(namespace="ns")
    past: Any = SimpleNamespace(marks={}, doubt=set())
    part = WorkerLedger(settings, Identity("w", "i", b"{}"), lambda: True)

    def is_told() -> bool:
        said: dict[str, Any] = {}
        part.report(said)
        return "ledger" in said

    for _ in "ab":
        part.begin(RunView(store, calls, past, tuple, tuple, past, past, past))
        assert not is_told()
    for task in part.tasks():
        task.close()
    assert is_told()
    await part.close()
    assert not is_told()
    store.recorder.ledger.close()
