"""Which messages a bulk verb is for, and the walk that finds them, bucket by bucket."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import unquote

import msgspec

from delaybridge.accept.destination import DestinationCache
from delaybridge.errors import DecodeError, MessageError, StoreDamaged, StoreError, shown
from delaybridge.message import MAX_PRIORITY, State
from delaybridge.store.command import Each, Steps
from delaybridge.store.record import split_record
from delaybridge.store.replies import Row
from delaybridge.store.troubles import first_word
from delaybridge.store.verbs import Bucket

if TYPE_CHECKING:
    from delaybridge.store.calls import Calls

# In the direction in which messages move: one that is unparked or claimed meanwhile is still met.
PENDING = (State.PARKED, State.DELAYED, State.IN_FLIGHT)
_PAGE_MESSAGES = 500  # a script call of about 3 ms
_BY_DUE_TIME = (State.DELAYED, State.PARKED)


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """Messages in these states that fit every field given.

    exchange: `BROKER:EXCHANGE` or the exchange alone, whatever the routing key; of other brokers
    topic, stream or queue. reason: why it is dead, or how it failed last, by its first word:
    `unroutable`, `ingress:bad_time`, or `ingress` of all those. The span includes both its ends.
    """

    states: tuple[State, ...] = PENDING
    destination: str | None = None
    exchange: str | None = None
    reason: str | None = None
    id_prefix: str = ""
    due_from_ms: int | None = None
    due_to_ms: int | None = None


class Selected(NamedTuple):
    """A message that a selection found, and where."""

    id: str
    bucket: int
    state: State


class Walk:
    """Finds every message of a selection once, also those that a verb moves on meanwhile.

    A message is judged by what it was when its page was read. Remembers the ids that were found in
    one bucket at a time. What cannot be read is left out; StoreDamaged says so once all else was.
    """

    def __init__(self, calls: Calls, selection: Selection) -> None:
        _check(selection)
        self._calls, self._selection = calls, selection
        self._destinations = DestinationCache()
        self._wanted = self._written(selection.destination)
        self._places: deque[tuple[Bucket, State]] | None = None
        self._after: tuple[float, str] | None = None
        self._seen: set[str] = set()
        self._damage: StoreDamaged | None = None

    def page(self) -> Steps[list[Selected] | None]:
        """The next ones, perhaps none of a page; None: that was all."""
        if self._places is None:
            buckets = yield from self._calls.open()
            states = self._selection.states
            self._places = deque((bucket, state) for bucket in buckets for state in states)
        if not self._places:
            if self._damage is not None:
                raise self._damage
            return None
        bucket, state = self._places[0]
        span_ms = (self._selection.due_from_ms, self._selection.due_to_ms)
        low, high = span_scores(state, span_ms)
        (reply,) = yield Each(
            [bucket.page(state, limit=_PAGE_MESSAGES, after=self._after, low=low, high=high)]
        )
        if isinstance(reply, StoreError):
            error = yield from self._calls.explained(bucket, reply)
            if not isinstance(error, StoreDamaged):
                raise error
            self._damage = self._damage or error
            reply = [], False
        rows, more = reply
        ids = [row.id for row in rows if row.id not in self._seen and self._fits(row)]
        self._seen.update(ids)
        self._advance(rows if more else [])
        return [Selected(id, bucket.number, state) for id in ids]

    def _advance(self, rows: list[Row]) -> None:
        """To the next page; after the last one to the next state or bucket."""
        assert self._places is not None
        after = (rows[-1].score, rows[-1].id) if rows else None
        if after is not None and after != self._after:
            self._after = after
            return
        left, _ = self._places.popleft()
        self._after = None
        if not self._places or self._places[0][0] is not left:
            self._seen.clear()

    def _fits(self, row: Row) -> bool:
        wanted = self._selection
        if not row.id.startswith(wanted.id_prefix):
            return False
        if wanted.reason is not None:
            word = first_word(row.reason)
            if not f"{word}:".startswith(f"{wanted.reason}:"):
                return False
        try:
            score, payload = split_record(row.record)
            due_ms = int(score)
            destination = self._destination(payload)
        except DecodeError:  # nobody can say where it was to go; due when it stands in its set
            due_ms, destination = row.score_ms, None
        if not within(due_ms, (wanted.due_from_ms, wanted.due_to_ms)):
            return False
        if wanted.destination is not None and destination != self._wanted:
            return False
        return wanted.exchange is None or self._goes_through(wanted.exchange, destination)

    def _destination(self, payload: bytes) -> str | None:
        wanted = self._selection
        if wanted.destination is None and wanted.exchange is None:
            return None  # reading the record is half of a walk's work
        return _addressed(payload).destination

    def _written(self, destination: str | None) -> str | None:
        """A destination as messages have it, however it was quoted."""
        try:
            return destination and self._destinations.parse(destination, self._calls.kinds)[1]
        except MessageError:  # of a broker that this client does not know
            return destination

    def _goes_through(self, exchange: str, destination: str | None) -> bool:
        if destination is None:
            return False
        try:
            parsed, _ = self._destinations.parse(destination, self._calls.kinds)
        except MessageError:  # of a broker that this client does not know: taken for a RabbitMQ
            label = destination.partition("/")[0]
            return exchange in (label, unquote(label.partition(":")[2]))
        address = parsed.address
        return exchange in (address, parsed.label, f"{parsed.broker}:{address}")


def _check(selection: Selection) -> None:
    """MessageError for what no selection is; before anything is asked."""
    if not isinstance(selection.states, tuple) or any(
        each not in [*State] for each in selection.states
    ):
        raise MessageError("bad_state", "states", f"got {shown(selection.states)}; see State")
    texts = (selection.destination, selection.exchange, selection.reason, selection.id_prefix)
    if not all(isinstance(text, str | None) for text in texts):
        raise MessageError("bad_selection", "selection", "its fields are text; see Selection")
    for due_ms in (selection.due_from_ms, selection.due_to_ms):
        if due_ms is not None and not (isinstance(due_ms, int | float) and abs(due_ms) < 2**63):
            raise MessageError("bad_time", "due", f"got {shown(due_ms)}; give epoch ms")


class _Addressed(msgspec.Struct, array_like=True, gc=False):
    """The beginning of a `Record`; the rest is not read."""

    destination: str


_decode = msgspec.msgpack.Decoder(_Addressed).decode


def _addressed(payload: bytes) -> _Addressed:
    try:
        return _decode(payload)
    except (msgspec.MsgspecError, UnicodeDecodeError) as exc:
        raise DecodeError("undecodable", "record", str(exc)) from None


def span_scores(
    state: State, span_ms: tuple[int | None, int | None]
) -> tuple[float | None, float | None]:
    """Score bounds for a span of due times; only what is ordered by due time has them."""
    if state not in _BY_DUE_TIME:
        return None, None
    low, high = span_ms
    return low, None if high is None else high + MAX_PRIORITY / 256


def within(due_ms: int, span_ms: tuple[int | None, int | None]) -> bool:
    """Whether a due time lies in the span."""
    low, high = span_ms
    return (low is None or due_ms >= low) and (high is None or due_ms <= high)
