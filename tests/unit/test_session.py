"""The owner's side of one bucket: the revocations that it remembers."""

from __future__ import annotations

from math import inf
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from delaybridge.scan.leases.session import Session
from delaybridge.store.protocol.replies import Fired
from tests.rigs.bucket_session import TURN, new_session

# revocations


def test_a_revocation_applies_to_earlier_claims_and_to_no_later_one(session: Session) -> None:
    session.claims.received(TURN + 1, 1)
    session.claims.revoke(Fired(TURN + 1, {b"x": TURN + 2}))
    assert session.claims.is_revoked("x", TURN + 1)
    assert not session.claims.is_revoked("x", TURN + 3)
    assert not session.claims.is_revoked("y", TURN + 1)


def test_a_second_revocation_of_one_id_applies_to_both_copies(session: Session) -> None:
    session.claims.received(TURN + 3, 2)
    session.claims.revoke(Fired(TURN + 3, {b"x": TURN + 2}))
    session.claims.revoke(Fired(TURN + 3, {b"x": TURN + 4}))
    assert session.claims.is_revoked("x", TURN + 1)
    assert session.claims.is_revoked("x", TURN + 3)


def test_a_revocation_is_kept_while_a_copy_claimed_before_it_waits(session: Session) -> None:
    session.claims.received(TURN + 1, 2)
    session.claims.received(TURN + 2, 1)
    session.claims.revoke(Fired(TURN + 2, {b"x": TURN + 3}))
    for claim in (TURN + 1, TURN + 2, TURN + 1):
        session.claims.forget_revoked()
        assert session.claims.is_revoked("x", TURN + 1)
        session.claims.waits_no_more(claim, 1)
    session.claims.received(TURN + 4, 1)
    session.claims.forget_revoked()
    assert not session.claims.is_revoked("x", TURN + 1)


def test_a_revocation_is_acknowledged_when_every_claim_made_before_it_has_arrived(
    session: Session,
) -> None:
    session.claims.received(TURN + 1, 1)
    session.claims.revoke(Fired(TURN + 2, {b"x": TURN + 3}))
    assert session.claims.last_revocation == 0, "claim TURN + 2 is on its way and may hold x"
    session.claims.received(TURN + 2, 1)
    session.claims.revoke(Fired(TURN + 2, {b"x": TURN + 3}))
    assert session.claims.last_revocation == TURN + 3
    session.claims.revoke(Fired(TURN + 2, {}))
    assert session.claims.last_revocation == TURN + 3


class SmallStore:
    """The parts of a bucket that decide revocations: mirror, turns, watermark."""

    def __init__(self) -> None:
        self.turn = self.claimed = TURN
        self.mirror: dict[str, tuple[int, float]] = {}
        self.revoked: dict[str, int] = {}
        self.fired = (-1.0, -1)

    def claim(self, id: str, score: float) -> int | None:
        if id in self.mirror:
            return None
        self.turn += 1
        self.claimed = self.turn
        self.mirror[id] = self.claimed, score
        return self.claimed

    def cancel(self, id: str) -> None:
        claim, score = self.mirror.get(id, (inf, inf))
        if id in self.mirror and not (score <= self.fired[0] and claim <= self.fired[1]):
            del self.mirror[id]
            self.turn += 1
            self.revoked[id] = self.turn

    def fire(self, watermark: float, last_claim: int, last_revocation: int) -> Fired:
        self.fired = max(watermark, self.fired[0]), max(last_claim, self.fired[1])
        self.revoked = {id: turn for id, turn in self.revoked.items() if turn > last_revocation}
        return Fired(self.claimed, {id.encode(): turn for id, turn in self.revoked.items()})


class Owner:
    """A session with its wheel; a claim and a fire may each be on their way back."""

    def __init__(self) -> None:
        self.store = SmallStore()
        self.session = new_session()
        self.wheel: list[tuple[str, int, float]] = []
        self.claiming: tuple[str, int, float] | None = None
        self.firing: tuple[Fired, list[tuple[str, int, float]]] | None = None

    def claim(self, id: str, score: float) -> None:
        if self.claiming is None and (number := self.store.claim(id, score)) is not None:
            self.claiming = id, number, score

    def claim_arrives(self) -> None:
        if self.claiming is not None:
            self.wheel.append(self.claiming)
            self.session.claims.received(self.claiming[1], 1)
            self.claiming = None

    def fire(self, up_to: float) -> None:
        # No copies below the watermark: a clock set back leaves those on the wheel.
        covered = [copy for copy in self.wheel if copy[2] <= up_to]
        if self.firing is None and covered:
            session = self.session
            session.watermark = max(session.watermark, *(score for *_, score in covered))
            fired = self.store.fire(
                session.watermark, session.claims.last, session.claims.last_revocation
            )
            self.firing = fired, covered
            self.wheel = [copy for copy in self.wheel if copy not in covered]
            for _, claim, _ in covered:
                session.claims.waits_no_more(claim, 1)

    def fire_answers(self) -> None:
        """Publish the copies that the fire covered and that are not revoked."""
        if self.firing is None:
            return
        fired, covered = self.firing
        self.firing = None
        self.session.claims.revoke(fired)
        for id, claim, _ in covered:
            if not self.session.claims.is_revoked(id, claim):
                assert self.store.mirror.pop(id, (None, 0))[0] == claim, "published though revoked"
        self.session.claims.forget_revoked()

    def finish(self) -> None:
        for _ in range(2):
            self.fire_answers()
            self.claim_arrives()
            self.fire(inf)


IDS, SCORES = st.sampled_from("xy"), st.integers(1, 6).map(float)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("claim"), IDS, SCORES),
        st.tuples(st.just("claim_arrives")),
        st.tuples(st.just("fire"), SCORES),
        st.tuples(st.just("fire_answers")),
        st.tuples(st.just("cancel"), IDS),
    ),
    min_size=10,
    max_size=40,
)


@given(STEPS)
def test_no_revoked_copy_is_published_however_claims_and_fires_overlap(
    steps: list[tuple[Any, ...]],
) -> None:
    owner = Owner()
    for verb, *arguments in steps:
        getattr(owner.store if verb == "cancel" else owner, verb)(*arguments)
    owner.finish()
    assert owner.store.mirror == {}, "copies that were not revoked are published"


@given(STEPS)
def test_no_revocation_is_remembered_for_ever(steps: list[tuple[Any, ...]]) -> None:
    owner = Owner()
    for verb, *arguments in steps:
        getattr(owner.store if verb == "cancel" else owner, verb)(*arguments)
    owner.finish()
    for id in "ab":  # two more fires: one reports the remaining revocation, one acknowledges it
        owner.claim(id, 9.0)
        owner.finish()
    assert owner.store.revoked == {}
    assert not any(owner.session.claims.is_revoked(id, 0) for id in "xy")
