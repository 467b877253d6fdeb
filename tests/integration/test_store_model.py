"""A bucket on real Redis against a plain Python model, after every step of random stories.

`tests/protocol` has the order of calls; here it is content: reach, payloads, limits, errors.

Two owners follow the protocol while leases expire, replies are lost or come late, and any call is
executed again at any later time. After each step the answer and the whole state equal the model's,
and owners would publish only copies that a fire really allowed.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from math import inf
from typing import Any

import pytest
from hypothesis import HealthCheck, note, settings
from hypothesis import strategies as st
from hypothesis.stateful import rule, run_state_machine_as_test

from delaybridge.accept.accept import Accepted
from delaybridge.message import OnConflict, Record, encode_record, rank_of
from delaybridge.store.protocol.replies import Acquired, Claim, Fired
from tests.rigs.bucket import TTL_MS, Copy, Firing, Owner, World, grouped
from tests.rigs.bucket_compared import Call, ComparedBucket

AHEAD_MS = 1000
UNTIMED = False  # a verb that takes no time
TIMEOUT_S = 420  # usually 8; Hypothesis takes up to 300 to shorten a failing story

IDS = st.sampled_from(["x", "y", "z"])
OFFSETS_MS = st.sampled_from([0, 1, 1, 2, -5, 500, 5000])
HERE, THERE = (encode_record(Record(f"kafka:{topic}", b"")) for topic in ("here", "there"))
MESSAGES = st.tuples(
    IDS, OFFSETS_MS, st.sampled_from([0, 1, 255]), st.sampled_from([b"", HERE, THERE])
)
POLICIES = st.sampled_from([OnConflict.FAIL, OnConflict.KEEP, OnConflict.REPLACE])
HERE_OR_THE = '[["^kafka:", "^here$"], ["^kafka:the"]]'
REACHES = st.sampled_from(["", "", '[["^kafka:here$"]]', HERE_OR_THE, "[]"])
ERRORS = st.sampled_from(["a:q\nnack: 1", "a:q\nunroutable"])
LIMITS = st.sampled_from([100, 2, 1])
WINDOWS_MS = st.sampled_from([0, 2000, 60_000])
REPLY = st.sampled_from(["arrives", "arrives", "late", "lost"])
LOSABLE = st.sampled_from(["arrives", "arrives", "arrives", "lost"])


class Session(Owner):
    """An owner that follows the protocol while replies come late, or never."""

    def __init__(self, world: World, token: str, turn: int) -> None:
        super().__init__(world, token, turn)
        self.ready = False
        self.stamps: dict[Copy, bytes] = {}
        self.out: list[Copy] = []  # with the broker
        self.once: list[Copy] = []  # to be settled before they go to the broker
        self.ending: list[tuple[Copy, Call]] = []  # no answer yet: to be sent again
        self.late_claim: Claim | None = None
        # Of a fire under way also the claims that it really allowed.
        self.late_fire: tuple[Firing, frozenset[Copy], Fired] | None = None

    def received(self, claimed: Claim | None) -> list[Copy]:
        assert claimed is not None
        copies = super().received(claimed)
        stamps = (record[9:13] for record in claimed.records)
        self.stamps |= zip(copies, stamps, strict=True)
        return copies

    def is_once(self, copy: Copy) -> bool:
        """Whether it is delivered at most once, so settled first."""
        return self.stamps[copy][-1] % 3 == 0


class BucketMachine(ComparedBucket):
    """Stories of one bucket."""

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self.sessions: list[Session] = []
        self.published_once: set[bytes] = set()

    # what may happen next

    @rule(data=st.data())
    def something_happens(self, data: st.DataObject) -> None:
        owners, others, rarely = (list(self.steps(table)) for table in (OWNERS, OTHERS, RARELY))
        # Hypothesis prefers the first: put first what moves messages on.
        steps = owners + others + rarely
        name, session = data.draw(st.sampled_from(steps))
        note(name)
        arguments = (data,) if session is None else (data, session)
        getattr(self, name)(*arguments)

    def steps(self, table: Table) -> Iterator[tuple[str, Session | None]]:
        """The steps that are possible now, each as often as it is likely."""
        for name, weight, may in table:
            for session in self.sessions if name in OF_A_SESSION else (None,):
                yield from ((name, session) for _ in range(weight * may(self, session)))

    # clients

    def message(self, id: str, offset_ms: int, priority: int, payload: bytes) -> Any:
        due_ms = str(self.world.now_ms + offset_ms)
        accepted = Accepted(id, id.encode(), due_ms, rank_of(priority), payload)
        return self.draw_stamp(), accepted

    def schedule(self, data: st.DataObject) -> None:
        messages = data.draw(st.lists(MESSAGES, min_size=1, max_size=2))
        policy, reach = data.draw(POLICIES), data.draw(REACHES)
        made = [self.message(*message) for message in messages]
        self.call("schedule", made, policy, reach=reach, maybe=data.draw(st.booleans()))

    def pending(self, data: st.DataObject) -> str:
        """An id in the store, usually one that an owner has claimed."""
        ids = sorted(self.model.messages)
        claimed = sorted(self.model.mirror)
        return data.draw(st.sampled_from(claimed * 3 + ids))

    def cancel(self, data: st.DataObject) -> None:
        self.call("cancel", self.draw_stamp(), self.pending(data), reach=data.draw(REACHES))

    def reschedule(self, data: st.DataObject) -> None:
        due_ms = self.world.now_ms + data.draw(OFFSETS_MS)
        id, reach = self.pending(data), data.draw(REACHES)
        self.call("reschedule", self.draw_stamp(), id, str(due_ms), reach=reach)

    def touch(self, data: st.DataObject) -> None:
        """Replace a message, if it still is the one that was read; another one may be there."""
        id, (_, *message) = self.pending(data), data.draw(MESSAGES)
        read = self.model.messages[self.pending(data)].stamp
        made = [self.message(id, *message)]
        self.call("schedule", made, OnConflict.REPLACE, reach=b"=" + read)

    def kick(self, data: st.DataObject) -> None:
        self.call("kick", self.draw_stamp(), data.draw(st.sampled_from(sorted(self.model.dead))))

    def discard(self, data: st.DataObject) -> None:
        id = data.draw(st.sampled_from(sorted(self.model.dead)))
        self.call("discard", self.draw_stamp(), id)

    def get(self, data: st.DataObject) -> None:
        id = data.draw(IDS)
        assert self.world.run(self.world.bucket.get(id)) == self.model.get(id)

    # time and trouble

    def time_passes(self, data: st.DataObject) -> None:
        self.world.now_ms += data.draw(st.sampled_from([1, 2, 500, 3000]))

    def once_more(self, data: st.DataObject) -> None:
        verb = data.draw(st.sampled_from(sorted(self.past)))
        call = data.draw(st.sampled_from(self.past[verb]))
        note(f"{call.verb} {call.args} {call.fields}")
        self.make(call)

    def lease_runs_out(self, _: st.DataObject) -> None:
        self.world.end_lease()
        self.model.lease = None

    # leases

    def acquire(self, data: st.DataObject) -> None:
        self.take_lease(arrives=data.draw(LOSABLE) == "arrives", dedup_ms=data.draw(WINDOWS_MS))

    def take_lease(self, *, arrives: bool, dedup_ms: int = 0) -> None:
        self.drawn += 1
        acquired: Acquired = self.call(
            "acquire", f"w:{self.drawn}", TTL_MS, timed=False, dedup_ms=dedup_ms
        )
        if acquired.token is not None and arrives:
            taken = Session(self.world, acquired.token, acquired.turn)
            self.sessions = [*self.sessions[-1:], taken]

    def renew(self, _: st.DataObject, session: Session) -> None:
        known = session.last_claim
        if not self.call("renew", session.token, TTL_MS, known, timed=False).held:
            self.sessions.remove(session)

    def give_up(self, data: st.DataObject, session: Session) -> None:
        """End a session by a release or a crash."""
        self.sessions.remove(session)
        if data.draw(st.booleans()):
            self.call("release", session.token, timed=False)

    def has_living_owner(self) -> bool:
        return any(session.token == self.model.lease for session in self.sessions)

    def ask(
        self, session: Session, verb: str, *args: Any, timed: bool = True, **fields: Any
    ) -> Any:
        """Make an owner's call. If its lease is lost: None, and the session is over."""
        answer = self.call(verb, session.token, TTL_MS, *args, timed=timed, **fields)
        if answer is None:
            self.sessions.remove(session)
        return answer

    # an owner's round

    def reclaim(self, data: st.DataObject, session: Session) -> None:
        answer = self.ask(session, "reclaim", data.draw(LIMITS))
        session.ready = answer is not None and answer.left == 0

    def claim(self, data: st.DataObject, session: Session) -> None:
        limit, max_bytes = data.draw(LIMITS), data.draw(st.sampled_from([10_000, 30, 1]))
        self.send_claim(session, limit, max_bytes, data.draw(REPLY))

    def send_claim(self, session: Session, limit: int, max_bytes: int, reply: str) -> None:
        bounds = {"ahead_ms": AHEAD_MS, "limit": limit, "max_bytes": max_bytes}
        paces = {"pace_ms": 250, "margin_ms": 20}
        claimed = self.ask(session, "claim", session.last_claim, **bounds, **paces)
        if claimed is not None and reply != "lost":
            session.late_claim = claimed
            if reply == "arrives":
                self.claim_arrives(None, session)

    def claim_arrives(self, _: Any, session: Session) -> None:
        claimed, session.late_claim = session.late_claim, None
        session.received(claimed)

    def has_claimable(self, session: Session) -> bool:
        lost = session.last_claim < self.model.marks.claimed
        return lost or min(self.model.due.values(), default=inf) < self.world.now_ms + AHEAD_MS

    def ripe(self, session: Session) -> list[float]:
        """The highest score that may be fired now."""
        return sorted({c.score for c in session.wheel if c.score <= self.world.now_ms + 5})

    def fire(self, data: st.DataObject, session: Session) -> None:
        self.send_fire(session, data.draw(st.sampled_from(self.ripe(session))), data.draw(REPLY))

    def send_fire(self, session: Session, up_to: float, reply: str) -> None:
        firing, mirror = session.firing(up_to), dict(self.model.mirror)
        covered = [c for c in session.wheel if c.score <= firing.watermark]
        fired = self.ask(session, "fire", *firing[1:], session.last_revocation)
        if fired is None:
            return
        allowed = frozenset(c for c in covered if mirror.get(c.id) == c.claim)
        self.model.fired |= {(c.id, c.claim) for c in allowed}
        if reply != "lost":
            session.late_fire = firing, allowed, fired
            if reply == "arrives":
                self.fire_arrives(None, session)

    def fire_arrives(self, _: Any, session: Session) -> None:
        assert session.late_fire is not None
        (firing, allowed, fired), session.late_fire = session.late_fire, None
        out = session.publishes(firing, fired)
        session.out += [copy for copy in out if not session.is_once(copy)]
        session.once += [copy for copy in out if session.is_once(copy)]
        assert set(out) == allowed, "an owner publishes what the store allowed, and all of it"

    # how copies end: the owner drops the copy, and sends its end until that is answered

    def end(self, data: st.DataObject, session: Session, copy: Copy, *ending: Any) -> None:
        for copies in (session.wheel, session.out, session.once):
            if copy in copies:
                copies.remove(copy)
        verb, what, *timed = ending
        call = Call(verb, (session.token, TTL_MS, what), {}, timed=not timed)
        self.send_end(session, copy, call, data.draw(LOSABLE))

    def send_end(self, session: Session, copy: Copy, call: Call, reply: str) -> None:
        answer = self.make(self.remembered(call))
        if answer is None:
            self.sessions.remove(session)
        elif reply == "lost":
            session.ending.append((copy, call))
        elif call.verb == "settle_once":
            assert answer == {copy.id}, "only its owner could have ended it"
            assert session.stamps[copy] not in self.published_once
            self.published_once.add(session.stamps[copy])

    def end_again(self, data: st.DataObject, session: Session) -> None:
        copy, call = session.ending.pop(0)
        self.send_end(session, copy, call, data.draw(LOSABLE))

    def settle(self, data: st.DataObject, session: Session) -> None:
        copy = data.draw(st.sampled_from(session.out))
        self.end(data, session, copy, "settle", grouped([copy]))

    def settle_once(self, data: st.DataObject, session: Session) -> None:
        copy = data.draw(st.sampled_from(session.once))
        self.end(data, session, copy, "settle_once", grouped([copy]))

    def retry(self, data: st.DataObject, session: Session) -> None:
        copy = data.draw(st.sampled_from(session.out))
        delay_ms = data.draw(st.sampled_from([0, 1, 700]))
        maybe, error = data.draw(st.booleans()), data.draw(ERRORS)
        self.end(data, session, copy, "retry", [(copy.item, delay_ms, maybe, error)])

    def bury_fired(self, data: st.DataObject, session: Session) -> None:
        copy = data.draw(st.sampled_from(session.out))
        maybe = data.draw(st.booleans())
        self.end(data, session, copy, "bury", [(copy.item, True, maybe, "refused")])

    def trim(self, data: st.DataObject, session: Session) -> None:
        keep, age_ms = data.draw(st.sampled_from([(0, None), (1, None), (None, 500), (1, 1)]))
        self.ask(session, "trim", keep=keep, age_ms=age_ms, limit=data.draw(LIMITS))

    def put_back(self, data: st.DataObject, session: Session) -> None:
        copy = data.draw(st.sampled_from(session.wheel))
        self.end(data, session, copy, "retry", [(copy.item, None, False, "")])

    def defer(self, data: st.DataObject, session: Session) -> None:
        copy = data.draw(st.sampled_from(session.wheel))
        score = copy.score + data.draw(st.sampled_from([1, 300, 5000]))
        self.end(data, session, copy, "defer", [(copy.item, score)], UNTIMED)

    def park(self, data: st.DataObject, session: Session) -> None:
        copy = data.draw(st.sampled_from(session.wheel))
        self.end(data, session, copy, "park", [copy.item], UNTIMED)

    def bury(self, data: st.DataObject, session: Session) -> None:
        copy = data.draw(st.sampled_from(session.wheel))
        self.end(data, session, copy, "bury", [(copy.item, False, False, "undecodable")])

    def unpark(self, data: st.DataObject, session: Session) -> None:
        ids = data.draw(st.lists(IDS, max_size=2))
        self.ask(session, "unpark", limit=data.draw(LIMITS), ids=ids, timed=False)

    # whatever happened, the bucket can be drained

    def teardown(self) -> None:
        self.sessions = []
        self.world.now_ms += 10_000
        self.world.end_lease()
        self.model.lease = None
        self.take_lease(arrives=True)
        (session,) = self.sessions
        self.ask(session, "reclaim", 100)
        self.ask(session, "unpark", limit=100, timed=False)
        self.send_claim(session, 100, 10_000, "arrives")
        if ripe := self.ripe(session):
            self.send_fire(session, ripe[-1], "arrives")
        self.ask(session, "settle", grouped(session.out + session.once))
        self.the_bucket_is_the_models()
        assert not (self.model.due or self.model.mirror or self.model.parked)


# The steps: how likely each is, and when it is possible.
Table = list[tuple[str, int, Callable[[BucketMachine, Any], bool]]]

OWNERS: Table = [
    ("fire", 8, lambda m, s: s.ready and not s.late_fire and bool(m.ripe(s))),
    ("fire_arrives", 6, lambda m, s: bool(s.late_fire)),
    ("claim_arrives", 4, lambda m, s: bool(s.late_claim)),
    ("settle", 4, lambda m, s: bool(s.out)),
    ("settle_once", 6, lambda m, s: bool(s.once)),
    ("claim", 8, lambda m, s: s.ready and not s.late_claim and m.has_claimable(s)),
    ("retry", 4, lambda m, s: bool(s.out)),
    ("bury_fired", 3, lambda m, s: bool(s.out)),
    ("end_again", 6, lambda m, s: bool(s.ending)),
    # Copies that a fire under way may cover do not end in another way meanwhile.
    ("put_back", 2, lambda m, s: bool(s.wheel) and not s.late_fire),
    ("defer", 2, lambda m, s: bool(s.wheel) and not s.late_fire),
    ("park", 2, lambda m, s: bool(s.wheel) and not s.late_fire),
    ("bury", 1, lambda m, s: bool(s.wheel) and not s.late_fire),
    ("unpark", 3, lambda m, s: s.ready and bool(m.model.parked)),
    ("reclaim", 12, lambda m, s: not s.ready),
]
OTHERS: Table = [
    ("lease_runs_out", 12, lambda m, _: bool(m.model.lease) and not m.has_living_owner()),
    ("acquire", 15, lambda m, _: not m.model.lease),
    ("schedule", 6, lambda m, _: len(m.model.messages) < 3),
    ("time_passes", 3, lambda m, _: True),
    ("cancel", 3, lambda m, _: bool(m.model.messages)),
    ("reschedule", 3, lambda m, _: bool(m.model.messages)),
    ("touch", 3, lambda m, _: bool(m.model.messages)),
    ("schedule", 2, lambda m, _: True),
    ("kick", 3, lambda m, _: bool(m.model.dead)),
    ("discard", 2, lambda m, _: bool(m.model.dead)),
    ("once_more", 6, lambda m, _: bool(m.past)),
    ("get", 1, lambda m, _: True),
]
RARELY: Table = [
    ("claim", 1, lambda m, s: s.ready and not s.late_claim),
    ("renew", 1, lambda m, s: True),
    ("give_up", 1, lambda m, s: s.ready),
    ("trim", 2, lambda m, s: bool(m.model.dead or m.model.delivered)),
    ("acquire", 1, lambda m, _: bool(m.model.lease)),
    ("lease_runs_out", 1, lambda m, _: bool(m.model.lease)),
]
OF_A_SESSION = {name for name, _, _ in OWNERS} | {"renew", "give_up", "trim"}


@pytest.mark.timeout(TIMEOUT_S)
def test_a_bucket_behaves_as_its_model(redis_url: str, namespace: str, now_ms: int) -> None:
    chosen = settings(
        deadline=None,
        derandomize="CI" in os.environ,
        print_blob=True,
        suppress_health_check=list(HealthCheck),
        max_examples=settings().max_examples // 2,
        stateful_step_count=100,
    )
    with World(redis_url, namespace, now_ms) as world:
        run_state_machine_as_test(lambda: BucketMachine(world), settings=chosen)
