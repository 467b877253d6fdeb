"""The sampler: what it sends, again if there was no answer, and what it gives up."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import msgspec

from delaybridge.errors import StoreDamaged, StoreError, StoreUnavailable
from delaybridge.events import Published, Retried
from delaybridge.operate.metrics.counts import Counts
from delaybridge.operate.parts.sampler import Sampler
from delaybridge.store.namespace.marks import Marks
from delaybridge.store.protocol.bucket import Bucket
from delaybridge.worker.parts import RunView

SILENT = StoreUnavailable("redis: no answer")
NO_MARKS = (0, 0, 0)
NONE = [0, 0, 0, 0]


class Rig:
    """A sampler on a clock that stands still."""

    def __init__(self, *buckets: int) -> None:
        self.now_s = 100.0
        self.counts = Counts()
        self.sampler = Sampler("ns", "w", "i", self.counts, monotonic=lambda: self.now_s)
        self.buckets = [Bucket("ns", number, "birth") for number in buckets]
        self.marks: dict[int, Marks] = {}
        past: Any = SimpleNamespace(marks=self.marks)
        nothing: Any = None
        self.sampler.begin(
            RunView(nothing, nothing, past, tuple, lambda: self.buckets, nothing, nothing, nothing)
        )
        self.sizes: list[Any] = NONE  # of each bucket: delayed, in flight, parked, dead

    def happen(self, event: Any) -> None:
        self.counts(event)
        self.sampler(event)

    def published(self, messages: int, late_ms: int = 3) -> None:
        lateness = {2: messages}
        self.happen(
            Published(destination="kafka:t", messages=messages, late_ms=late_ms, lateness=lateness)
        )

    def beat(self, reply: Any = True, *marks: Any) -> tuple[int, list[Any]]:
        """One beat: the number and the content of the sample that was sent."""
        record, *sizes = self.sampler.commands()
        sized = len(sizes) // len(NONE)
        assert 0 <= sized <= 64
        given = zip(self.buckets, marks or [NO_MARKS] * len(self.buckets), strict=True)
        self.marks.clear()
        self.marks |= {b.number: Marks(7, *each) for b, each in given if each is not None}
        self.sampler.take_replies([reply, *self.sizes * sized])
        number, sample = record.args[3], record.args[4]
        assert isinstance(number, int)
        return number, msgspec.msgpack.decode(sample)  # type: ignore[arg-type]


def test_a_sample_holds_what_happened_since_the_last() -> None:
    rig = Rig()
    rig.published(5, late_ms=70)
    rig.happen(Retried(destination="kafka:t", messages=2, reason="refused: x"))
    counts = {"published": 5, "late_2": 5, "retried": 2}
    assert rig.beat() == (1, [counts, {"kafka:t": {"published": 5, "retried": 2}}, 70, []])
    rig.published(1)
    assert rig.beat() == (2, [{"published": 1, "late_2": 1}, {"kafka:t": {"published": 1}}, 3, []])
    assert rig.beat() == (3, [{}, {}, 0, []])


def test_without_an_answer_the_same_sample_is_sent_again() -> None:
    rig = Rig()
    rig.published(5)
    first = rig.beat(SILENT)
    rig.published(7)
    assert rig.beat(StoreError("redis: full")) == first
    assert rig.beat() == first
    number, (counts, *_) = rig.beat()
    assert (number, counts["published"]) == (2, 7)


def test_what_was_not_recorded_for_a_minute_is_left_out() -> None:
    rig = Rig()
    rig.published(5)
    rig.beat(SILENT)
    rig.now_s += 61
    rig.published(7)
    assert rig.beat() == (2, [{}, {}, 0, []])
    rig.published(1)
    assert rig.beat()[1][0]["published"] == 1


def test_totals_of_buckets_are_told_when_they_change_and_now_and_then() -> None:
    rig = Rig(3, 4)
    assert rig.beat(True, (10, 0, 0), (5, 1, 0))[1][3] == []  # read with this beat
    assert rig.beat(True, (10, 0, 0), (6, 1, 0))[1][3] == [3, 10, 0, 0, *NONE, 4, 5, 1, 0, *NONE]
    assert rig.beat(True, (10, 0, 0), (6, 1, 0))[1][3] == [4, 6, 1, 0, *NONE]
    assert rig.beat(True, (10, 0, 0), (6, 1, 0))[1][3] == []
    rig.now_s += 21
    assert rig.beat()[1][3] == [3, 10, 0, 0, *NONE, 4, 6, 1, 0, *NONE]


def test_how_many_messages_are_in_each_state_is_told_with_them() -> None:
    rig = Rig(3)
    rig.sizes = [9, 2, StoreDamaged("redis: WRONGTYPE"), 1]  # a damaged key counts as empty
    rig.beat(True, (10, 0, 0))
    rig.sizes = [8, 3, 0, 1]
    assert rig.beat(True, (10, 0, 0))[1][3] == [3, 10, 0, 0, 9, 2, 0, 1]
    rig.sizes = [SILENT] * 4  # not known is not none
    assert rig.beat(True, (11, 0, 0))[1][3] == [3, 10, 0, 0, 8, 3, 0, 1]
    assert rig.beat()[1][3] == [3, 11, 0, 0, 8, 3, 0, 1]


def test_messages_are_counted_where_something_may_have_changed_and_in_one_bucket_more() -> None:
    rig = Rig(3, 4, 5)
    counted = lambda: [c.args[0] for c in rig.sampler.commands()[1::4]]  # noqa: E731
    of = lambda *numbers: [f"{{ns:{n}}}:due" for n in numbers]  # noqa: E731
    assert counted() == of(3, 4, 5)  # none is known
    rig.beat()
    assert [rig.beat() and counted() for _ in range(4)] == [of(4), of(5), of(3), of(4)]
    rig.beat(True, (0, 0, 0), (0, 0, 0), (1, 0, 0))
    assert counted() == of(5)  # a message was scheduled; and it was its turn
    rig.sizes = [0, 1, 0, 0]
    rig.beat(True, (0, 0, 0), (0, 0, 0), (1, 0, 0))
    assert counted() == of(3, 5)  # one is in flight


def test_a_bucket_whose_marks_cannot_be_read_is_left_out() -> None:
    rig = Rig(3, 4)
    rig.beat(True, None, (5, 1, 0))
    assert rig.beat()[1][3] == [4, 5, 1, 0, *NONE]


def test_many_buckets_are_told_in_several_samples() -> None:
    rig = Rig(*range(1200))
    told = [rig.beat()[1][3][::8] for _ in range(20)]
    assert [*map(len, told)] == [0, *[64] * 18, 48]  # as they are counted, each in its turn
    assert sorted(sum(told, [])) == [*range(1200)]
    rig.now_s += 21
    assert [len(rig.beat()[1][3][::8]) for _ in range(3)] == [500, 500, 200]
