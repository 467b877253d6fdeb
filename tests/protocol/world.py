"""The whole system at one moment: a bucket, its workers, what is under way, the witness's notes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from tests.protocol import client_verbs, consumer_verbs, owner_verbs
from tests.protocol.bounds import Bounds, Faults, Order
from tests.protocol.bucket import NEVER, Bucket, Content, Token, empty, is_orphan, put
from tests.protocol.calls import Call, ClientCall, Copy, OwnerCall, Target
from tests.protocol.owner_verbs import Claimed, Fired
from tests.protocol.witness import Fate, Witness

NO_TOKEN: Token = (0, 0)
VERBS = {**client_verbs.VERBS, **consumer_verbs.VERBS}


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
    one whose answers it knows. mending: all is reclaimed; what is in no set is to be mended.
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


class Past(NamedTuple):
    """What a replica that lags has, and what its clients know of it."""

    content: Content
    fates: tuple[Fate | None, ...]
    allowed: tuple[int | None, ...]
    lost: tuple[int | None, ...]


class State(NamedTuple):
    """A world that stands still, to be compared and kept.

    lost: of each message that is in no set, because a key has vanished: its claim, 0 without one.
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
         self.wake, self.past, self.owners, self.node, self.given, self.lost) = state  # fmt: skip
        self.bounds, self.journal = bounds, journal
        self.bucket = Bucket(content, bounds.rules)
        self.witness = Witness(bounds, fates, allowed, went_back=self.node > 0)
        self.is_idle = False  # the step changed nothing that matters

    @property
    def state(self) -> State:
        witness = self.witness
        return State(
            self.clock, self.bucket.content, self.workers, self.requests, witness.fates,
            witness.allowed, self.left, self.calls, self.wake, self.past, self.owners, self.node,
            self.given, self.lost,
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
            witness.judge_owner(call, answer, before, bucket, lost)
        self._note(call.verb, call, answer)
        return answer

    def _run(self, call: Call) -> Any:
        if isinstance(call, ClientCall):
            return VERBS[call.verb](self.bucket, call, self.clock)
        if call.verb == "claim":
            return owner_verbs.claim(self.bucket, call, self.clock, self.bounds.reach)
        if call.verb == "retry":
            return owner_verbs.retry(self.bucket, call, self.clock)
        verb: Callable[[Bucket, OwnerCall], Any] = owner_verbs.VERBS[call.verb]
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
        return ClientCall(
            order.verb, tuple(Target(*target, stamp) for target, stamp in pairs), order.policy
        )

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
        self.bucket = Bucket(self.past.content, self.bounds.rules)
        self.witness.return_to(self.past.fates, self.past.allowed, self.past.content)
        self.lost, self.past = self.past.lost, None
        self.node += 1
        # A worker goes from one master to the next and never back. What it sent to the old one may
        # still be there; what it sends to the new one is a call of its own, answered or not.
        self.requests = tuple(call for call in self.requests if isinstance(call, ClientCall))
        self._note("replica_takes_over")


def start(bounds: Bounds) -> State:
    seen = 0 if bounds.rules.acknowledges == "turn" else ()
    names = [0 if bounds.rules.new_token else n + 1 for n in range(bounds.workers)]
    workers = tuple(Worker((name, 0), seen=seen) for name in names)
    allowed = (None,) * bounds.ids
    return State(
        0, empty(bounds.ids), workers, (), (), allowed, bounds.faults, 0, NEVER, None, 0, 0, (),
        (None,) * bounds.ids,
    )  # fmt: skip
