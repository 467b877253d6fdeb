"""What verbs have in common: the calls of a namespace, messages accepted, ids and times checked."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from sys import modules
from typing import TYPE_CHECKING, Any, TypeVar

from delaybridge.accept.accept import Accepted, Draft, Drafting, check_id, when
from delaybridge.errors import (
    ConfigError,
    MessageConflict,
    MessageError,
    MessageInFlight,
    printable,
    quoted,
)
from delaybridge.gathering import Gathering
from delaybridge.message import Answer, Message, OnConflict
from delaybridge.store.calls import Calls
from delaybridge.store.messages.scheduling import Receipt
from delaybridge.store.messages.selection import Selected, Selection, Walk
from delaybridge.store.protocol.verbs import Steps
from delaybridge.times import At, Delay
from delaybridge.tracing import API, IS_NAMED, PROVIDER, active

if TYPE_CHECKING:
    from delaybridge.client.spans import ScheduleSpan
    from delaybridge.settings.settings import Settings
    from delaybridge.store.redis.store import AsyncStore, Store

T = TypeVar("T")
Key = bytes | str | None
NOT_PENDING = "is pending: it was delivered or cancelled, or never scheduled"
NOT_DEAD = "is in the dead set"
Named = str | Selected  # a message by its id, or as `select` found it
Spread = Sequence[int] | None  # milliseconds for each message


class Requests:
    """Base of all objects that have verbs. Every check comes before any I/O.

    MessageError or ConfigError names the first argument at fault.
    """

    _store: Store | AsyncStore

    def __init__(self, calls: Calls) -> None:
        self._calls = calls
        self._drafting = Drafting(calls.kinds, calls.limits, calls.ids.draw)

    @property
    def kinds(self) -> Mapping[str, str]:
        """Name -> kind of each broker that messages may name."""
        return self._calls.kinds

    def accept(self, message: Message) -> Accepted:
        """For drop-in producers: check a message now, to store it with `schedule_accepted`.

        No I/O. MessageError: the message is wrong.
        """
        if (span := self._span((message,))) is None:
            return self._drafting.accept(message)
        with span:
            return span.checked(self._drafting.accept)[0]

    def __repr__(self) -> str:
        return f"{type(self).__name__}(namespace={self._calls.namespace!r})"

    def _draft(self, message: Message) -> Draft | Accepted:
        """The message checked; encoded when it is sent, if it is plain."""
        return self._drafting.drafts((message,))[0]

    def _schedule_one(self, message: Message, on_conflict: str) -> Steps[Receipt]:
        policy = policy_of(on_conflict)
        if (span := self._span((message,))) is not None:
            return span.around(self._calls.schedule_one(self._drafts_in(span)[0], policy))
        return self._calls.schedule_one(self._draft(message), policy)

    def _span(self, messages: Iterable[Message]) -> ScheduleSpan | None:
        """The span of a call that schedules these messages, if the program traces."""
        # For each message: most programs trace nothing, and `active` is not called for that.
        api = modules.get(API)
        if (getattr(api, PROVIDER, api) is None and not IS_NAMED) or (tracing := active()) is None:
            return None
        from delaybridge.client.spans import ScheduleSpan

        return ScheduleSpan(tracing, messages)

    def _drafts_in(self, span: ScheduleSpan) -> list[Draft | Accepted]:
        """The messages of a span checked, each with its context. An error ends the span."""
        try:
            return span.checked(self._draft)
        except BaseException as exc:
            span.__exit__(None, exc)
            raise

    def _walk(self, selection: Selection) -> Walk:
        return Walk(self._calls, selection, self._store.recorder)

    def _id(self, id: str) -> str:
        return check_id(id, self._calls.limits)

    def _due(self, delay: Delay, at: At) -> str:
        return when(delay, at, self._calls.limits)

    def _named(self, messages: Iterable[Named]) -> list[Named]:
        return [self._id(one) if isinstance(one, str) else one for one in messages]


def traced(operation: str, ids: Sequence[object], steps: Steps[T], due: str = "") -> Steps[T]:
    """A call that changes messages of these ids, with a span if the program traces.

    due: the new time, as the scripts take it; empty if there is none.
    """
    if (tracing := active()) is None:
        return steps
    from delaybridge.client.spans import changing

    return changing(tracing, operation, ids, steps, due)


def receipt_unless_conflict(receipt: Receipt, message: Message | None = None) -> Receipt:
    """The receipt of a call for one message; MessageConflict if its answer is `conflict`."""
    if receipt.answer is Answer.CONFLICT:
        if message is not None and isinstance(message.delay, Gathering):
            what = f"{receipt.id[:80]!r} is pending, for another destination or not gathered"
            raise MessageConflict("conflict", "key", f"{what}; choose another key, or cancel it")
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
        f"on_conflict: {printable(quoted(on_conflict))} is not known; "
        f"use one of {', '.join(OnConflict)}"
    )


def spread_over(spread_ms: Spread, messages: Sequence[Named]) -> Sequence[int]:
    """For each message its milliseconds; MessageError if there are not as many."""
    if spread_ms is None:
        return [0] * len(messages)
    if len(spread_ms) != len(messages):
        what = f"got {len(spread_ms)} for {len(messages)} messages; give one for each"
        raise MessageError("bad_time", "spread_ms", what)
    return spread_ms


def first_of(steps: Steps[list[T]]) -> Steps[T]:
    """The answer of a call for one message."""
    (answer,) = yield from steps
    return answer


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
