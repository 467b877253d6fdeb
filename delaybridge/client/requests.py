"""Requests: the arguments of a client's methods, checked and turned into steps for a store.

Both clients use them. Every check comes before any I/O.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from delaybridge.accept.accept import Accepted, check_delay, check_id, check_key, when
from delaybridge.accept.draft import Draft, Drafting
from delaybridge.client.spans import ScheduleSpan, changing
from delaybridge.errors import (
    ConfigError,
    MessageConflict,
    MessageError,
    MessageInFlight,
    printable,
    shown,
)
from delaybridge.message import Answer, Message, OnConflict, State
from delaybridge.operate.views.listing import Cursor, Page, read_page
from delaybridge.store.calls import Calls
from delaybridge.store.messages.record_filters import ANY, Conditions
from delaybridge.store.messages.scheduling import Receipt
from delaybridge.store.messages.selection import Selected
from delaybridge.store.protocol.command import Steps
from delaybridge.store.protocol.stored import Stored
from delaybridge.store.redis.store import AsyncStore, Store
from delaybridge.times import At, Delay
from delaybridge.tracing import active

if TYPE_CHECKING:
    from delaybridge.settings.settings import Settings

Key = bytes | str | None
Named = str | Selected  # a message by its id, or as `select` found it
Span = tuple[int | None, int | None]  # the first and the last due time
Spread = Sequence[int] | None  # milliseconds for each message

_MAX_PAGE_MESSAGES = 1000


class Requests:
    """The requests of one namespace, named as the methods of the clients.

    Each method checks its arguments and returns the steps, which a store completes. MessageError or
    ConfigError names the first argument at fault.
    """

    def __init__(self, calls: Calls) -> None:
        self.calls = calls
        self._drafting = Drafting(calls.kinds, calls.limits, calls.ids.draw)

    def accept(self, message: Message) -> Accepted:
        """The message checked and encoded, with an id."""
        if (tracing := active()) is None:
            return self._drafting.accept(message)
        with ScheduleSpan(tracing, (message,)) as span:
            return span.checked(self._drafting.accept)[0]

    def draft(self, message: Message) -> Draft | Accepted:
        """The message checked; encoded when it is sent, if it is plain."""
        return self._drafting.drafts((message,))[0]

    def schedule_one(self, message: Message, on_conflict: str) -> Steps[Receipt]:
        policy = policy_of(on_conflict)
        if (span := self.schedule_span((message,))) is not None:
            return span.around(self.calls.schedule_one(self.drafts_in(span)[0], policy))
        return self.calls.schedule_one(self.draft(message), policy)

    def schedule(self, messages: Iterable[Message], on_conflict: str) -> Steps[list[Receipt]]:
        policy = policy_of(on_conflict)
        if (span := self.schedule_span(messages)) is not None:
            return span.around(self.calls.schedule(self.drafts_in(span), policy))
        return self.calls.schedule(self._drafting.drafts(messages), policy)

    def schedule_span(self, messages: Iterable[Message]) -> ScheduleSpan | None:
        """The span of a call that schedules these messages, if the program traces."""
        return None if (tracing := active()) is None else ScheduleSpan(tracing, messages)

    def drafts_in(self, span: ScheduleSpan) -> list[Draft | Accepted]:
        """The messages of a span checked, each with its context. An error ends the span."""
        try:
            return span.checked(self.draft)
        except BaseException as exc:
            span.__exit__(None, exc)
            raise

    def cancel(self, id: str, key: Key) -> Steps[Answer]:
        steps = self.calls.cancel(self._id(id), check_key(key))
        return changing("cancel_scheduled", (id,), steps)

    def reschedule(self, id: str, delay: Delay, at: At, key: Key) -> Steps[Answer]:
        due = self._due(delay, at)
        steps = self.calls.reschedule(self._id(id), check_key(key), due)
        return changing("reschedule", (id,), steps, due)

    def get(self, id: str, key: Key) -> Steps[Stored | None]:
        return self.calls.get(self._id(id), check_key(key))

    def quarantined(self, id: str) -> Steps[list[Stored]]:
        return self.calls.quarantined(self._id(id))

    def kick(self, id: str, key: Key) -> Steps[Answer]:
        return self.calls.kick(self._id(id), check_key(key))

    def discard(self, id: str, key: Key) -> Steps[Answer]:
        return self.calls.discard(self._id(id), check_key(key))

    def page(
        self,
        state: State,
        destination: str | None,
        span_ms: Span,
        limit: int,
        cursor: Cursor | None,
        *,
        partial: bool = False,
        conditions: Conditions = ANY,
    ) -> Steps[Page]:
        if state not in [*State]:
            raise MessageError("bad_state", "state", f"got {shown(state)}; see State")
        if not isinstance(destination, str | None):
            raise MessageError("bad_destination", "destination", f"got {shown(destination)}")
        for name, due_ms in zip(("due_from_ms", "due_to_ms"), span_ms, strict=True):
            if due_ms is not None and not _is_number(due_ms):
                raise MessageError("bad_time", name, f"got {shown(due_ms)}; give epoch ms")
        if not _is_number(limit):
            what = f"got {shown(limit)}; give 1 to {_MAX_PAGE_MESSAGES}"
            raise MessageError("bad_limit", "limit", what)
        if cursor is not None and not _is_cursor(cursor):
            raise MessageError("bad_cursor", "cursor", "give the cursor of a page")
        limit = max(1, min(limit, _MAX_PAGE_MESSAGES))
        asked = State(state), destination, span_ms, limit, cursor
        return read_page(self.calls, *asked, partial, conditions)

    def cancel_many(
        self, messages: Iterable[Named], key: Key, dry: bool = False
    ) -> Steps[list[Answer]]:
        named = self._named(messages)
        if dry:
            return self.calls.cancel_many(named, check_key(key), dry=True)
        return changing("cancel_scheduled", named, self.calls.cancel_many(named, check_key(key)))

    def reschedule_many(
        self,
        messages: Iterable[Named],
        delay: Delay,
        at: At,
        spread_ms: Spread,
        key: Key,
        dry: bool = False,
    ) -> Steps[list[Answer]]:
        named = self._named(messages)
        due = self._due(delay, at)
        sign = "+" if due.startswith("+") else ""
        dues = [f"{sign}{int(due) + later_ms}" for later_ms in _spread(spread_ms, named)]
        steps = self.calls.reschedule_many(named, dues, check_key(key), dry=dry)
        return steps if dry else changing("reschedule", named, steps, due)

    def move_many(
        self, messages: Iterable[Named], by_ms: int, key: Key, dry: bool = False
    ) -> Steps[list[Answer]]:
        named = self._named(messages)
        steps = self._move(named, by_ms, check_key(key), dry)
        return steps if dry else changing("reschedule", named, steps)

    def _move(
        self, named: Sequence[Named], by_ms: int, key: bytes | None, dry: bool
    ) -> Steps[list[Answer]]:
        """Look up the due times that are not known, then move all in one pipeline."""
        found: list[Selected | Answer] = []
        for each in named:
            one = (yield from self._found(each, key)) if isinstance(each, str) else each
            found.append(_movable(one))
        moved = [one for one in found if isinstance(one, Selected)]
        dues = [str(max(0, (one.due_ms or 0) + by_ms)) for one in moved]
        if dues and by_ms > 0:
            latest_ms = max(map(int, dues))
            check_delay(latest_ms - time.time_ns() // 1_000_000, self.calls.limits, "by")
        steps = self.calls.reschedule_many([*moved], dues, None, dry=dry)
        given = iter((yield from steps) if moved else [])
        return [one if isinstance(one, Answer) else next(given) for one in found]

    def _found(self, id: str, key: bytes | None) -> Steps[Selected | None]:
        found = yield from self.calls.get(id, key)
        if found is None:
            return None
        due_ms = None if found.state is State.DEAD else found.due_ms
        return Selected(found.id, found.bucket, found.state, due_ms)

    def kick_many(
        self, messages: Iterable[Named], spread_ms: Spread, key: Key, dry: bool = False
    ) -> Steps[list[Answer]]:
        named = self._named(messages)
        return self.calls.kick_many(named, _spread(spread_ms, named), check_key(key), dry=dry)

    def discard_many(
        self, messages: Iterable[Named], key: Key, dry: bool = False
    ) -> Steps[list[Answer]]:
        return self.calls.discard_many(self._named(messages), check_key(key), dry=dry)

    def _id(self, id: str) -> str:
        return check_id(id, self.calls.limits)

    def _due(self, delay: Delay, at: At) -> str:
        return when(delay, at, self.calls.limits)

    def _named(self, messages: Iterable[Named]) -> list[Named]:
        return [self._id(one) if isinstance(one, str) else one for one in messages]


class OfClient:
    """What each part of `Client` has."""

    _requests: Requests
    _store: Store


class OfAsyncClient:
    """What each part of `AsyncClient` has."""

    _requests: Requests
    _store: AsyncStore


def receipt_unless_conflict(receipt: Receipt) -> Receipt:
    """The receipt of a call for one message; MessageConflict if its answer is `conflict`."""
    if receipt.answer is Answer.CONFLICT:
        raise MessageConflict(
            "conflict",
            "id",
            f"{receipt.id[:80]!r} is pending with other content, due at {receipt.due_ms} ms; "
            "choose another id, or on_conflict='replace'",
        )
    return receipt


def stored_receipt(receipt: Receipt) -> Receipt:
    """The receipt of a drop-in's call; MessageConflict or MessageInFlight if nothing was stored."""
    if receipt.answer is Answer.IN_FLIGHT:
        what = f"{receipt.id[:80]!r} is being delivered, and was not settled in time; call again"
        raise MessageInFlight("in_flight", "id", what)
    return receipt_unless_conflict(receipt)


def policy_of(on_conflict: str) -> OnConflict:
    """The conflict policy; ConfigError if the text is not one."""
    if isinstance(on_conflict, OnConflict):  # nearly always, and an enum's call is slow
        return on_conflict
    if on_conflict in [*OnConflict]:
        return OnConflict(on_conflict)
    raise ConfigError(
        f"on_conflict: {printable(shown(on_conflict))} is not known; "
        f"use one of {', '.join(OnConflict)}"
    )


def arguments_of(settings: Settings | None) -> dict[str, Any]:
    """The arguments of a client's constructor, from these settings or the ones in force."""
    from delaybridge.settings.settings import Settings

    chosen = settings or Settings.load()
    return {
        "redis_url": chosen.redis.url,
        "namespace": chosen.namespace,
        "brokers": dict(chosen.brokers) or None,
        "buckets": chosen.buckets,
        "limits": chosen.limits.as_limits(),
        "timeout_s": chosen.redis.timeout_s,
        "durability": chosen.durability,
        "ledger": chosen.ledger.url,
        "hot_window_s": chosen.ledger.hot_window_s,
    }


def _spread(spread_ms: Spread, messages: Sequence[Named]) -> Sequence[int]:
    if spread_ms is None:
        return [0] * len(messages)
    if len(spread_ms) != len(messages):
        what = f"got {len(spread_ms)} for {len(messages)} messages; give one for each"
        raise MessageError("bad_time", "spread_ms", what)
    return spread_ms


def _movable(one: Selected | None) -> Selected | Answer:
    """The message if its due time is known; else why it cannot be moved."""
    if one is None:
        return Answer.UNKNOWN
    if one.due_ms is None:
        return Answer.DEAD if one.state is State.DEAD else Answer.IN_FLIGHT
    return one


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and abs(value) < 2**63


def _is_cursor(cursor: object) -> bool:
    if not isinstance(cursor, tuple) or len(cursor) != 2:
        return False
    score, id = cursor
    return _is_number(score) and isinstance(id, str) and id.isprintable()
