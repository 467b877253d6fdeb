"""What a worker tells the ledger of one bucket, and when it may claim from it: step by step."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from delaybridge.errors import LedgerUnavailable
from delaybridge.ledger.comparing import healing
from delaybridge.ledger.reconciling import attempts, reconciling
from delaybridge.ledger.reconciling.happened import Happened
from delaybridge.ledger.reconciling.reconciling import Reconciling
from delaybridge.ledger.recording.recorder import LedgerRecorder
from delaybridge.ledger.sql.rows import CANCELLED, DELAYED, PUBLISHED
from delaybridge.scan.leases.session import Session
from delaybridge.settings.durability import Durability, Keeping
from delaybridge.store.namespace.marks import Marks
from delaybridge.store.protocol import keys
from delaybridge.store.protocol.recorder import open_recorder
from delaybridge.store.protocol.verbs import Work
from delaybridge.store.redis.store import AsyncStore
from tests.rigs.bucket import NUMBER, TTL_MS, World
from tests.rigs.bucket_session import copy_of
from tests.rigs.ledgers import LedgerProbe, made, row
from tests.rigs.waiting import DEADLINE_S, ended, until_async

GONE = LedgerUnavailable("ledger: gone")


class Side:
    """A bucket with a ledger, and its owner's side of it without a scanner.

    asked: called with each work of the ledger before it is done.
    """

    def __init__(self, world: World, url: str) -> None:
        self.world, self.probe = world, LedgerProbe(url)
        kept = Durability(Keeping.LEDGER)
        recorder = open_recorder(kept, url, world.namespace, DEADLINE_S, 3600)
        assert isinstance(recorder, LedgerRecorder)
        self.recorder = recorder
        self.store = AsyncStore(world.url, recorder=recorder)
        self.happened = Happened("w")
        self.reconciling = self.new_worker()
        self.owner = world.owner()
        self.session = self.session_of(self.owner.token, self.owner.turn)
        self.asked: Callable[[Work[Any]], None] = lambda work: None
        self.lost_answers = 0
        self._run, recorder.ledger.run_async = recorder.ledger.run_async, self._asks  # type: ignore[method-assign]
        self.works = 0

    def new_worker(self) -> Reconciling:
        found = Reconciling(self.store, self.recorder, self.happened)
        found.marks = lambda: {NUMBER: Marks(1)}
        found.sessions = lambda: [self.session]
        return found

    def session_of(self, token: str, turn: int) -> Session:
        session = Session(self.world.bucket, token, turn, TTL_MS, 0.0)
        session.reclaimed()
        return session

    async def _asks(self, work: Work[Any]) -> Any:
        self.works += 1
        self.asked(work)
        answer = await self._run(work)
        if self.lost_answers:
            self.lost_answers -= 1
            raise GONE
        return answer

    def rows(self, *ids: str, created_ms: int = 0) -> None:
        """Their rows, as the stamps of `World` count."""
        records = self.recorder.records
        found = [
            row(id, n, bucket=NUMBER, due_ms=self.world.now_ms, created_ms=created_ms)
            for n, id in enumerate(ids, 1)
        ]
        self.recorder.ledger.run(Work(lambda on: records.add(on, found)))

    def leave(self, *ids: str) -> None:
        """They are scheduled, and published."""
        for id in ids:
            self.world.schedule(id, self.world.now_ms)
        self.owner.claim()
        copies = self.owner.fire(self.world.now_ms + 0.999)
        self.world.run(self.owner.settling(*copies))

    @property
    def states(self) -> dict[str, str]:
        found = self.probe.ask("SELECT id, state FROM message")
        return {str(id): str(state) for id, state in found}

    @property
    def steps(self) -> list[str]:
        return sorted(id for (id,) in self.probe.ask("SELECT id FROM transition"))

    @property
    def healed(self) -> str:
        return (self.world.redis.hget(self.world.key("marks"), "healed") or b"").decode()  # type: ignore[union-attr]

    async def close(self) -> None:
        await self.store.close()
        self.probe.close()


@pytest.fixture
async def side(redis_url: str, namespace: str, tmp_path: Path) -> AsyncIterator[Side]:
    now_ms = time.time_ns() // 1_000_000
    with World(redis_url, namespace, now_ms) as world:
        side = Side(world, made(f"sqlite:///{tmp_path / 'ledger.db'}"))
        await side.store.run_one(healing.seal(world.bucket, side.session.owner))
        yield side
        await side.close()


# what left


@pytest.mark.parametrize("count", [1, 2, 5, 6])
async def test_all_that_left_is_told_once(
    side: Side, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if it fills pages, is told by the next worker, too, or an answer was lost."""
    monkeypatch.setattr(reconciling, "_PAGE", 2)
    first, then, last = ([f"{group}{n}" for n in range(count)] for group in "abc")
    side.rows(*first, *then, *last, "stays")
    side.leave(*first)
    for worker in (side.reconciling, side.new_worker()):
        await worker._tell(side.session)
        assert side.steps == first
    side.leave(*then)
    await side.reconciling._tell(side.session)
    assert side.steps == [*first, *then]
    side.leave(*last)
    side.lost_answers = 1
    with pytest.raises(LedgerUnavailable):
        await side.reconciling._tell(side.session)
    for _ in range(2):
        await side.reconciling._tell(side.session)
        assert side.steps == [*first, *then, *last]
    assert side.states == dict.fromkeys(side.steps, PUBLISHED) | {"stays": DELAYED}


async def test_what_leaves_while_the_ledger_is_told_is_remembered(side: Side) -> None:
    copies = [copy_of(side.session, id) for id in ("first", "second", "third")]
    side.rows("first")
    side.leave("first")
    side.reconciling.left(side.session, copies[:1], 1)

    def fails(_: Work[Any]) -> None:
        side.asked = lambda work: side.reconciling.left(side.session, copies[1:2], 2)
        raise GONE

    side.asked = fails
    with pytest.raises(LedgerUnavailable):
        await side.reconciling._tell(side.session)
    assert [each.name[1] for each in side.happened.of_bucket(NUMBER)] == ["first"]
    await side.reconciling._tell(side.session)
    assert [each.name[1] for each in side.happened.of_bucket(NUMBER)] == ["second"]
    assert side.reconciling._may_have_left(side.session), "so it is looked for again"


async def test_a_bucket_of_which_all_is_told_is_not_asked_again(side: Side) -> None:
    """Unless its marks say that something happened, or a copy left while it was asked."""
    may_have_left = side.reconciling._may_have_left
    assert may_have_left(side.session)
    for _ in range(3):  # entries of `gone` are kept for two seals
        await side.reconciling._tell(side.session)
    assert not may_have_left(side.session)
    side.reconciling.marks = lambda: {NUMBER: Marks(1, cancelled=1)}
    assert may_have_left(side.session)
    await side.reconciling._tell(side.session)
    assert not may_have_left(side.session)
    side.reconciling.left(side.session, [copy_of(side.session, "x")], 1)
    assert may_have_left(side.session)
    run = side.store.run

    async def run_while_one_leaves(commands: Any) -> Any:
        answers = await run(commands)
        side.reconciling.left(side.session, [copy_of(side.session, "y")], 1)
        return answers

    side.store.run = run_while_one_leaves  # type: ignore[method-assign]
    await side.reconciling._seal(side.session)
    side.reconciling._left[side.session] = 0
    assert may_have_left(side.session)


async def test_what_was_delivered_of_buckets_of_others_is_told(
    side: Side, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reconciling, "_TELL_S", 0.01)
    side.happened.left(NUMBER + 1, [copy_of(side.session, "x")], 1)
    telling = asyncio.create_task(side.reconciling.keep_told())
    await until_async(lambda: not side.happened.messages, "the ledger has it")
    await ended(telling)


async def test_a_burial_that_is_told_late_is_not_of_a_later_call(side: Side) -> None:
    """The later message would be brought into the dead set, and never arrive."""
    side.rows("x", "x")
    side.probe.ask("UPDATE message SET tier = 0, state = 'cancelled' WHERE stamp = 1")
    side.session.exits.bury(copy_of(side.session, "x").item, "expired: ttl", counted=False)
    side.reconciling.exits_stored(side.session, side.session.exits.take_report(), 1)
    await side.happened.tell_history(side.recorder.ledger, side.recorder.records)
    found = side.probe.ask("SELECT stamp, state FROM message ORDER BY stamp")
    assert [*map(tuple, found)] == [(1, CANCELLED), (2, DELAYED)]
    assert side.steps == ["x"]


# before the first claim


async def compared(side: Side) -> None:
    """The bucket agrees with the ledger, by a session that is over."""
    assert await side.reconciling.verify(side.session)
    assert not side.healed.startswith("?")
    side.works = 0


@pytest.mark.parametrize("why", ["", "in doubt", "mended", "another run"])
async def test_a_bucket_is_compared_if_it_may_be_of_the_past(side: Side, why: str) -> None:
    """What was cancelled since is dropped; else nobody asks the ledger, which may be away."""
    side.rows("cancelled")
    side.world.schedule("cancelled", side.world.now_ms)
    await compared(side)
    side.probe.ask("UPDATE message SET state = :state, tier = 0", state=CANCELLED)
    session = side.session = side.session_of(side.owner.token, side.owner.turn)
    if why == "in doubt":
        side.reconciling.doubt.add(NUMBER)
    elif why == "another run":
        side.world.redis.hset(side.world.key("marks"), "healed", "run:x")
    session.was_mended = why == "mended"
    assert await side.reconciling.verify(session)
    assert side.world.place("cancelled") == (None if why else "due")
    assert bool(side.works) == bool(why)
    assert not side.reconciling.doubt


async def test_what_left_before_a_comparison_is_told_before_it(side: Side) -> None:
    """Under a name of that comparison, so that no restore of before has any effect."""
    side.rows("left", "lost")
    side.leave("left")
    names = list[str]()
    side.asked = lambda work: names.append(side.healed)
    assert await side.reconciling.verify(side.session)
    assert side.states == {"left": PUBLISHED, "lost": DELAYED}
    assert (side.world.place("left"), side.world.place("lost")) == (None, "due")
    assert {*names} == {"", f"?{side.session.token}"}
    assert side.healed == f"{side.session.server}:{side.session.token}"
    assert side.reconciling.announced()["waiting"] == 0


async def test_a_bucket_stays_in_doubt_until_a_comparison_has_ended(
    side: Side, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whichever call to the ledger fails."""
    monkeypatch.setattr(attempts, "_CALM_S", 0)
    side.rows("left", "lost")
    side.leave("left")
    side.reconciling.doubt.add(NUMBER)
    place = 0

    def fails(_: Work[Any]) -> None:
        if side.works == place:
            raise GONE

    side.asked = fails
    while side.reconciling.doubt:
        place, side.works = place + 1, 0
        with suppress(LedgerUnavailable):
            assert await side.reconciling._verify(side.session, 0.0)
        assert side.reconciling.doubt == (set() if side.works < place else {NUMBER})
    assert place > 3


async def test_a_session_whose_bucket_was_taken_meanwhile_does_not_claim(side: Side) -> None:
    side.rows("lost")

    def taken(_: Work[Any]) -> None:
        side.world.end_lease()
        side.world.owner("other")

    side.reconciling.doubt.add(NUMBER)
    place, claims = 0, False
    while not claims:
        place, side.works = place + 1, 0
        side.asked = lambda work, n=place: taken(work) if side.works == n else None  # type: ignore[misc]
        claims = await side.reconciling.verify(side.session)
        assert side.reconciling.doubt == (set() if claims else {NUMBER})
        side.world.end_lease()
        side.owner = side.world.owner()
        side.session = side.session_of(side.owner.token, side.owner.turn)
    assert place > 3, "whichever call to the ledger it was"


async def test_a_wipe_before_what_left_is_read_ends_only_the_session(side: Side) -> None:
    side.rows("left")
    side.leave("left")
    run, wiped = side.store.run, list[str]()

    async def run_later(commands: Any) -> Any:
        if not wiped and commands[0].name == "ZRANGEBYSCORE":
            wiped.extend(map(side.world.key, keys.BUCKET_KEYS))
            side.world.redis.delete(*wiped)
        return await run(commands)

    side.store.run = run_later  # type: ignore[method-assign]
    assert not await side.reconciling.verify(side.session)
    assert wiped
    side.owner = side.world.owner()
    side.session = side.session_of(side.owner.token, side.owner.turn)
    assert await side.reconciling.verify(side.session)
    assert side.world.place("left") == "due", "nobody knows any more that it left"


async def test_others_have_time_to_tell_once_the_ledger_answers(
    side: Side, monkeypatch: pytest.MonkeyPatch
) -> None:
    slept = list[float]()

    async def sleep(seconds: float) -> None:
        slept.append(seconds)

    monkeypatch.setattr(reconciling, "asyncio", SimpleNamespace(sleep=sleep))
    side.reconciling.silence.last_s = time.monotonic() + 1000
    assert await side.reconciling.verify(side.session)
    assert [each for each in slept if each > 1000]


# from time to time


async def test_rows_of_calls_that_may_be_under_way_are_not_missing(side: Side) -> None:
    """A message whose row was just committed is not in Redis yet."""
    side.rows("young", created_ms=side.world.now_ms)
    side.rows("", "old", created_ms=side.world.now_ms - 10 * 60_000)
    side.probe.ask("DELETE FROM message WHERE id = ''")
    await side.reconciling._reconcile(side.session)
    assert (side.world.place("young"), side.world.place("old")) == (None, "due")
    assert side.reconciling.announced()["restored"] == 1
    side.probe.ask("UPDATE message SET created_ms = created_ms - 60000")
    await side.reconciling._reconcile(side.session)
    assert side.world.place("young") == "due"


async def test_a_row_that_differs_is_mended_if_it_did_so_before(side: Side) -> None:
    """Once it may be that a call has told Redis, and not the ledger yet."""
    side.rows("x")
    side.world.schedule("x", side.world.now_ms + 5)
    for mended in (0, 1, 0):
        due_ms = side.probe.due_ms("x")
        await side.reconciling._reconcile(side.session)
        assert side.reconciling.announced()["mended"] == mended
        assert side.probe.due_ms("x") - due_ms == 5 * mended


async def test_only_buckets_that_may_be_claimed_are_compared_and_only_sound_ones(
    side: Side,
) -> None:
    """Others are compared by the next session."""
    waiting, over = (side.session_of(f"w:{n}", n) for n in range(2))
    waiting.ready = over.alive = False
    side.reconciling.sessions = lambda: [waiting, over, side.session]
    looked = list[Session]()

    async def is_sound(session: Session) -> bool:
        looked.append(session)
        return len(looked) > 3

    holder: Any = SimpleNamespace(is_sound=is_sound)
    waiting.holder = over.holder = side.session.holder = holder
    comparing = asyncio.create_task(side.reconciling.reconcile(0.01))
    await until_async(lambda: side.works, "it is compared")
    await ended(comparing)
    assert {*looked} == {side.session}
    assert len(looked) > 3
