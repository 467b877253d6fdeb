"""The whole system at one moment: a bucket, its workers, what is under way, the witness's notes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from tests.protocol import client_verbs, consumer_verbs, ledger_verbs, owner_verbs
from tests.protocol.bounds import Bounds, Faults, Order
from tests.protocol.bucket import NEVER, Bucket, Content, Token, empty, is_orphan, put
from tests.protocol.calls import Call, ClientCall, Copy, OwnerCall, Target
from tests.protocol.owner_verbs import Claimed, Fired
from tests.protocol.rows import Rows
from tests.protocol.witness import Fate, Witness

NO_TOKEN: Token = (0, 0)
VERBS = {**client_verbs.VERBS, **consumer_verbs.VERBS, **ledger_verbs.OF_ANYBODY}
OWNER_VERBS = {**owner_verbs.VERBS, **ledger_verbs.OF_OWNER}


class Given(NamedTuple):
    """What some consumer was given."""

    id: int
    receipt: int


class Firing(NamedTuple):
    """A fire whose reply has not been read yet."""

    call: OwnerCall
    fired: Fired
    allowed: tuple[Copy, ...]  # which of the call's copies the store really allowed


class Worker(NamedTuple):
    """What one worker knows. out: copies that go to the broker.

    confirmed, failed: copies whose publish ended so; their end is not told yet. failed: with
    whether it may have arrived. aside: copies that were parked or put back, and the verb, whose
    reply was lost: told again before the next fire. look: the tick of the next claim. node: the
    one whose answers it knows. mending: all is reclaimed; what is in no set is to be mended. known:
    the last generation that the ledger has. is_verified: the bucket was compared with the ledger.
    """

    token: Token = NO_TOKEN
    ready: bool = False
    wheel: tuple[Copy, ...] = ()
    have: int = 0
    seen: Any = 0
    watermark: int = -1
    claimed: Claimed | None = None
    firing: Firing | None = None
    out: tuple[Copy, ...] = ()
    confirmed: tuple[Copy, ...] = ()
    failed: tuple[tuple[Copy, bool], ...] = ()
    aside: tuple[tuple[Copy, str], ...] = ()
    look: int = 0
    node: int = 0
    mending: bool = False
    known: int | None = None
    is_verified: bool = False


class Past(NamedTuple):
    """What a replica that lags has, and what its clients know of it."""

    content: Content
    fates: tuple[Fate | None, ...]
    allowed: tuple[int | None, ...]
    lost: tuple[int | None, ...]


class State(NamedTuple):
    """A world that stands still, to be compared and kept.

    lost: of each message that is in no set, because a key has vanished: its claim, 0 without one.
    settled: of each id until which tick it is known as delivered; window: for how long the owner of
    the lease keeps that. rows: of the ledger. paced: of each id when a throttled one may be due.
    """

    clock: int
    content: Content
    workers: tuple[Worker, ...]
    requests: tuple[Call, ...]  # each is executed once more
    fates: tuple[Fate | None, ...]
    allowed: tuple[int | None, ...]
    left: Faults
    calls: int
    wake: int  # the tick that a wake-up under way names
    past: Past | None
    owners: int
    node: int
    given: tuple[Given, ...]
    lost: tuple[int | None, ...]
    settled: tuple[int, ...]
    window: int = 0
    rows: Rows = Rows()
    paced: tuple[int, ...] = ()


class Event(NamedTuple):
    """A call as the store saw it; verb alone for what no client or owner does. For replays."""

    verb: str
    call: Call | None
    clock: int
    answer: Any
    content: Content
    woken: int | None


class World:
    """A world that changes: one step of it. journal: of events, if they are wanted."""

    __slots__ = (*State._fields, "bounds", "bucket", "witness", "journal", "is_idle")

    def __init__(self, state: State, bounds: Bounds, journal: list[Event] | None = None) -> None:
        (self.clock, content, self.workers, self.requests, fates, allowed, self.left, self.calls,
         self.wake, self.past, self.owners, self.node, self.given, self.lost, settled, window,
         self.rows, paced) = state  # fmt: skip
        self.bounds, self.journal = bounds, journal
        self.bucket = Bucket(content, bounds.rules)
        self.witness = Witness(bounds, fates, allowed, went_back=self.node > 0)
        self.witness.settled, self.witness.window, self.witness.paced = settled, window, paced
        self.is_idle = False  # the step changed nothing that matters

    @property
    def state(self) -> State:
        witness = self.witness
        return State(
            self.clock, self.bucket.content, self.workers, self.requests, witness.fates,
            witness.allowed, self.left, self.calls, self.wake, self.past, self.owners, self.node,
            self.given, self.lost, witness.settled, witness.window, self.rows, witness.paced,
        )  # fmt: skip

    # calls

    def execute(self, call: Call, *, again: bool = False) -> Any:
        """One call on the bucket, watched by the witness."""
        bucket, witness = self.bucket, self.witness
        bucket.effects, bucket.woken = [], None
        before = bucket.content
        answer = self._run(call)
        lost, self.lost = self.lost, self._still_lost()
        if bucket.woken is not None and self.bounds.sleeps:
            self.wake = min(self.wake, bucket.woken // 2)
        if isinstance(call, ClientCall):
            witness.judge_client(call, answer, bucket.effects, self.clock, again=again)
        else:
            witness.judge_owner(call, answer, before, bucket, lost, self.clock)
        if self.bounds.ledger:
            self.rows = self.rows.after(call, answer, bucket)
        self._note(call.verb, call, answer)
        return answer

    def _run(self, call: Call) -> Any:
        if isinstance(call, ClientCall):
            return VERBS[call.verb](self.bucket, call, self.clock)
        if call.verb == "claim":
            return owner_verbs.claim(self.bucket, call, self.clock, self.bounds.reach)
        if call.verb in owner_verbs.TIMED:
            return owner_verbs.TIMED[call.verb](self.bucket, call, self.clock)
        verb: Callable[[Bucket, OwnerCall], Any] = OWNER_VERBS[call.verb]
        return verb(self.bucket, call)

    def _note(self, verb: str, call: Call | None = None, answer: Any = None) -> None:
        if self.journal is not None:
            content, woken = self.bucket.content, self.bucket.woken if call else None
            self.journal.append(Event(verb, call, self.clock, answer, content, woken))

    def _still_lost(self) -> tuple[int | None, ...]:
        return tuple(
            claim if claim is not None and is_orphan(self.bucket, id) else None
            for id, claim in enumerate(self.lost)
        )

    def order(self, order: Order) -> ClientCall:
        """A client's call, with a stamp for each message."""
        self.calls += 1
        own = self.bounds.rules.own_stamps
        first, *_ = drawn = self.stamps(len(order.targets))
        stamps = drawn if own else [first] * len(drawn)
        pairs = zip(order.targets, stamps, strict=True)
        call = ClientCall(
            order.verb, tuple(Target(*target, stamp) for target, stamp in pairs), order.policy
        )
        if order.policy == "touch":
            ((id, due, stamp),), old = call.targets, self.bucket.messages[order.targets[0][0]]
            score, read = (0, -1) if old is None else (due or old.score, old.stamp)
            call = call._replace(targets=(Target(id, score, stamp),), policy="replace", only=read)
        is_cancel = self.bounds.ledger and order.verb == "cancel"
        return call._replace(has_row=self.bounds.ledger, row=-1 if is_cancel else None)

    def stamps(self, count: int) -> list[int]:
        """Never drawn before; also the receipts of consumers."""
        first = len(self.witness.fates)
        self.witness.fates += (None,) * count
        return list(range(first, first + count))

    # workers

    def change(self, i: int, **fields: Any) -> None:
        self.workers = put(self.workers, i, self.workers[i]._replace(**fields))

    def drop(self, i: int) -> None:
        """The session of a worker ends, and with it all that it holds."""
        old, rules = self.workers[i], self.bounds.rules
        token = NO_TOKEN if rules.new_token else (old.token[0], 0)
        kept = () if rules.drops else old.wheel
        seen = 0 if rules.acknowledges == "turn" else ()
        self.workers = put(self.workers, i, Worker(token, wheel=kept, seen=seen))

    def owns(self, i: int) -> bool:
        token = self.workers[i].token
        return token[1] > 0 and self.bucket.holds(token)

    # trouble

    def spend(self, fault: str) -> None:
        self.left = self.left._replace(**{fault: getattr(self.left, fault) - 1})

    def lease_ends(self) -> None:
        self.bucket.lease = None
        self._note("lease_ends")

    def vanishes(self, key: str) -> None:
        """A key of the bucket is gone; nobody knows what may have been published of it."""
        self.spend("vanish")
        for id, entry in enumerate(getattr(self.bucket, key)):
            if entry is not None and entry is not False:
                self.lost = put(self.lost, id, entry if key == "mirror" else 0)
                self.witness.change(self.bucket.record(id).stamp, unknown=True)
                self.bucket.set(key, id, False if key == "dead" else None)
        self._note(f"vanish {key}")

    def replica_lags(self) -> None:
        witness = self.witness
        self.past = Past(self.bucket.content, witness.fates, witness.allowed, self.lost)
        self._note("replica_lags")

    def replica_takes_over(self) -> None:
        assert self.past is not None
        self.spend("rollback")
        self._goes_back(self.past)
        self._note("replica_takes_over")

    def wiped(self) -> None:
        """All that the store had is gone."""
        self.spend("wipe")
        none = (None,) * self.bounds.ids
        self._goes_back(Past(empty(self.bounds.ids), (), none, none))
        self._note("wiped")

    def erases(self, id: int) -> None:
        """All that the keys say of a message is deleted by hand, but for its attempts."""
        self.spend("erase")
        self.witness.change(self.bucket.record(id).stamp, state="erased", held=0, receipt=-1)
        for name in ("messages", "due", "parked"):
            self.bucket.set(name, id, None)
        for name in ("dead", "reasons"):
            self.bucket.set(name, id, False)
        self._note(f"erase {id}")

    def _goes_back(self, past: Past) -> None:
        self.bucket = Bucket(past.content, self.bounds.rules)
        self.witness.return_to(past.fates, past.allowed, past.content)
        self.lost, self.past = past.lost, None
        self.node += 1
        # A worker goes from one master to the next and never back. What it sent to the old one may
        # still be there; what it sends to the new one is a call of its own, answered or not.
        self.requests = tuple(call for call in self.requests if isinstance(call, ClientCall))


def start(bounds: Bounds) -> State:
    seen = 0 if bounds.rules.acknowledges == "turn" else ()
    names = [0 if bounds.rules.new_token else n + 1 for n in range(bounds.workers)]
    workers = tuple(Worker((name, 0), seen=seen) for name in names)
    allowed = (None,) * bounds.ids
    return State(
        0, empty(bounds.ids), workers, (), (), allowed, bounds.faults, 0, NEVER, None, 0, 0, (),
        (None,) * bounds.ids, (0,) * bounds.ids, paced=(0,) * bounds.ids,
    )  # fmt: skip
