"""Records on their way into the store, and what becomes of them once it has answered."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from enum import Enum, auto

import msgspec

from delaybridge.ingest.entries import Change, Entry, Quarantine, Schedule, instead
from delaybridge.ingest.kafka.offsets import Reached
from delaybridge.ingest.kafka.records import RawRecord, RecordReader
from delaybridge.ingest.kafka.topics import Topic
from delaybridge.ingest.storing import PATIENCE_S
from delaybridge.message import Answer


class Fate(Enum):
    """The next step for a record after an answer. REFUSED: its entry is now a quarantine."""

    STORED = auto()
    AGAIN = auto()
    WAIT = auto()
    REFUSED = auto()


class HeldRecord(msgspec.Struct, gc=False):
    """One record on its way into the store.

    since_s: when its id was first found in flight. is_lost: its partition was given up.
    """

    reader: RecordReader
    entry: Entry
    topic: Topic
    raw: RawRecord
    since_s: float = 0.0
    is_lost: bool = False

    @property
    def place(self) -> Reached:
        """Its topic and partition, and its offset."""
        return self.topic, self.raw.partition, self.raw.offset

    @property
    def size(self) -> int:
        """Bytes of its key and body."""
        return len(self.raw.key or b"") + len(self.raw.value or b"")

    @property
    def origin(self) -> tuple[Topic, int]:
        """The topic and the partition that it was read from."""
        return self.topic, self.raw.partition

    @property
    def blocks(self) -> bool:
        """Whether nothing of its partition may be stored before it.

        Once another bucket has read a later offset, it would skip a change that asks all; and a
        refused record is skipped by the bucket that refused it.
        """
        return not isinstance(self.entry, Schedule) and (
            isinstance(self.entry, Quarantine) or self.entry.shard_key is None
        )


def fate_of(record: HeldRecord, answer: Answer | None, now_s: float) -> Fate:
    """The fate of a record after an answer. A tombstone with nothing to cancel is a message."""
    entry = record.entry
    if isinstance(entry, Change):
        if entry.otherwise and answer in (Answer.UNKNOWN, Answer.FOREIGN):
            record.entry = entry.otherwise
            return Fate.AGAIN
    elif answer is Answer.IN_FLIGHT and _is_patient(record, now_s):
        return Fate.WAIT
    elif (kept := instead(entry, answer)) is not None:
        record.entry = kept
        return Fate.REFUSED
    return Fate.AGAIN if answer is None else Fate.STORED


def _is_patient(record: HeldRecord, now_s: float) -> bool:
    record.since_s = record.since_s or now_s
    return now_s - record.since_s < PATIENCE_S


def parts(records: Sequence[HeldRecord], *, again: bool = False) -> Iterator[list[HeldRecord]]:
    """Cut where changes and schedules meet: each waits for the answers to those before it.

    A cancel that may turn into a schedule is a part by itself, or later ones would overtake it. So
    is, again, what blocks.
    """

    def kind(place_and_record: tuple[int, HeldRecord]) -> int:
        place, record = place_and_record
        if again and record.blocks:
            return place
        if isinstance(record.entry, Change):
            return -1 if record.entry.otherwise is None else place
        return -2

    if not again and Change not in {type(record.entry) for record in records}:
        if records:  # the usual case
            yield [*records]
        return
    for _, part in itertools.groupby(enumerate(records), key=kind):
        yield [record for _, record in part]
