"""Steps of the scanner under load, without servers: when to claim, fire and tell, and how much."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Coroutine, Sequence
from math import inf
from typing import Any

import pytest

from delaybridge.message import Delivery, Record
from delaybridge.publish import CONFIRMED
from delaybridge.scan.lanes.flow import FIRST
from delaybridge.scan.lanes.lane import Broker, Copy, Lot
from delaybridge.scan.lanes.lanes import Lanes
from delaybridge.scan.lanes.limit import Limit
from delaybridge.scan.lanes.retry import RetryPolicy
from delaybridge.scan.leases.session import Session
from delaybridge.scan.scanner import Scanner
from delaybridge.scan.wheel.claiming import ScanOptions
from delaybridge.scan.wheel.wheel import WaitingCopies
from delaybridge.store.protocol.record import Tried
from delaybridge.store.protocol.replies import Claim
from tests.rigs.bucket_session import new_session

NOW_MS = 1_800_000_000_000
WINDOW = 1000
BUCKETS = 16


class Recorder:
    """Stands in for the clock, the alarm and a publisher; counts rings."""

    name, unavailable = "a", None

    def __init__(self) -> None:
        self.rings = 0
        self.now = NOW_MS
        self.taken: list[Delivery] = []

    def now_ms(self) -> int:
        return self.now

    def monotonic(self) -> float:
        return 0.0

    def ring(self) -> None:
        self.rings += 1

    def publish(self, deliveries: Sequence[Delivery]) -> None:
        self.taken += deliveries


class KeptSteps(Scanner):
    """A scanner that runs no step: it keeps the names of those that it would run."""

    started: list[str]
    arguments: dict[str, Any]

    def keep_step(self, work: Coroutine[Any, Any, None]) -> None:
        self.started.append(work.__qualname__.rpartition("._")[2])
        self.arguments = dict(work.cr_frame.f_locals)  # type: ignore[attr-defined]
        work.close()

    def hold(self, session: Session) -> None:
        """Own a bucket that has nothing to be reclaimed."""
        self._sessions[session.bucket.number] = session


class Rig:
    """A scanner whose steps are kept, not run."""

    def __init__(self, **options: int) -> None:
        self.stub: Any = Recorder()
        self.lanes = Lanes(
            {"a": Broker("memory", self.stub)},
            RetryPolicy(),
            lambda _: None,
            window_messages=WINDOW,
            window_bytes=2**30,
        )
        self.scanner = KeptSteps(
            self.stub, self.lanes, self.stub, self.stub, lambda _: None, ScanOptions(**options),
            lost=lambda *_: None, damaged=lambda *_: None, retake=lambda *_: None,
            allow=lambda _: None,
        )  # fmt: skip
        self.scanner.calls.start = self.scanner.keep_step  # type: ignore[method-assign]
        self.sessions = [new_session(number) for number in range(BUCKETS)]
        for session in self.sessions:
            self.scanner.hold(session)
        self.lane = self.lanes.routing.route("a:q", NOW_MS)[1]
        self.lane.flow.limit = WINDOW

    def copies(self, count: int, score: float = NOW_MS - 1000.0, number: int = 0) -> list[Copy]:
        """Copies of one bucket, with growing scores."""
        session = self.sessions[number]
        session.claims.received(session.claims.last + 1, count)
        session.copies += count
        destination, lane = self.lanes.routing.route("a:q", NOW_MS)
        lot = Lot(session, session.claims.last)
        copies = [
            Copy(
                lot, f"{number}-{session.claims.last}-{i}", score + i / 1024,
                Tried(), Record("a:q", b""), destination, lane,
            )
            for i in range(count)
        ]  # fmt: skip
        for copy in copies:
            copy.stamp = b"call"
        return copies

    def pass_(self, after_ms: int = 0) -> list[str]:
        self.stub.now += after_ms
        self.scanner.started = []
        self.scanner.scan(self.stub.now)
        return self.scanner.started


def asked_of(rig: Rig) -> list[int]:
    return [session.bucket.number for session in rig.scanner.claiming.under_way]


def test_a_claim_of_a_backlog_takes_whole_batches_from_the_earliest_buckets() -> None:
    rig = Rig(batch_messages=500)
    for session in rig.sessions:
        session.next_score = NOW_MS - float(session.bucket.number)
    assert rig.pass_() == ["claim"]
    assert asked_of(rig) == [15, 14, 13, 12], "2000 messages at once"


def test_a_claim_asks_all_buckets_that_have_no_backlog() -> None:
    rig = Rig()
    for session in rig.sessions:
        session.has_more = False
    assert rig.pass_() == ["claim"]
    assert len(asked_of(rig)) == BUCKETS
    assert rig.scanner.arguments["limit"] == 500, (
        "a burst of all of them would hold Redis for longer"
    )


def test_live_messages_do_not_wait_behind_the_backlog_of_other_buckets() -> None:
    rig = Rig()
    for session in rig.sessions:
        session.next_score = NOW_MS - 10_000.0 - session.bucket.number
    rig.sessions[0].has_more = rig.sessions[7].has_more = False
    assert rig.pass_() == ["claim"]
    assert asked_of(rig) == [15, 14, 7, 0]


def test_buckets_whose_backlog_is_not_due_yet_are_all_claimed() -> None:
    """A message due earlier wakes no owner that, as far as the store knows, looks at once."""
    rig = Rig()
    for session in rig.sessions:
        session.next_score = NOW_MS + 1500.0
    assert rig.pass_() == ["claim"]
    assert len(asked_of(rig)) == BUCKETS


def test_a_small_wheel_is_shared_by_all_buckets() -> None:
    rig = Rig(wheel_messages=40)
    assert rig.pass_() == ["claim"]
    assert len(asked_of(rig)) == BUCKETS


def test_a_nearly_full_wheel_is_refilled_after_a_pause_or_when_a_batch_fits() -> None:
    rig = Rig(wheel_messages=16_000, batch_messages=500)
    claiming, waiting = rig.scanner.claiming, rig.scanner.waiting
    assert rig.pass_() == ["claim"]
    claiming.under_way = ()
    waiting.messages = 15_900
    for session in rig.sessions:
        session.look_at_ms = -inf
    rig.scanner.firing.under_way = True
    waiting.ripe = rig.copies(1, NOW_MS - 1000.0)
    for session in rig.sessions:
        session.next_score = NOW_MS - 500.0
    assert rig.pass_(1) == []
    assert min(claiming.next_looks_ms(rig.stub.now)) == NOW_MS + 20
    assert rig.pass_(19) == ["claim"]
    assert len(asked_of(rig)) == 1
    claiming.under_way = ()
    rig.sessions[3].look_at_ms = -inf
    rig.sessions[3].next_score = NOW_MS - 2000.0
    assert rig.pass_(1) == ["claim"], "nothing may be fired before it"
    claiming.under_way = ()
    waiting.messages = 15_500
    assert rig.pass_(1) == ["claim"], "a whole batch fits"


def test_an_answer_says_whether_a_bucket_has_a_backlog() -> None:
    rig = Rig()
    session = rig.sessions[0]
    for more in (False, True):
        claimed = Claim(session.claims.last + 1, [], [], [], None, more)
        rig.scanner.claiming.received(session, claimed, NOW_MS, Counter())
        assert session.has_more is more


def test_a_bucket_that_was_woken_during_a_claim_is_claimed_again_in_time() -> None:
    rig = Rig()
    session = rig.sessions[0]
    session.claimed_at_ms, session.look_at_ms = NOW_MS, inf  # a claim is under way
    rig.scanner.wake(0, NOW_MS + 3000)
    woken_ms = session.look_at_ms
    assert woken_ms == NOW_MS + 1000  # 2 s ahead
    claimed = Claim(session.claims.last + 1, [], [], [], None, False)
    rig.scanner.claiming.received(session, claimed, NOW_MS, Counter())
    assert session.look_at_ms == woken_ms


def test_of_a_burst_no_more_stay_on_the_wheel_than_a_rate_lets_pass_in_time() -> None:
    rig = Rig()
    rig.lane.limit = Limit([("a", 1000.0)])
    burst = rig.copies(1000, NOW_MS + 1000.0)
    kept = rig.lanes.parking.without_surplus(burst, NOW_MS)
    assert kept == burst[:301]  # of 0.3 s
    parked = rig.lane.parked[rig.sessions[0]]
    assert (len(parked), parked.first) == (699, burst[301].score)


def test_of_a_late_claim_only_what_comes_before_parked_messages_stays() -> None:
    rig = Rig()
    rig.lane.limit = Limit([("a", 1000.0)])
    before, parked, behind = (rig.copies(1, NOW_MS - ago) for ago in (900.0, 800.0, 700.0))
    rig.lanes.parking.park(parked[0])
    assert rig.lanes.parking.without_surplus([*before, *behind], NOW_MS) == before
    assert len(rig.lane.parked[rig.sessions[0]]) == 2


def test_a_full_lane_gathers_room_for_its_next_fire_but_not_for_long() -> None:
    rig = Rig()
    for session in rig.sessions:
        session.look_at_ms = session.next_score = inf
    copies = rig.copies(5000)
    rig.scanner.waiting.add(copies)
    firing = rig.scanner.firing
    assert rig.pass_() == ["fire"]
    firing.under_way = False
    fired = [copy for copy in copies if copy not in rig.scanner.waiting.ripe]
    assert len(fired) == WINDOW // 2
    rig.lanes.dispatch.ready(fired)
    assert rig.pass_(1) == []
    assert firing.next_look_ms == NOW_MS + 20
    rig.scanner.settling.next_look_ms = NOW_MS + 10.0
    rig.stub.rings = 0
    rig.scanner.report(fired[:40], CONFIRMED)
    assert rig.stub.rings == 0, "too little room"
    rig.scanner.report(fired[40:80], CONFIRMED)
    assert rig.stub.rings == 1
    assert "fire" in rig.pass_(1)
    firing.under_way = False
    rig.scanner.report(fired[80:85], CONFIRMED)
    assert "fire" not in rig.pass_(19)
    assert "fire" in rig.pass_(1), "20 ms after the last"


def test_settled_messages_wait_longer_for_others_while_a_backlog_lasts() -> None:
    rig = Rig()
    for session in rig.sessions:
        session.look_at_ms = session.next_score = inf
    telling = rig.scanner.settling
    for pause_ms, ripe in ((10, []), (30, rig.copies(1))):
        rig.scanner.waiting.ripe = ripe
        rig.scanner.firing.under_way = True
        rig.sessions[0].exits.settle(1, rig.copies(1), "a:q")
        assert "settle" in rig.pass_(100)
        telling.under_way = False
        assert "settle" not in rig.pass_(pause_ms - 1)
        assert "settle" in rig.pass_(1)
        telling.under_way = False
        rig.sessions[0].exits.take_report()


def test_ripe_copies_are_in_the_same_order_however_they_came() -> None:
    lanes = Lanes({}, RetryPolicy(), lambda _: None, window_messages=10, window_bytes=10)
    destination, lane = lanes.routing.route("a:q", NOW_MS)
    chosen = random.Random(1)
    for _ in range(50):
        session = new_session()
        waiting, everything = WaitingCopies(NOW_MS, lanes.window), list[Copy]()
        for step in range(5):
            scores = [NOW_MS - 10.0 + chosen.randrange(20) for _ in range(chosen.randrange(9))]
            copies = [
                Copy(Lot(session, 1), "id", score, Tried(), Record("a:q", b""), destination, lane)
                for score in scores
            ]
            waiting.add(copies)
            everything += copies
            waiting.ripen(NOW_MS + 3 * step, 2, 2)
            ripe = [copy.score for copy in waiting.ripe]
            due = sorted(c.score for c in everything if c.score < NOW_MS + 3 * step + 3)
            assert ripe == due
            for earlier, later in zip(waiting.ripe, waiting.ripe[1:], strict=False):
                if earlier.score == later.score:
                    assert everything.index(earlier) < everything.index(later)


def test_nothing_is_fired_while_an_earlier_message_of_another_bucket_is_unclaimed() -> None:
    rig = Rig()
    for session in rig.sessions:
        session.look_at_ms = session.next_score = inf
    rig.scanner.waiting.add(rig.copies(3, NOW_MS - 100.0))
    other = rig.sessions[1]
    other.look_at_ms = other.next_score = NOW_MS - 200.0
    assert rig.pass_() == ["claim"]
    other.next_score = NOW_MS - 99.0
    assert rig.pass_() == ["fire"]


def test_the_limit_of_a_lane_grows_while_most_of_its_messages_are_being_fired() -> None:
    rig = Rig()
    rig.lane.flow.limit = FIRST
    copies = rig.copies(100)
    rig.lanes.admission.begin_batch()
    for copy in copies:
        rig.lanes.admission.admit(copy, NOW_MS, may_wait=True)
    rig.lanes.dispatch.ready(copies[:30])
    rig.lanes.dispatch.publish(NOW_MS)
    rig.lanes.outcomes.report(copies[:30], CONFIRMED, NOW_MS + 2)
    assert rig.lane.flow.limit == 4 * FIRST


@pytest.mark.parametrize(("late_ms", "most"), [(0, 1000), (100, 1000), (300, 3000)])
def test_a_fire_of_a_burst_takes_more_the_later_its_messages_are(late_ms: int, most: int) -> None:
    rig = Rig()
    rig.lane.flow.limit = rig.lanes.window.messages = 10_000
    due = NOW_MS + 0.99
    waiting = rig.scanner.waiting
    copies = [copy for number in range(BUCKETS) for copy in rig.copies(500, 0.0, number)]
    for copy in copies:
        copy.score = due
        copy.session.next_score = inf
    waiting.add(copies)
    waiting.ripen(NOW_MS + late_ms, 5, 5)
    taken = rig.scanner.firing.select(NOW_MS + late_ms).values()
    assert sum(map(len, taken)) == most
