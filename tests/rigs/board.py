"""Lanes over two brokers in memory, and one session of a bucket whose copies take them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from delaybridge import events
from delaybridge.message import Delivery, Record
from delaybridge.publish import Outcome
from delaybridge.scan.lanes.admission import Way
from delaybridge.scan.lanes.lane import Broker, Copy, Lot
from delaybridge.scan.lanes.lanes import Lanes
from delaybridge.scan.lanes.retry import RetryPolicy
from delaybridge.scan.lanes.returning import NextPage
from delaybridge.scan.leases.session import Session
from delaybridge.store.protocol.record import Tried
from tests.rigs.bucket_session import new_session

NOW_MS = 1_800_000_000_000
WINDOW = 100
STALLED_MS = 501
LAST_PROBE_MS = 100_000
MAX_ATTEMPTS = 4
TABLE, PAIRS = b"\x01aV", (("a", b"1"),)  # headers: RabbitMQ's, others'


class Recorder:
    """A publisher that keeps what it is handed."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.unavailable: str | None = None
        self.taken: list[Copy] = []

    def publish(self, deliveries: Sequence[Delivery]) -> None:
        self.taken += deliveries  # type: ignore[arg-type]


class Board:
    """What a test does with the lanes, and what they did."""

    def __init__(
        self,
        *,
        window_bytes: int = 2**30,
        kind: str = "memory",
        dead_letters: Mapping[str, str] = {},
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
            window_messages=WINDOW,
            window_bytes=window_bytes,
            dead_letters=dead_letters,
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
        destination, lane = self.lanes.routing.route(text, NOW_MS)
        body = record.pop("body", b"")
        copy = Copy(
            *(Lot(session or self.session, 11), f"m{self._count}", due_ms + self._count / 1024),
            *(Tried(failures, maybe), Record(text, body, **record), destination, lane),
        )
        copy.stamp = b"call"
        return copy

    def pass_(self, copy: Copy, now_ms: int = NOW_MS) -> str:
        """What `admit` decides about a ripe copy: go, wait or leave."""
        self.lanes.admission.begin_batch()
        way = self.lanes.admission.admit(copy, now_ms, may_wait=True)
        if way is Way.GO:
            self.lanes.dispatch.ready([copy])
        return way.value

    def send(
        self, count: int, text: str = "a:q", now_ms: int = NOW_MS, **options: Any
    ) -> list[Copy]:
        """Hand copies to their broker; returns those that were admitted."""
        copies = [self.copy(text, **options) for _ in range(count)]
        sent = [copy for copy in copies if self.pass_(copy, now_ms) == "go"]
        self.lanes.dispatch.publish(now_ms)
        return sent

    def answer(self, copies: Sequence[Copy], outcome: Outcome, now_ms: int = NOW_MS) -> None:
        self.lanes.outcomes.report(copies, outcome, now_ms)

    def parked(self, count: int = 20) -> list[Copy]:
        """Copies that were parked while their broker was unavailable; now it is back."""
        self.a.unavailable = "not_connected"
        copies = [self.copy() for _ in range(count)]
        assert {self.pass_(copy) for copy in copies} == {"leave"}
        self.a.unavailable = None
        return copies

    def next_page(self) -> NextPage:
        """The page of parked messages that is read now; there must be one."""
        page = self.lanes.returning.begin_page()
        assert page is not None, "no page is asked for"
        return page

    def recover(self, now_ms: int = NOW_MS, session: Session | None = None) -> list[str]:
        """The ids that the next call brings back to due; [""] for all of them."""
        self.lanes.returning.recover(now_ms, self._remove)
        unparking = (session or self.session).exits.take_unpark()
        return [id for call in unparking for id in call.args[3:] or [""]]

    def come_back(self, now_ms: int = NOW_MS) -> None:
        """The wanted messages are all back in due."""
        session = self.session
        session.answered(session.exits.take_report())
        session.unparked(0)
        while session.exits.take_unpark():
            session.unparked(0)
        self.lanes.returning.recover(now_ms, self._remove)

    def _remove(self, which: Callable[[Copy], bool]) -> list[Copy]:
        removed = [copy for copy in self.wheel if which(copy)]
        self.wheel = [copy for copy in self.wheel if not which(copy)]
        return removed

    def told(self) -> Counter[str]:
        """How many copies took which exit since the last call of this."""
        exits = self.session.exits.take_report()
        self.session.answered(exits)
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
