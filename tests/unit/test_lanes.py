"""Lanes: the way out to each destination, its window and circuit, and every exit of a copy."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest

from delaybridge import events
from delaybridge.message import Delivery, Record
from delaybridge.publish import CONFIRMED, Fault, Outcome, Verdict
from delaybridge.scan.copy import Copy, Lot
from delaybridge.scan.lane import Broker
from delaybridge.scan.lanes import Lanes, Way
from delaybridge.scan.retry import RetryPolicy
from delaybridge.scan.session import Session
from delaybridge.store.record import Tried
from delaybridge.store.replies import Fired
from delaybridge.store.verbs import Bucket

NOW_MS = 1_800_000_000_000
WINDOW = 100
STALLED_MS = 501
PATIENCE_MS = 50
FIRST_PROBE_MS = 1300  # the first wait of a circuit, with its jitter
LAST_PROBE_MS = 100_000
PROBES = 5
MAX_ATTEMPTS = 4

NACK = Outcome(Verdict.UNKNOWN, "nack: 1", Fault.MESSAGE)
UNROUTABLE = Outcome(Verdict.REFUSED, "unroutable: 312", Fault.MESSAGE)
NO_EXCHANGE = Outcome(Verdict.REFUSED, "no_exchange: 404", Fault.DESTINATION)
CLOSED_CHANNEL = Outcome(Verdict.UNKNOWN, "channel_closed: 404", Fault.DESTINATION)
NOT_CONNECTED = Outcome(Verdict.REFUSED, "not_connected: refused", Fault.BROKER)
CONNECTION_LOST = Outcome(Verdict.UNKNOWN, "connection_lost: reset", Fault.BROKER)


class Recorder:
    """A publisher that keeps what it is handed."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.unavailable: str | None = None
        self.taken: list[Copy] = []

    def publish(self, deliveries: Sequence[Delivery]) -> None:
        self.taken += deliveries  # type: ignore[arg-type]


class Board:
    """Lanes over two brokers, and one session whose copies take them."""

    def __init__(
        self, *, window: int = WINDOW, window_bytes: int = 2**30, kind: str = "memory"
    ) -> None:
        self.events: list[events.Event] = []
        self.a, self.b = Recorder("a"), Recorder("b")
        self.brokers: dict[str, Broker] = {
            "a": Broker(kind, self.a),  # type: ignore[arg-type]
            "b": Broker("memory", self.b),  # type: ignore[arg-type]
        }
        self.lanes = Lanes(
            self.brokers,
            RetryPolicy(max_attempts=MAX_ATTEMPTS, base_ms=1000, jitter=0.0),
            self.events.append,
            window_messages=window,
            window_bytes=window_bytes,
        )
        self.session = new_session()
        self.wheel: list[Copy] = []
        self._count = 0

    def copy(
        self,
        text: str = "a:q",
        *,
        session: Session | None = None,
        failures: int = 0,
        maybe: bool = False,
        late_ms: int = 0,
        **record: Any,
    ) -> Copy:
        self._count += 1
        due_ms = NOW_MS - late_ms
        destination, lane = self.lanes.route(text, NOW_MS)
        body = record.pop("body", b"")
        return Copy(
            *(Lot(session or self.session, 11), f"m{self._count}", due_ms + self._count / 1024),
            *(Tried(failures, maybe), Record(text, body, **record), destination, lane),
        )

    def pass_(self, copy: Copy, now_ms: int = NOW_MS) -> str:
        """What `admit` decides about a ripe copy: go, wait or leave."""
        self.lanes.begin_batch()
        way = self.lanes.admit(copy, now_ms, may_wait=True)
        if way is Way.GO:
            self.lanes.ready([copy])
        return way.value

    def send(
        self, count: int, text: str = "a:q", now_ms: int = NOW_MS, **options: Any
    ) -> list[Copy]:
        """Hand copies to their broker; returns those that were admitted."""
        copies = [self.copy(text, **options) for _ in range(count)]
        sent = [copy for copy in copies if self.pass_(copy, now_ms) == "go"]
        self.lanes.publish(now_ms)
        return sent

    def answer(self, copies: Sequence[Copy], outcome: Outcome, now_ms: int = NOW_MS) -> None:
        self.lanes.outcome(copies, outcome, now_ms)

    def recover(self, now_ms: int = NOW_MS, session: Session | None = None) -> list[str]:
        """The ids that the next call brings back to due; [""] for all of them."""
        self.lanes.recover(now_ms, self._remove)
        unparking = (session or self.session).exits.take_unpark()
        return [id for call in unparking for id in call.args[3:] or [""]]

    def come_back(self, now_ms: int = NOW_MS) -> None:
        """The wanted messages are all back in due."""
        session = self.session
        session.told(session.exits.take())
        session.unparked(0)
        while session.exits.take_unpark():
            session.unparked(0)
        self.lanes.recover(now_ms, self._remove)

    def _remove(self, which: Callable[[Copy], bool]) -> list[Copy]:
        removed = [copy for copy in self.wheel if which(copy)]
        self.wheel = [copy for copy in self.wheel if not which(copy)]
        return removed

    def told(self) -> Counter[str]:
        """How many copies took which exit since the last call of this."""
        exits = self.session.exits.take()
        self.session.told(exits)
        steps = {"settle": 0, "retry": 6, "bury": 5, "park": 3}
        first = {"retry": 3, "bury": 3, "park": 2}
        counts: Counter[str] = Counter()
        for call in exits.commands:
            if call.name == "settle":
                counts["settle"] += exits.copies if len(exits.commands) == 1 else 0
            else:
                counts[call.name] += (len(call.args) - first[call.name]) // steps[call.name]
        return counts

    def heard(self, kind: type[events.Event]) -> list[Any]:
        return [event for event in self.events if isinstance(event, kind)]


def new_session() -> Session:
    session = Session(Bucket("ns", 3, "birth"), "w:random:10", 10, 1000, 0.0)
    session.ready = True
    return session


@pytest.fixture
def board() -> Board:
    return Board()


# the window


def test_alone_a_lane_gets_half_of_the_window(board: Board) -> None:
    assert len(board.send(WINDOW)) == WINDOW // 2
    assert len(board.a.taken) == WINDOW // 2


def test_no_number_of_stuck_lanes_takes_the_whole_window(board: Board) -> None:
    shares = [len(board.send(WINDOW, f"a:q{number}")) for number in range(5)]
    assert shares == [50, 25, 13, 6, 3]
    assert sum(shares) < WINDOW
    assert board.pass_(board.copy("b:free")) == "go"


def test_a_confirm_makes_room(board: Board) -> None:
    sent = board.send(WINDOW)
    assert board.pass_(board.copy()) == "wait"
    board.answer(sent[:2], CONFIRMED)
    assert board.pass_(board.copy()) == "go"


def test_bytes_count_as_well_but_one_message_always_passes() -> None:
    board = Board(window_bytes=10_000)
    large = b"x" * 9_000

    def pass_(text: str) -> str:
        destination, lane = board.lanes.route(text, NOW_MS)
        record = Record(text, large)
        copy = Copy(Lot(board.session, 11), text, NOW_MS + 0.5, Tried(), record, destination, lane)
        return board.pass_(copy)

    assert [pass_("a:q"), pass_("a:q"), pass_("b:q"), pass_("b:q")] == [
        *("go", "wait"),
        *("go", "wait"),
    ]


def test_copies_that_a_fire_covers_go_along_but_the_broker_never_holds_more_than_the_window(
    board: Board,
) -> None:
    copies = [board.copy() for _ in range(3 * WINDOW)]
    for copy in copies:
        assert board.lanes.admit(copy, NOW_MS, may_wait=False)
        board.lanes.ready([copy])
    board.lanes.publish(NOW_MS)
    assert board.a.taken == copies[:WINDOW]
    board.answer(copies[:10], CONFIRMED)
    board.lanes.publish(NOW_MS)
    assert board.a.taken == copies[: WINDOW + 10], "the rest, in order, as room comes"


def test_no_copy_of_a_session_that_is_over_is_handed_to_a_broker(board: Board) -> None:
    other = new_session()
    lost = [board.copy() for _ in range(3)]
    kept = [board.copy(session=other) for _ in range(3)]
    for copy in [*lost, *kept]:
        board.pass_(copy)
    board.session.alive = False
    board.lanes.publish(NOW_MS)
    assert board.a.taken == kept
    board.answer(kept, CONFIRMED)
    board.session = other
    assert len(board.send(WINDOW, session=other)) == WINDOW // 2, "the room of the lost is free"


def test_a_revoked_copy_leaves_without_an_exit_and_takes_no_room(board: Board) -> None:
    copy, session = board.copy(), board.session
    session.copies = 1
    session.received(copy.claim, 1)
    session.revoke(Fired(copy.claim, {copy.id.encode(): copy.claim + 1}))
    assert board.pass_(copy) == "leave"
    assert (session.copies, copy.lane.load) == (0, 0)
    assert not session.exits.any, "the store has revoked it: nothing is left to tell"


def test_a_copy_of_a_session_that_is_over_leaves_without_an_exit(board: Board) -> None:
    copy = board.copy(late_ms=9000, ttl_ms=1000)
    board.session.alive = False
    assert board.pass_(copy) == "leave"
    assert not board.session.exits.any, "the next owner reclaims it"
    assert copy.lane.load == 0


# a lane that stalls


def test_a_full_lane_waits_for_room_until_its_broker_was_silent_for_half_a_second(
    board: Board,
) -> None:
    board.send(WINDOW)
    assert board.pass_(board.copy(), NOW_MS + STALLED_MS - 1) == "wait"
    assert board.pass_(board.copy(), NOW_MS + STALLED_MS) == "leave"
    assert board.told() == {"park": 1}
    assert board.pass_(board.copy("b:q"), NOW_MS + STALLED_MS) == "go", "others go on"


def test_a_lane_whose_broker_keeps_answering_is_not_stalled_however_full(board: Board) -> None:
    sent = board.send(WINDOW)
    for second in range(5):
        now_ms = NOW_MS + second * (STALLED_MS - 1)
        board.answer([sent[second]], CONFIRMED, now_ms)
        assert board.pass_(board.copy(), now_ms) == "go"
        assert board.pass_(board.copy(), now_ms) == "wait"
        board.lanes.publish(now_ms)


def test_a_lane_that_was_idle_for_long_is_not_stalled_when_it_is_used_again(board: Board) -> None:
    later_ms = NOW_MS + 3_600_000
    assert len(board.send(WINDOW, now_ms=later_ms)) == WINDOW // 2
    assert board.pass_(board.copy(), later_ms + STALLED_MS - 1) == "wait"


def test_messages_of_a_stalled_lane_come_back_with_its_next_confirm(board: Board) -> None:
    sent = board.send(WINDOW)
    parked = board.copy()
    board.pass_(parked, NOW_MS + STALLED_MS)
    assert board.recover(NOW_MS + STALLED_MS) == []
    board.answer(sent[:1], CONFIRMED, NOW_MS + STALLED_MS)
    assert board.recover(NOW_MS + STALLED_MS) == [parked.id]


def test_parked_messages_wait_for_bytes_too_in_a_lane_full_of_large_ones() -> None:
    board = Board(window_bytes=20_000)
    sent = board.send(20, body=b"x" * 1000)
    later_ms = NOW_MS + STALLED_MS
    for _ in range(9):
        assert board.pass_(board.copy(body=b"x" * 1000), later_ms) == "leave"
    board.session.told(board.session.exits.take())
    board.answer(sent[:1], CONFIRMED, later_ms)
    assert board.recover(later_ms) == [], "it would be parked again at once"
    board.answer(sent[1:6], CONFIRMED, later_ms)
    assert 0 < len(board.recover(later_ms)) <= 7


def test_the_next_look_is_when_a_full_lane_may_turn_out_to_be_stalled(board: Board) -> None:
    board.send(WINDOW)
    assert list(board.lanes.next_looks_ms(NOW_MS, waiting=False)) == []
    looks = list(board.lanes.next_looks_ms(NOW_MS, waiting=True))
    assert looks == [NOW_MS + STALLED_MS, NOW_MS + PATIENCE_MS]


# how publishes end


def test_confirmed_is_settled(board: Board) -> None:
    sent = board.send(10)
    board.answer(sent, CONFIRMED, NOW_MS + 3)
    assert board.told() == {"settle": 10}
    assert board.heard(events.Published) == [
        events.Published(
            destination="a:q",
            messages=10,
            late_ms=3,
            late_sum_ms=30,
            lateness={2: 10},
            confirm_ms=[3],
        )
    ]


def test_the_reported_lateness_is_that_of_the_latest_copy(board: Board) -> None:
    sent = board.send(1, late_ms=2) + board.send(1, late_ms=700) + board.send(1, late_ms=1)
    board.answer(sent, CONFIRMED, NOW_MS + 3)
    assert [event.late_ms for event in board.heard(events.Published)] == [703]


@pytest.mark.parametrize("outcome", [NACK, CLOSED_CHANNEL, CONNECTION_LOST], ids=str)
def test_an_unknown_outcome_is_tried_again_as_maybe_delivered_whatever_the_fault(
    board: Board, outcome: Outcome
) -> None:
    sent = board.send(3)
    board.answer(sent, outcome)
    (retry,) = board.session.exits.take().commands
    assert retry.name == "retry"
    assert list(retry.args[6::6]) == [1000] * 3
    assert list(retry.args[7::6]) == [1] * 3
    assert list(retry.args[8::6]) == [f"a:q\n{outcome.reason}"] * 3
    assert sum(event.messages for event in board.heard(events.Retried)) == 3


def test_a_certainly_refused_message_is_tried_again_and_not_marked_as_maybe_delivered(
    board: Board,
) -> None:
    board.answer(board.send(1), UNROUTABLE)
    (retry,) = board.session.exits.take().commands
    assert list(retry.args[6:8]) == [1000, 0]


@pytest.mark.parametrize("outcome", [NOT_CONNECTED, NO_EXCHANGE], ids=str)
def test_a_message_that_was_never_written_is_parked_without_an_attempt(
    board: Board, outcome: Outcome
) -> None:
    board.answer(board.send(3), outcome)
    assert board.told() == {"park": 3}
    assert board.heard(events.Retried) == []


def test_the_wait_doubles_with_each_attempt(board: Board) -> None:
    for failures in range(MAX_ATTEMPTS - 1):
        board.answer(board.send(1, failures=failures), NACK)
        assert board.session.exits.take().back_off_ms == 1000 * 2**failures


@pytest.mark.parametrize(("asked_ms", "wait_ms"), [(30_000, 30_000), (10, 1000)])
def test_a_receiver_may_ask_for_a_longer_wait(board: Board, asked_ms: int, wait_ms: int) -> None:
    board.answer(board.send(1), replace(NACK, wait_ms=asked_ms))
    assert board.session.exits.take().back_off_ms == wait_ms


@pytest.mark.parametrize(("outcome", "maybe"), [(UNROUTABLE, 0), (NACK, 1)], ids=str)
def test_the_last_attempt_buries_with_the_last_error(
    board: Board, outcome: Outcome, maybe: int
) -> None:
    (copy,) = board.send(1, failures=MAX_ATTEMPTS - 1)
    board.answer([copy], outcome)
    (bury,) = board.session.exits.take().commands
    assert (bury.name, list(bury.args[3:])) == ("bury", [copy.id, 11, 1, maybe, outcome.reason])
    assert [event.reason for event in board.heard(events.Buried)] == [outcome.reason]


@pytest.mark.parametrize("outcome", [UNROUTABLE, NACK, NOT_CONNECTED, NO_EXCHANGE], ids=str)
def test_at_most_once_is_dropped_whatever_went_wrong(board: Board, outcome: Outcome) -> None:
    copies = board.send(2, at_most_once=True)
    board.session.copies = 2
    board.answer(copies, outcome)
    assert board.session.copies == 0
    assert board.told() == {}
    assert sum(event.messages for event in board.heard(events.Dropped)) == 2


def test_at_most_once_is_not_settled_again(board: Board) -> None:
    copies = board.send(2, at_most_once=True)
    board.session.copies = 2
    board.answer(copies, CONFIRMED)
    assert board.session.copies == 0
    assert board.told() == {}


# exits without a publish


def test_a_copy_later_than_its_ttl_is_buried_as_expired(board: Board) -> None:
    assert board.pass_(board.copy(ttl_ms=100, late_ms=100)) == "go"
    assert board.pass_(board.copy(ttl_ms=100, late_ms=101)) == "leave"
    (bury,) = board.session.exits.take().commands
    counted, maybe, reason = bury.args[5:]
    assert (counted, maybe, str(reason).partition(":")[0]) == (0, 0, "expired")
    assert "101 ms" in str(reason) and "100 ms" in str(reason)


def test_a_copy_that_ended_its_workers_too_often_is_buried(board: Board) -> None:
    assert board.pass_(board.copy(failures=MAX_ATTEMPTS)) == "leave"
    (bury,) = board.session.exits.take().commands
    assert bury.args[7].startswith("used_up")


@pytest.mark.parametrize("text", ["a:", "", ":", "elsewhere:", ":q", "q"])
def test_an_unreadable_destination_is_tried_again_and_then_buried(board: Board, text: str) -> None:
    assert board.pass_(board.copy(text)) == "leave"
    assert board.told() == {"retry": 1}
    assert board.pass_(board.copy(text, failures=MAX_ATTEMPTS - 1)) == "leave"
    (bury,) = board.session.exits.take().commands
    assert bury.args[7].startswith("bad_destination")


@pytest.mark.parametrize("failures", [0, MAX_ATTEMPTS - 1])
def test_messages_for_a_broker_that_is_not_configured_here_stay_parked(
    board: Board, failures: int
) -> None:
    assert board.pass_(board.copy("elsewhere:q", failures=failures)) == "leave"
    assert board.pass_(board.copy("elsewhere:other/key")) == "leave"
    assert board.pass_(board.copy("b:q")) == "go"
    assert board.told() == {"park": 2}
    assert board.recover(NOW_MS + 10 * LAST_PROBE_MS) == []
    (opened,) = [event for event in board.events if isinstance(event, events.CircuitOpened)]
    assert opened.destination == "elsewhere:"
    assert opened.reason.startswith("no_broker: ") and "'elsewhere'" in opened.reason


TABLE, PAIRS = b"\x01aV", (("a", b"1"),)


@pytest.mark.parametrize(
    ("kind", "record", "fits"),
    [
        ("redis", {"headers": PAIRS}, True),
        ("redis", {"headers": b""}, False),
        ("redis", {"headers": TABLE}, False),
        ("rabbitmq", {"headers": b"", "properties": (0, b"", b"")}, True),
        ("rabbitmq", {"headers": TABLE}, True),
        ("rabbitmq", {"headers": PAIRS}, False),
        ("rabbitmq", {"headers": ()}, False),
        ("kombu", {"headers": b"", "properties": b""}, True),
        ("kombu", {"headers": TABLE, "properties": b""}, True),
        ("kombu", {"headers": b""}, False),  # RabbitMQ's: the destination has a slash
        ("kombu", {"headers": b"", "properties": (0, b"", b"")}, False),
        ("kombu", {"headers": PAIRS}, False),
    ],
)
@pytest.mark.parametrize("once", [False, True])
def test_a_record_of_another_kind_of_broker_stays_parked(
    kind: str, record: dict[str, Any], fits: bool, once: bool
) -> None:
    board = Board(kind=kind)
    copy = board.copy("a:x/q", at_most_once=once, **record)
    assert copy.is_plain is (fits and not once and kind != "kombu")
    assert board.pass_(copy) == ("go" if fits else "leave")
    if not fits:
        assert board.told() == {"park": 1}
        assert board.recover(NOW_MS + 10 * LAST_PROBE_MS) == []
        assert board.pass_(board.copy("b:x", headers=())) == "go"


@pytest.mark.parametrize(
    ("kind", "destination", "record"),
    [
        ("rabbitmq", "a:topic", {"headers": ()}),
        ("rabbitmq", "a:queue", {"headers": b"", "properties": b""}),
        ("kafka", "a:x/q", {"headers": TABLE}),
    ],
)
def test_a_destination_of_another_kind_of_broker_is_parked_too(
    kind: str, destination: str, record: dict[str, Any]
) -> None:
    board = Board(kind=kind)
    assert board.pass_(board.copy(destination, **record)) == "leave"
    assert board.told() == {"park": 1}
    assert "another kind of broker" in dict(board.lanes.parked())["a: of another kind"]


def test_a_record_with_a_table_of_properties_suits_kombu_and_not_rabbitmq(board: Board) -> None:
    record = Record("a:x/q", b"", TABLE, b"")
    assert record.suits("kombu")
    assert not record.suits("rabbitmq")  # its publisher refuses the record as unencodable


def test_while_a_broker_is_unavailable_its_messages_are_parked_and_the_other_s_are_not(
    board: Board,
) -> None:
    board.a.unavailable = "blocked: low on memory"
    assert board.pass_(board.copy()) == "leave"
    assert board.pass_(board.copy("b:q")) == "go"
    assert board.told() == {"park": 1}
    assert board.recover() == []
    board.a.unavailable = None
    assert board.recover() == ["m1"]


def test_a_worker_says_whose_messages_it_parks_and_why(board: Board) -> None:
    assert not dict(board.lanes.parked())
    board.answer(board.send(1), NO_EXCHANGE)
    board.pass_(board.copy("elsewhere:q"))
    board.b.unavailable = "not_connected: " + "x" * 1000
    board.pass_(board.copy("b:q"))
    parked = dict(board.lanes.parked())
    assert parked.keys() == {"a:q", "elsewhere:"}
    assert parked["a:q"] == NO_EXCHANGE.reason
    assert parked["elsewhere:"].startswith("no_broker: ")


# coming back in order


def parked(board: Board, count: int = 20) -> list[Copy]:
    """Copies that were parked while their broker was unavailable; now it is back."""
    board.a.unavailable = "not_connected"
    copies = [board.copy() for _ in range(count)]
    assert {board.pass_(copy) for copy in copies} == {"leave"}
    board.a.unavailable = None
    return copies


def ids(copies: Sequence[Copy]) -> list[str]:
    return [copy.id for copy in copies]


def test_copies_later_than_the_parked_ones_of_their_lane_and_bucket_are_parked_behind_them(
    board: Board,
) -> None:
    earlier = board.copy()
    parked(board)
    assert board.pass_(board.copy()) == "leave"
    assert board.pass_(earlier) == "go"
    assert board.pass_(board.copy("a:other")) == "go", "another lane"
    assert board.pass_(board.copy(session=new_session())) == "go", "another bucket"


def test_copies_on_the_wheel_go_back_with_the_parked_ones_so_that_one_claim_finds_them_in_order(
    board: Board,
) -> None:
    copies = parked(board)
    waiting, *others = (
        *(board.copy(), board.copy("a:other"), board.copy("b:q")),
        board.copy(session=new_session()),
    )
    board.wheel = [waiting, *others]
    assert sorted(board.recover()) == sorted(ids([*copies, waiting]))
    assert board.wheel == others
    assert board.told() == {"park": len(copies) + 1}


def test_every_new_copy_is_parked_until_all_messages_are_back_in_due_and_none_after(
    board: Board,
) -> None:
    copies = parked(board)
    assert board.recover() == ids(copies)
    late = board.copy()
    assert board.pass_(late) == "leave"
    board.come_back()
    assert not board.session.may_claim, "one more is yet to come back"
    assert board.recover() == [late.id]
    board.come_back()
    assert board.session.may_claim
    assert [board.pass_(copy) for copy in [*copies, late]] == ["go"] * 21
    assert list(board.lanes.next_looks_ms(NOW_MS, waiting=False)) == []


def test_if_a_broker_fails_again_its_returned_messages_are_parked_again(board: Board) -> None:
    copies = parked(board)
    board.recover()
    board.a.unavailable = "not_connected"
    board.come_back()
    assert board.session.may_claim, "others of the bucket go on"
    assert {board.pass_(copy) for copy in copies} == {"leave"}
    assert board.recover() == []
    board.a.unavailable = None
    assert sorted(board.recover()) == sorted(ids(copies))


def test_each_lane_of_a_bucket_brings_its_messages_back_when_it_can(board: Board) -> None:
    mine = parked(board, 3)
    board.b.unavailable = "not_connected"
    other = board.copy("b:q")
    board.pass_(other)
    assert board.recover() == ids(mine)
    board.come_back()
    board.b.unavailable = None
    assert board.recover() == [other.id]


# circuits


def opened(board: Board, count: int = 20) -> list[Copy]:
    """Copies that a lane has parked since its circuit opened."""
    copies = board.send(1)
    board.answer(copies, NO_EXCHANGE)
    copies += [board.copy() for _ in range(count - 1)]
    assert {board.pass_(copy) for copy in copies[1:]} == {"leave"}
    assert board.told() == {"park": count}
    return copies


def test_a_destination_that_refuses_opens_its_circuit_once_and_parks_later_copies(
    board: Board,
) -> None:
    sent = board.send(10)
    board.answer(sent[:5], NO_EXCHANGE)
    board.answer(sent[5:], CLOSED_CHANNEL)
    assert len(board.heard(events.CircuitOpened)) == 1
    assert board.pass_(board.copy()) == "leave"
    assert board.pass_(board.copy("a:other")) == "go", "another exchange of the same broker"


def test_when_it_is_time_a_handful_of_messages_probes_the_circuit(board: Board) -> None:
    copies = opened(board)
    probe_ms = min(board.lanes.next_looks_ms(NOW_MS, waiting=False))
    assert NOW_MS < probe_ms <= NOW_MS + FIRST_PROBE_MS
    assert board.recover(probe_ms - 1) == []
    assert board.recover(probe_ms) == ids(copies[:PROBES])
    board.come_back(probe_ms)
    assert board.pass_(board.copy(), probe_ms) == "leave", "the probes are earlier"
    passed = [board.pass_(copy, probe_ms) for copy in copies]
    assert passed == ["go"] * PROBES + ["leave"] * 15


def test_a_lane_without_parked_messages_is_probed_by_the_next_copies(board: Board) -> None:
    board.answer(board.send(1, at_most_once=True), NO_EXCHANGE)
    assert board.recover(NOW_MS + FIRST_PROBE_MS) == []
    passed = [board.pass_(board.copy(), NOW_MS + FIRST_PROBE_MS) for _ in range(2 * PROBES)]
    assert passed == ["go"] * PROBES + ["leave"] * PROBES


def test_a_successful_probe_closes_the_circuit_and_brings_all_back_in_order(board: Board) -> None:
    now_ms = NOW_MS + FIRST_PROBE_MS
    copies = opened(board)
    board.recover(now_ms)
    board.come_back(now_ms)
    assert board.pass_(copies[0], now_ms) == "go"
    board.lanes.publish(now_ms)
    board.answer(copies[:1], CONFIRMED, now_ms)
    assert len(board.heard(events.CircuitClosed)) == 1
    assert sorted(board.recover(now_ms)) == sorted(ids(copies[PROBES:]))
    board.come_back(now_ms)
    assert {board.pass_(copy, now_ms) for copy in [*copies[1:], board.copy()]} == {"go"}


def test_a_failed_probe_opens_the_circuit_again_for_longer(board: Board) -> None:
    copies = opened(board)
    now_ms = NOW_MS
    waits_ms = []
    for _ in range(4):
        probe_ms = min(board.lanes.next_looks_ms(now_ms, waiting=False))
        waits_ms.append(probe_ms - now_ms)
        now_ms = probe_ms
        assert board.recover(now_ms) == ids(copies[:PROBES]), "the same: they are the earliest"
        board.come_back(now_ms)
        assert board.pass_(copies[0], now_ms) == "go"
        board.lanes.publish(now_ms)
        board.answer(copies[:1], NO_EXCHANGE, now_ms)
        assert {board.pass_(copy, now_ms) for copy in copies[1:PROBES]} == {"leave"}
    assert all(later > 1.2 * wait for wait, later in zip(waits_ms, waits_ms[1:], strict=False))


def test_if_the_outcome_of_a_probe_never_comes_others_follow(board: Board) -> None:
    copies = opened(board)
    now_ms = NOW_MS
    for first in range(0, 20, PROBES):
        now_ms = min(board.lanes.next_looks_ms(now_ms, waiting=False))
        assert set(board.recover(now_ms)) == set(ids(copies[first : first + PROBES]))
        board.come_back(now_ms)


def test_a_circuit_stays_open_while_its_broker_is_unavailable(board: Board) -> None:
    opened(board)
    board.a.unavailable = "not_connected"
    assert board.recover(NOW_MS + LAST_PROBE_MS) == []


def test_messages_parked_by_a_lost_session_are_brought_back_by_the_next_one(board: Board) -> None:
    opened(board)
    lost, board.session = board.session, new_session()
    lost.alive = False
    board.lanes.session_over(lost)
    assert board.recover(NOW_MS + LAST_PROBE_MS) == []
    assert lost.exits.take_unpark() == []


def test_a_copy_that_ends_after_its_session_was_lost_is_not_brought_back_here(board: Board) -> None:
    sent = board.send(3)
    board.session.alive = False
    board.lanes.session_over(board.session)
    board.answer(sent, NOT_CONNECTED)
    assert board.recover() == []
    assert not board.session.exits.is_unparking, "it would never end"


def test_a_session_lost_while_its_parked_messages_come_back_is_forgotten(board: Board) -> None:
    parked(board)
    board.recover()
    lost, board.session = board.session, new_session()
    lost.alive = False
    board.lanes.session_over(lost)
    assert board.recover() == []
    assert board.pass_(board.copy()) == "go"


def test_each_session_gets_back_its_own_parked_messages(board: Board) -> None:
    opened(board, 3)
    other = new_session()
    board.pass_(board.copy(session=other))
    assert sorted(board.recover(NOW_MS + FIRST_PROBE_MS)) == ["m1", "m2", "m3"]
    (others,) = other.exits.take_unpark()
    assert list(others.args[3:]) == ["m4"]


def test_a_draining_session_does_not_stop_others_from_bringing_back_messages_bit_by_bit(
    board: Board,
) -> None:
    leaving, now_ms = new_session(), NOW_MS + STALLED_MS
    sent = board.send(WINDOW)
    first = board.copy(session=leaving)
    ours = [board.copy() for _ in range(2 * WINDOW)]
    assert {board.pass_(copy, now_ms) for copy in (first, *ours)} == {"leave"}, "parked"
    leaving.exits.draining = True
    board.answer(sent, CONFIRMED, now_ms)
    back: list[str] = []
    board.session.told(board.session.exits.take())
    while ids := board.recover(now_ms):
        back += ids
        board.session.unparked(0)
        board.session.next_score = now_ms  # claimed from
    assert back == [copy.id for copy in ours]


def test_if_too_many_are_parked_to_remember_all_are_brought_back(
    board: Board, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("delaybridge.scan.parked._KNOWN", 10)
    parked(board)
    assert board.recover() == [""], "the earliest, until none is left"
    board.session.unparked(1)
    assert board.recover() == [""]


# routes


def rabbitmq_lanes() -> Lanes:
    return Lanes(
        {"r": Broker("rabbitmq", Recorder("r"))},  # type: ignore[arg-type]
        RetryPolicy(),
        lambda event: None,
        window_messages=WINDOW,
        window_bytes=2**20,
    )


def test_unbounded_routing_keys_share_their_exchange_s_lane_and_fill_no_memory() -> None:
    lanes = rabbitmq_lanes()
    found = {id(lanes.route(f"r:orders/key.{number}", NOW_MS)[1]) for number in range(25_000)}
    assert len(found) == 1
    assert len(lanes.routing.routes) <= 10_000


def test_unbounded_queues_fill_no_memory_but_a_lane_in_use_is_kept(board: Board) -> None:
    board.a.unavailable = "not_connected"
    (sent,) = board.send(1, "b:used")
    board.pass_(parked := board.copy("a:parked"))
    for number in range(25_000):
        board.lanes.route(f"a:q{number}", NOW_MS)
    assert len(board.lanes.routing.lanes) <= 10_002
    assert board.lanes.route("b:used", NOW_MS)[1] is sent.lane
    assert board.lanes.route("a:parked", NOW_MS)[1] is parked.lane


def test_while_a_copy_waits_its_lane_is_not_forgotten(board: Board) -> None:
    board.wheel.append(board.copy("a:old"))
    for number in range(25_000):
        board.lanes.route(f"a:q{number}", NOW_MS)
    later = board.copy("a:old")
    assert later.lane is board.wheel[0].lane, "else it could overtake"
    board.brokers["a"] = Broker("memory", Recorder("a"))  # type: ignore[arg-type]
    board.lanes.brokers_changed({"a"})
    assert board.recover() == ["m1"], "routed again"


# brokers that are changed


def test_a_broker_s_messages_are_routed_again_when_it_changes(board: Board) -> None:
    (sent,) = board.send(1)
    board.a.unavailable = "away"
    assert board.pass_(board.copy()) == "leave"  # parked
    wheel, other = board.copy(), board.copy("b:q")
    board.wheel += [wheel, other]
    new = Recorder("a")
    board.brokers["a"] = Broker("memory", new)  # type: ignore[arg-type]
    (left,) = board.lanes.brokers_changed({"a"})
    assert left.load == 1, "fired copies stay with the old one"

    assert board.recover() == ["m2", "m3"], "in order, with the copies on the wheel"
    assert board.wheel == [other]
    board.come_back()
    fresh = board.copy()
    assert board.pass_(fresh) == "go"
    board.lanes.publish(NOW_MS)
    assert new.taken == [fresh]
    board.answer([sent], CONFIRMED)
    assert left.load == 0


def test_a_message_given_up_after_its_broker_became_another_kind_is_buried_not_published() -> None:
    board = Board(kind="rabbitmq")
    board.lanes._dead_letters = {"a": "a:x/dead"}
    sent = [board.copy("a:x/q", headers=TABLE, failures=MAX_ATTEMPTS - 1)]
    assert board.pass_(sent[0]) == "go"
    board.lanes.publish(NOW_MS)
    new = Recorder("a")
    board.brokers["a"] = Broker("redis", new)  # type: ignore[arg-type]
    board.lanes.brokers_changed({"a"})
    board.answer(sent, NACK)
    board.lanes.publish(NOW_MS)
    assert new.taken == [] and board.told() == {"bury": 1}


def test_messages_of_a_removed_broker_are_parked_until_it_is_back(board: Board) -> None:
    gone = board.brokers.pop("a")
    board.lanes.brokers_changed({"a"})
    assert board.pass_(board.copy()) == "leave"
    assert board.recover() == []
    board.brokers["a"] = gone
    board.lanes.brokers_changed({"a"})
    assert board.recover() == ["m1"]
    board.come_back()
    assert board.pass_(board.copy()) == "go"
