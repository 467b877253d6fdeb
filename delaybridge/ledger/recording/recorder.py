"""The recorder: what a store does with commands that change messages, where there is a ledger."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

from delaybridge.errors import ConfigError, StoreError, quoted
from delaybridge.ledger.comparing.along import regrouped
from delaybridge.ledger.comparing.lost import lost
from delaybridge.ledger.comparing.older_ledger import read_past
from delaybridge.ledger.recording.absent import Absent
from delaybridge.ledger.recording.cold_reads import ColdCounts, ColdReads, reads_cold
from delaybridge.ledger.recording.noting import Noting, is_noted
from delaybridge.ledger.recording.recording import Recording, is_recorded, stores
from delaybridge.ledger.sql.opening import open_ledger
from delaybridge.settings.durability import check_hot_window
from delaybridge.settings.urls import check_ledger_url
from delaybridge.store.namespace.following import BucketsFollowed
from delaybridge.store.protocol import keys
from delaybridge.store.protocol.bucket import Bucket
from delaybridge.store.protocol.recorder import Ledger, LostSlice, Recorder
from delaybridge.store.protocol.verbs import LedgerSteps, RedisCommand, Work

Asked = Work[Any] | Sequence[RedisCommand[Any]]
Steps = LedgerSteps[None]
"""Yields work for the ledger, whose error is thrown into it, and commands for Redis; is sent the
result, or the answers, errors among them."""

_BY_ID = ("cancel", "reschedule")
_RELAYOUT = "relayout"


class LedgerRecorder:
    """Records the commands of one namespace."""

    def __init__(self, ledger: Ledger, namespace: str, hot_window_ms: int) -> None:
        """hot_window_ms: messages due later stay in the ledger alone; 0: none do."""
        from delaybridge.ledger.sql.cold import ColdRecords  # imports SQLAlchemy
        from delaybridge.ledger.sql.controls import ControlRecords
        from delaybridge.ledger.sql.counts import ColdTotals
        from delaybridge.ledger.sql.records import Records

        self.ledger, self.hot_window_ms = ledger, hot_window_ms
        self.records = Records(namespace)
        self.cold, self.controls = ColdRecords(self.records), ControlRecords(namespace)
        self.totals = ColdTotals(self.cold)
        self._counts, self._birth = ColdCounts(), keys.birth(namespace)

    def follow(self, following: BucketsFollowed) -> None:
        """Messages may move to other buckets."""
        self.records.numbers.following = following

    def retiring(self, bucket: Bucket) -> LedgerSteps[None]:
        """Have rows of a bucket that gave everything away counted to those that have it.

        Not as long as some are live in a database with an older past alone: its owner ends them.
        """
        (past,) = yield [read_past(self.records.namespace, bucket.number)]
        if past.back_ms > past.ended_ms:
            raise StoreError("ledger: it came back with an older past, which is compared first")
        yield from regrouped(self.records, [bucket.number])

    def concerns(self, commands: Sequence[RedisCommand[Any]]) -> bool:
        """Whether the ledger is to know of any of these commands, or has a part in its answer."""
        of_messages = any(self._is_recorded(each) or reads_cold(each) for each in commands)
        return of_messages or any(map(is_noted, commands))

    def _is_recorded(self, command: RedisCommand[Any]) -> bool:
        if command.is_plain:
            return self._creates(command)
        return command.name == _RELAYOUT or is_recorded(command)

    def _creates(self, command: RedisCommand[Any]) -> bool:
        """Whether it makes the namespace, unless there is one."""
        args = command.args
        return command.name == "SET" and args[0] == self._birth and args[-1] == "NX"

    def record(
        self, commands: Sequence[RedisCommand[Any]], node_of: Callable[[str], str]
    ) -> RecordedSteps:
        """Run these commands, and have the ledger know of them.

        node_of: the server of a key, as a store says it.
        """
        reads = ColdReads(self.cold, self.totals, self._counts, commands)
        recording = Recording(self.cold, self.controls, self.hot_window_ms, reads.commands)
        return RecordedSteps(recording.answers, self._record(reads, recording, node_of))

    def lost(
        self, bucket: Bucket, after: tuple[int, int], to: str | None = None
    ) -> LedgerSteps[LostSlice]:
        """Messages of a bucket that Redis lacks, by due time and call, after these two."""
        return lost(bucket, self.records, after, to)

    def _record(
        self, reads: ColdReads, recording: Recording, node_of: Callable[[str], str]
    ) -> Steps:
        yield from reads.read_ledger()
        asked = reads.commands
        places = [i for i, command in enumerate(asked) if self._is_recorded(command)]
        noting, absent = Noting(self.controls, asked), Absent(recording)
        layouts = [i for i in places if asked[i].is_plain or asked[i].name == _RELAYOUT]
        if layouts:
            yield from recording.settle_namespaces(layouts)
            places = [i for i in places if i not in layouts]
        if places:
            yield from recording.read_clocks(places, node_of)
            yield from recording.add_rows([i for i in places if stores(asked[i])])
            yield from absent.promote_first([i for i in places if asked[i].name in _BY_ID])
        yield from recording.run(range(len(asked)))
        yield from absent.take_answers(places)
        yield from noting.record()
        yield from reads.find(recording.answers)


def recorder_of(
    url: str | None, namespace: str, timeout_s: float, hot_window_s: float
) -> LedgerRecorder:
    """The recorder of a store, as `store.protocol.recorder.open_recorder` opens it.

    url, hot_window_s: as in the settings. ConfigError: there is no URL, or no driver for it, or the
    window is out of range.
    """
    try:
        checked = check_ledger_url(str.__str__(url or ""))
    except ValueError as exc:
        raise ConfigError(f"ledger: {exc}") from None
    if not checked:
        raise ConfigError("durability: ledger needs the URL of a database: ledger.url")
    try:
        check_hot_window(hot_window_s)
    except ValueError as exc:
        raise ConfigError(f"hot_window_s: got {quoted(hot_window_s)}; give {exc}") from None
    ledger = open_ledger(checked, timeout_s=timeout_s)
    return LedgerRecorder(ledger, namespace, round(hot_window_s * 1000))


def recorder_in(recorder: Recorder | None) -> LedgerRecorder | None:
    """The recorder of a store, with all that a worker's ledger side needs of it."""
    assert recorder is None or isinstance(recorder, LedgerRecorder)
    return recorder


class RecordedSteps:
    """Commands that are being recorded, as `store.protocol.recorder.Recorded` says."""

    def __init__(self, answers: list[Any], steps: Steps) -> None:
        self.answers, self._steps = answers, steps
        self.asked: Asked | None = next(steps, None)

    def take_result(self, result: Any) -> None:
        """The result of what was asked."""
        self.asked = None
        with suppress(StopIteration):
            self.asked = self._steps.send(result)

    def fail(self, error: Exception) -> None:
        """The ledger could not do what was asked."""
        self.asked = None
        with suppress(StopIteration):
            self.asked = self._steps.throw(error)

    def result(self) -> list[Any]:
        """The answers; raises the first error."""
        for answer in self.answers:
            if isinstance(answer, Exception):
                raise answer
        return self.answers
