"""What a worker remembers of its buckets, and what it makes of what Redis says of them later."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any

import pytest

from delaybridge.errors import StoreError, StoreUnavailable, StoreWiped
from delaybridge.events import Event, StoreWentBack
from delaybridge.scan.leases.session import Session
from delaybridge.store.namespace.following import BucketsFollowed
from delaybridge.store.namespace.history_alarm import Setback, setbacks_text
from delaybridge.store.namespace.marks import Marks, parse
from delaybridge.store.protocol.bucket import Bucket
from delaybridge.store.protocol.layout import Epoch, Layout
from delaybridge.worker.history_check import Past, refuse_wiped
from delaybridge.worker.parts import RunView

BIRTH = (Layout((Epoch(0, 4),)), "birth")


class World:
    """A worker's past, and a Redis that says what the test says."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.lost: list[int] = []
        self.wiped = 0
        self.held: dict[int, Session] = {}
        self.past = Past("ns", "w", "instance", self.events.append)
        self.begin()

    def begin(self, rowless: Callable[[], Mapping[int, int]] | None = None) -> None:
        held = lambda: [each.bucket for each in self.held.values()]  # noqa: E731
        sessions = lambda: [*self.held.values()]  # noqa: E731
        calls: Any = SimpleNamespace(birth=BIRTH[1], following=BucketsFollowed("ns"))
        store: Any = None
        self.past.begin(
            RunView(store, calls, self.past, sessions, held, self._lost, self._wiped, list, rowless)
        )

    def _lost(self, session: Session, reason: str) -> None:
        session.end()
        self.lost.append(self.held.pop(session.bucket.number).bucket.number)

    def _wiped(self) -> None:
        self.wiped += 1

    def take(self, bucket: int, turn: int) -> None:
        token = f"w:random:{turn}"
        self.held[bucket] = Session(Bucket("ns", bucket, BIRTH[1]), token, turn, 1000, 0.0)
        self.past.taken(bucket, token)

    def beat(self, birth: Any = BIRTH, **marks: tuple[Any, ...]) -> int:
        """One beat; how many commands it had besides marks. marks: bN=(turn, scheduled, ...)."""
        commands = self.past.commands()
        read = [
            parse([None if each is None else str(each).encode() for each in marks[f"b{number}"]])
            for number in self.held
        ]
        others = len(commands) - len(read)
        self.past.take_replies([birth, *read, *[1] * (others - 1)])
        return others

    def alarms(self) -> list[StoreWentBack]:
        return [event for event in self.events if isinstance(event, StoreWentBack)]


@pytest.fixture
def world() -> World:
    world = World()
    world.take(0, 5)
    world.beat(b0=(5, 10, 1, 1))
    return world


def test_what_grows_is_no_alarm(world: World) -> None:
    world.beat(b0=(5, 10, 1, 1))
    world.beat(b0=(9, 30, 2, 2))
    world.take(0, 10)
    world.beat(b0=(10, 30, 2, 2))
    assert (world.alarms(), world.lost, world.past.doubt) == ([], [], set())


@pytest.mark.parametrize("after", [(4, 10, 1, 1), (5, 9, 1, 1), (5, 10, 0, 1), (5, 10, 1, 0)])
def test_whatever_falls_ends_the_session_and_is_told_once(
    world: World, after: tuple[int, ...]
) -> None:
    world.beat(b0=after)
    assert (world.lost, world.past.doubt) == ([0], {0})
    assert len(world.alarms()) == 1
    world.take(0, after[0] + 1)
    assert world.beat(b0=(after[0] + 1, *after[1:])) == 3  # the record, what is kept, a release
    assert world.beat(b0=(after[0] + 1, *after[1:])) == 1
    assert len(world.alarms()) == 1


def test_a_lease_whose_turn_is_not_new_tells_it_too(world: World) -> None:
    """The lease was gone with the past, so no beat saw the fall."""
    world.held.clear()
    world.take(0, 5)
    assert world.past.doubt == {0}, "it is compared before its first claim"
    world.beat(b0=(5, 3, 1, 1))
    (alarm,) = world.alarms()
    assert (alarm.buckets, alarm.missing) == ([0], 7)
    assert "0 from turn 5 to 4)" in alarm.reason, "the lease began turn 5 once more"
    assert world.lost == []  # the new session knows nothing that was forgotten


def test_an_empty_bucket_went_back_to_turn_0(world: World) -> None:
    world.beat(b0=(None, None, None, None))
    (alarm,) = world.alarms()
    assert "turn 5 to 0" in alarm.reason
    assert alarm.missing == 10


@pytest.mark.parametrize("odd", ["x", "-1", "9" * 30, ""])
def test_a_counter_that_is_no_number_is_no_alarm(world: World, odd: str) -> None:
    world.beat(b0=(odd, odd, odd, odd))
    world.beat(b0=(5, 10, 1, 1))
    assert world.alarms() == []


def test_an_answer_about_a_session_that_has_ended_does_not_count(world: World) -> None:
    """It was asked before the lease was taken again, and may be older than that."""
    world.past.commands()
    world.held[0].alive = False
    world.take(0, 6)
    world.past.take_replies([BIRTH, Marks(4, 1, 1, 1)])
    assert world.alarms() == []


@pytest.mark.parametrize("birth", [None, (BIRTH[0], "another")])
def test_a_record_that_is_gone_or_another_is_a_wiped_namespace(world: World, birth: Any) -> None:
    for _ in range(2):  # an empty server may answer for a moment, while masters change
        world.beat(birth, b0=(None, None, None, None))
    assert world.wiped == 0
    world.beat(birth, b0=(None, None, None, None))
    assert world.wiped == 1
    assert world.alarms() == []


def test_a_record_that_is_there_again_is_no_wiped_namespace(world: World) -> None:
    for birth in (None, None, BIRTH, None, None, BIRTH):
        world.beat(birth, b0=(5, 10, 1, 1))
    assert (world.wiped, world.lost) == (0, [])


def test_a_record_that_cannot_be_read_is_not(world: World) -> None:
    world.beat(ValueError(), b0=(5, 10, 1, 1))
    assert world.wiped == 0


async def test_with_a_ledger_what_it_lacks_is_told_by_those_who_knew_it(world: World) -> None:
    class Store:
        recorder = "a ledger"
        noted: list[Any] = []

        async def run_each(self, commands: Any) -> None:
            self.noted = [json.loads(each.args[-1]) for each in commands if each.name == "HSET"]

    store: Any = Store()
    rowless = {0: 3, 1: 9}  # of bucket 1 from long ago
    world.begin(lambda: rowless)
    world.beat(b0=(5, 10, 1, 1))
    rowless[0] = 0  # compared again
    world.beat(b0=(5, 10, 1, 1))
    world.beat(b0=(4, 10, 1, 1))
    assert [each.rowless for each in world.past._untold.values()] == [3]
    await world.past.tell_wiped(store)
    assert [(each["bucket"], each["rowless"]) for each in store.noted] == [(None, 0), (0, 3)]
    for turn in range(6, 66):
        world.take(0, turn)
        world.beat(b0=(turn, 10, 1, 1))
    world.beat(b0=(1, 10, 1, 1))
    assert [e.rowless for e in world.past._untold.values()] == [0], "it left long ago"


def test_the_words_name_a_bucket_its_turns_and_the_sum_of_what_is_missing() -> None:
    found = [Setback(0, "w", 3, 9, 4, 20), Setback(1000, "v", 7, 8, 2, 1500)]
    said = setbacks_text(found)
    assert "in 2 buckets" in said and "from turn 8 to 2)" in said
    assert (
        "at least 1,520 scheduled messages" in said and "by v at 1970-01-01T00:00:01.000Z" in said
    )
    assert setbacks_text([]) == ""


def test_messages_that_no_reading_counted_may_be_missing_too(world: World) -> None:
    world.beat(b0=(9, 10, 1, 1))
    world.beat(b0=(5, 10, 1, 1))  # 570 were accepted meanwhile, and lost with their turns
    (alarm,) = world.alarms()
    assert alarm.missing == 0
    assert "at least 0 scheduled messages are missing" in alarm.reason
    assert "up to a second of accepted messages is not counted" in alarm.reason


async def test_a_worker_does_not_begin_while_it_cannot_read_whether_there_is_an_alarm() -> None:
    class Store:
        answer: Any = StoreUnavailable("redis: no answer")

        async def run_each(self, commands: Any) -> list[Any]:
            return [self.answer]

    store: Any = Store()
    with pytest.raises(StoreUnavailable):
        await refuse_wiped(store, "ns")
    store.answer = [Setback(1000, "w")]
    with pytest.raises(StoreWiped, match="alarm clear"):
        await refuse_wiped(store, "ns")
    store.answer = StoreError("redis: the key has a wrong type")
    await refuse_wiped(store, "ns")
