"""Which messages a bulk verb acts on, and the walk that finds them, bucket by bucket."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple
from urllib.parse import unquote

import msgspec

from delaybridge.errors import DecodeError, MessageError, StoreDamaged, StoreError, quoted
from delaybridge.message import MAX_PRIORITY, State
from delaybridge.store.messages.destinations_of_state import BoundSlice, bound
from delaybridge.store.messages.record_filters import Conditions
from delaybridge.store.namespace.namespace import Namespace
from delaybridge.store.namespace.rules import covers, label_of, place_of, places_of
from delaybridge.store.protocol.bucket import Bucket
from delaybridge.store.protocol.record import due_score, first_word, split_record
from delaybridge.store.protocol.recorder import Recorder
from delaybridge.store.protocol.replies import Row
from delaybridge.store.protocol.stored import stored
from delaybridge.store.protocol.verbs import Each, LedgerSteps, RedisCommand, Steps, plain

# In the direction in which messages move: one that is unparked or claimed meanwhile is found later.
PENDING = (State.PARKED, State.DELAYED, State.IN_FLIGHT)
PAGE_MESSAGES = 500  # a script call of about 3 ms
_KNOWN = 10_000  # destinations that are remembered
_BY_DUE_TIME = (State.DELAYED, State.PARKED)
_BY_RECORD = (State.DELAYED, State.DEAD)  # those that the ledger tells apart
_LANDED: Literal["landed"] = "landed"  # what is on its way to a bucket comes first
_SWEPT: Literal["swept"] = "swept"
# How a bucket is looked at; None: what Redis lost.
_Look = State | Literal["landed", "swept"] | None
_Place = tuple[Bucket, _Look, int]  # the last: which family of the layout


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """Messages in these states that fit every field given.

    destination, place: a broker, an exchange or topic with all that is below it, or one whole
    destination. exchange: `BROKER:EXCHANGE` or the exchange alone, with any routing key; for other
    brokers the topic, stream or queue. reason: the first word of why it is dead or how its last
    publish failed: `unroutable`, `ingress:bad_time`, or `ingress` for everything that ingest
    quarantined. id_prefix: how the id begins. due_from_ms, due_to_ms: the earliest and the latest
    due time, in epoch milliseconds, both included. header: `name=value`, or `name` for any value.
    attempts: at least this many have failed. is_whole: what is there throughout is found, wherever
    it moves meanwhile, at the price of one more look at each bucket.
    """

    states: tuple[State, ...] = PENDING
    destination: str | None = None
    exchange: str | None = None
    reason: str | None = None
    id_prefix: str = ""
    place: str | None = None
    due_from_ms: int | None = None
    due_to_ms: int | None = None
    header: str | None = None
    attempts: int = 0
    is_whole: bool = False


class Selected(NamedTuple):
    """A message that a selection found, its bucket and state.

    due_ms: when it was due, in epoch milliseconds; None unless it was delayed or parked. version:
    score and stamp in its head: it is cancelled only if it still has these; empty: anyhow.
    """

    id: str
    bucket: int
    state: State
    due_ms: int | None = None
    version: bytes = b""


class Walk:
    """Finds every message of a selection once, also those that a verb moves on meanwhile.

    A message is judged by its state when its page was read. The ids found in the present bucket are
    remembered, and in all that give their messages to the same ones, if there is a resize.
    """

    def __init__(
        self, namespace: Namespace, selection: Selection, recorder: Recorder | None = None
    ) -> None:
        """recorder: of the store, if it has one: what Redis lost is found, too."""
        _check(selection)
        self._namespace, self._selection, self._recorder = namespace, selection, recorder
        self._span_ms = (selection.due_from_ms, selection.due_to_ms)
        self._conditions = Conditions(header=selection.header, attempts=selection.attempts)
        self._is_brief = (
            selection.reason is None
            and self._span_ms == (None, None)
            and not self._conditions.are_any
        )
        self._bound: dict[str, bool] = {}  # destination -> whether it fits
        given = (selection.destination, selection.place)
        self._wanted = [place_of(each, namespace.kinds) for each in given if each is not None]
        self._places: deque[_Place] | None = None
        self._after: tuple[Any, Any] | None = None
        self._seen: set[str] = set()
        self._damage: StoreDamaged | None = None

    def page(self) -> LedgerSteps[list[Selected] | None]:
        """The messages found on the next page, which may be none; None after the last page.

        StoreDamaged after the last page if a part of a bucket could not be read.
        """
        if self._places is None:
            self._places = yield from self._all_places()
        if not self._places:
            if self._damage is not None:
                raise self._damage
            return None
        bucket, state, _ = self._places[0]
        if state == _LANDED:
            return (yield from self._land(bucket))
        if state is None:
            return (yield from self._lost_page(bucket))
        if state == _SWEPT:
            return (yield from self._swept_page(bucket))
        (reply,) = yield Each([self._command(bucket, state)])
        if isinstance(reply, StoreError):
            yield from self._damaged(bucket, reply)
            reply = BoundSlice([], more=False)
        found, after = self._found(reply)
        found = [(id, score) for id, score in found if id not in self._seen]
        self._seen.update(id for id, _ in found)
        self._advance(after)
        is_timed = state in _BY_DUE_TIME
        return [
            Selected(id, bucket.number, state, int(due_score(score)) if is_timed else None)
            for id, score in found
        ]

    def _all_places(self) -> Steps[deque[_Place]]:
        found = {each.number: each for each in (yield from self._namespace.every_bucket())}
        looks: list[_Look] = [_LANDED, *self._selection.states]
        looks += [_SWEPT] if self._selection.is_whole else []
        layout = self._namespace.following.layout
        families = [] if layout is None else layout.families
        each = ((found[n], at) for at, family in enumerate(families) for n in family if n in found)
        return deque((b, look, at) for b, at in each for look in [*looks, *self._lost()])

    def _land(self, bucket: Bucket) -> Steps[list[Selected]]:
        """Land what is on its way to a bucket: it left others after these were walked."""
        following = self._namespace.following
        for n in following.layout.sources(bucket.number) if following.layout else ():
            if not following.is_retired(n):
                yield from following.land_page(self._namespace.bucket(n))
        self._advance(None)
        return []

    def _lost(self) -> list[None]:
        is_any = self._recorder is not None and {*_BY_RECORD} & {*self._selection.states}
        return [None] if is_any else []

    def _lost_page(self, bucket: Bucket) -> LedgerSteps[list[Selected]]:
        assert self._recorder is not None
        first_ms, last_ms = self._span_ms
        after = self._after or (int(first_ms or 0), -1)
        try:
            found = yield from self._recorder.lost(bucket, after, next(iter(self._wanted), None))
        except StoreError as exc:
            yield from self._damaged(bucket, exc)
            self._advance(None)
            return []
        rows = [
            row
            for row in found.messages
            if row.state in self._selection.states and row.id not in self._seen and self._fits(row)
        ]
        self._seen.update(row.id for row in rows)
        is_past = found.after is not None and last_ms is not None and found.after[0] > last_ms
        self._advance(None if is_past else found.after)
        due = [int(row.score) if row.state is State.DELAYED else None for row in rows]
        each = zip(rows, due, strict=True)
        return [Selected(row.id, bucket.number, row.state, due_ms) for row, due_ms in each]

    def _swept_page(self, bucket: Bucket) -> Steps[list[Selected]]:
        """What was not found yet among all records of a bucket; HSCAN misses no lasting one."""
        at = 0 if self._after is None else self._after[0]
        scan: RedisCommand[Any] = plain("HSCAN", bucket.key("messages"), at, "COUNT", PAGE_MESSAGES)
        (reply,) = yield Each([scan])
        if isinstance(reply, StoreError):
            yield from self._damaged(bucket, reply)
            self._advance(None)
            return []
        ids = [id.decode(errors="replace") for id in reply[1][::2]]
        found = yield [bucket.get(id) for id in ids if id not in self._seen]
        rows = [row for row in found if row and row.state in self._selection.states]
        rows = [row for row in rows if self._fits(row)]
        self._seen.update(row.id for row in rows)
        self._advance((int(reply[0]), None) if int(reply[0]) else None)
        return [Selected(row.id, bucket.number, row.state) for row in rows]

    def _command(self, bucket: Bucket, state: State) -> RedisCommand[Any]:
        """Reads a page: records only if more than the destination must be known."""
        if self._is_brief:
            return bound(bucket, state, limit=PAGE_MESSAGES, after=self._after)
        low, high = span_scores(state, self._span_ms)
        needles = self._conditions.needles
        return bucket.page(
            state, limit=PAGE_MESSAGES, after=self._after, low=low, high=high, needles=needles
        )

    def _damaged(self, bucket: Bucket, refused: StoreError) -> Steps[None]:
        if self._namespace.following.is_retired(bucket.number):
            return  # its messages are in later buckets of its family
        error = yield from self._namespace.explained(bucket, refused)
        if not isinstance(error, StoreDamaged):
            raise error
        self._damage = self._damage or error

    def _found(
        self, page: BoundSlice | tuple[list[Row], bool]
    ) -> tuple[list[tuple[str, float]], tuple[float, str | bytes] | None]:
        """The ids that fit with their scores, and what the next page begins after."""
        if isinstance(page, BoundSlice):
            bound_for = page.messages
            fitting = ((id.decode(errors="replace"), score) for score, id, to in bound_for
                       if self._is_bound(to))  # fmt: skip
            found = [each for each in fitting if each[0].startswith(self._selection.id_prefix)]
            return found, bound_for[-1][:2] if page.more else None
        rows, more = page
        found = [(row.id, row.score) for row in rows if self._fits(row)]
        return found, (rows[-1].score, rows[-1].id) if more else None

    def _advance(self, after: tuple[Any, Any] | None) -> None:
        """To the next page; after the last one to the next state or bucket."""
        assert self._places is not None
        if after is not None and after != self._after:
            self._after = after
            return
        *_, family = self._places.popleft()
        self._after = None
        if not self._places or self._places[0][-1] != family:
            self._seen.clear()

    def _fits(self, row: Row) -> bool:
        wanted = self._selection
        if not row.id.startswith(wanted.id_prefix):
            return False
        if self._conditions.are_any and not self._conditions.fit(stored(row, 0), {}):
            return False
        if wanted.reason is not None:
            word = first_word(row.reason)
            if not f"{word}:".startswith(f"{wanted.reason}:"):
                return False
        try:
            score, payload = split_record(row.record)
            due_ms = int(score)
            destination = self._destination(payload)
        except DecodeError:  # destination unknown; its set's score still tells when it is due
            due_ms, destination = row.score_ms, None
        return within(due_ms, self._span_ms) and self._is_bound(destination)

    def _is_bound(self, destination: str | None) -> bool:
        """Whether a destination fits; empty or None: it is unknown."""
        found = self._bound.get(destination or "")
        if found is None:
            if len(self._bound) >= _KNOWN:
                self._bound.clear()
            found = self._bound[destination or ""] = self._suits(destination or None)
        return found

    def _suits(self, destination: str | None) -> bool:
        exchange, kinds = self._selection.exchange, self._namespace.kinds
        if not all(covers(place, destination or "", kinds) for place in self._wanted):
            return False
        return exchange is None or self._goes_through(exchange.removesuffix("/*"), destination)

    def _destination(self, payload: bytes) -> str | None:
        if not self._wanted and self._selection.exchange is None:
            return None  # not needed, and reading the record is half of a walk's work
        return _addressed(payload).destination

    def _goes_through(self, exchange: str, destination: str | None) -> bool:
        label = label_of(places_of(destination or "", self._namespace.kinds))
        broker, colon, address = label.partition(":")
        names = {""} if address[:1] == "/" else {address, unquote(address)}
        return colon != "" and exchange in {label, *names, *(f"{broker}:{each}" for each in names)}


def _check(selection: Selection) -> None:
    """MessageError if a field has a wrong type or value."""
    if not isinstance(selection.states, tuple) or any(
        each not in [*State] for each in selection.states
    ):
        raise MessageError("bad_state", "states", f"got {quoted(selection.states)}; see State")
    texts: tuple[object, ...] = (selection.destination, selection.exchange, selection.place)
    texts += (selection.reason, selection.id_prefix)
    if not all(isinstance(text, str | None) for text in texts):
        raise MessageError("bad_selection", "selection", "its fields are text; see Selection")
    Conditions(header=selection.header, attempts=selection.attempts)
    for due_ms in (selection.due_from_ms, selection.due_to_ms):
        if due_ms is not None and not (isinstance(due_ms, int | float) and abs(due_ms) < 2**63):
            raise MessageError("bad_time", "due", f"got {quoted(due_ms)}; give epoch ms")


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
    """The scores of a span of due times; None, None for a state not ordered by due time.

    Parked ones have no upper bound: orphans follow all others, whenever they were due.
    """
    if state not in _BY_DUE_TIME:
        return None, None
    low, high = span_ms
    if high is None or state is State.PARKED:
        return low, None
    return low, high + MAX_PRIORITY / 256


def within(due_ms: int, span_ms: tuple[int | None, int | None]) -> bool:
    """Whether a due time is in the span, ends included."""
    low, high = span_ms
    return (low is None or due_ms >= low) and (high is None or due_ms <= high)
