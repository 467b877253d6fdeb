"""The verbs of messages: rows of the table, as methods of both clients."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from typing import Any

from msgspec import UNSET

from delaybridge.accept.accept import check_delay, check_key
from delaybridge.client.requests import (
    NOT_PENDING,
    Key,
    Named,
    Requests,
    Spread,
    first_of,
    policy_of,
    receipt_unless_conflict,
    spread_over,
    traced,
)
from delaybridge.client.verbs import Scope, verb
from delaybridge.gathering import Debounce, Span, Throttle
from delaybridge.message import Answer, Body, Message, OnConflict, State
from delaybridge.store.messages.rewriting import RedirectAnswer
from delaybridge.store.messages.scheduling import Receipt
from delaybridge.store.messages.selection import PENDING, Selected
from delaybridge.store.protocol.stored import Stored
from delaybridge.store.protocol.verbs import Steps
from delaybridge.times import At, Delay, delay_ms


class MessageVerbs(Requests):
    """Verbs of messages that are pending."""

    @verb(Scope.WRITE, "Schedule many messages")
    def schedule_many(
        self, messages: Iterable[Message], *, on_conflict: str = OnConflict.FAIL
    ) -> Steps[list[Receipt]]:
        """Store many messages in one round trip; much faster than a call for each.

        If one message is wrong, none is stored. After StoreUnavailable or StoreFull some may be
        stored: call again with messages that have the same ids.

        Args:
            messages: any number.
            on_conflict: as for `schedule`, but a conflict is an answer and not an error.

        Returns:
            The receipt of each message, in their order; also `conflict`.

        Raises:
            MessageError: a message is wrong.
            StoreFull: it says how many messages were not stored.
            StoreWiped: the namespace was deleted while this client was using it.
        """
        policy = policy_of(on_conflict)
        if (span := self._span(messages)) is not None:
            return span.around(self._calls.schedule(self._drafts_in(span), policy))
        return self._calls.schedule(self._drafting.drafts(messages), policy)

    @verb(Scope.WRITE, "Deliver the last message of a key once it is quiet", is_batched=True)
    def debounce(
        self, /, destination: str, body: Body = UNSET, *,
        key: str, quiet: Span = "5m", longest: Span = "1h", **content: Any,
    ) -> Steps[Receipt]:  # fmt: skip
        """Store a message to be delivered once its key has been quiet; the last content wins.

        Args:
            destination, body: as for `schedule`.
            key: names what is debounced, in the whole namespace. It is the message's id (`cancel`
                takes it), and its key.
            quiet: each call postpones the delivery until this long after it.
            longest: but never longer than this after the first call of those that wait.
            content: json, headers, properties, priority, ttl, at_most_once, retry: as for
                `schedule`.

        Returns:
            `created`, `replaced` (it was pending, and is postponed), or `in_flight` as for
            `schedule`: nothing was stored. Its `due_ms` says when it will be delivered.

        Raises:
            MessageError: an argument is wrong; `field` names it.
            MessageConflict: a MessageError: something else is pending under the key, or the same
                for another destination.
        """
        how = Debounce(key, quiet, longest)
        return self._gathered(Message(destination, body, delay=how, key=key, **content))

    @verb(Scope.WRITE, "Deliver a message of a key now, the last of the next ones later")
    def throttle(
        self, /, destination: str, body: Body = UNSET, *,
        key: str, every: Span = "1m", **content: Any,
    ) -> Steps[Receipt]:  # fmt: skip
        """Deliver the first message of a key at once; of those that follow soon only the last.

        Args:
            destination, body, key, content: as for `debounce`.
            every: of the messages within this time after a delivery only the last is kept. It is
                delivered when the time ends, which begins it again.

        Returns:
            `created` (it is delivered at once), `kept` (it is delivered at `due_ms`), `replaced`
            (the same, in place of one that was kept), or `in_flight` as for `schedule`.

        Raises:
            MessageError, MessageConflict: as for `debounce`.
        """
        how = Throttle(key, every)
        return self._gathered(Message(destination, body, delay=how, key=key, **content))

    def _gathered(self, message: Message) -> Steps[Receipt]:
        receipt = yield from self._schedule_one(message, OnConflict.FAIL)
        return receipt_unless_conflict(receipt, message)

    @verb(
        Scope.WRITE,
        "Cancel a message",
        unknown=NOT_PENDING,
        states=PENDING,
        is_destructive=True,
        is_batched=True,
    )
    def cancel(self, id: str, *, key: Key = None) -> Steps[Answer]:
        """Cancel a message.

        Args:
            id: the message's.
            key: the message's, if it has one: saves a search through all buckets.

        Returns:
            `cancelled`: it is not delivered. `cancelled_maybe_delivered`: it is not published
            again, but an earlier publish may have been delivered. `in_flight`: too late.
            `unknown`: no such message is pending.

        Raises:
            MessageError: the id or key is wrong.
        """
        steps = self._calls.cancel(self._id(id), check_key(key))
        return traced("cancel_scheduled", (id,), steps)

    @verb(Scope.WRITE, "Cancel many messages", is_audited=True, states=PENDING, is_destructive=True)
    def cancel_many(
        self, messages: Iterable[str | Selected], *, key: Key = None, dry_run: bool = False
    ) -> Steps[list[Answer]]:
        """Cancel many messages in one round trip.

        Args:
            messages: ids, or messages found by `select`.
            key: the key of all messages given by id, if they have one.
            dry_run: change nothing, and answer what would be answered now.

        Returns:
            The answer of `cancel` for each, in their order.

        Raises:
            MessageError: an id or the key is wrong; none is cancelled.
        """
        named = self._named(messages)
        steps = self._calls.cancel_many(named, check_key(key), dry=dry_run)
        return steps if dry_run else traced("cancel_scheduled", named, steps)

    @verb(Scope.WRITE, "Reschedule a message", unknown=NOT_PENDING, states=PENDING, is_batched=True)
    def reschedule(
        self, id: str, *, delay: Delay = None, at: At = None, key: Key = None
    ) -> Steps[Answer]:
        """Give a message another due time; it is not delivered before then.

        Args:
            id, key: as for `cancel`.
            delay, at: as for `schedule`.

        Returns:
            `rescheduled`, `rescheduled_maybe_delivered` (an earlier publish may have been
            delivered), `in_flight` (too late), `dead` (use `dead.kick`) or `unknown`.

        Raises:
            MessageError: an argument is wrong.
            DelayOutOfRange: a MessageError: the delay is negative or too long.
        """
        due = self._due(delay, at)
        steps = self._calls.reschedule(self._id(id), check_key(key), due)
        return traced("reschedule", (id,), steps, due)

    @verb(Scope.WRITE, "Reschedule many messages", is_audited=True, states=PENDING)
    def reschedule_many(
        self,
        messages: Iterable[str | Selected],
        *,
        delay: Delay = None,
        at: At = None,
        spread_ms: Spread = None,
        key: Key = None,
        dry_run: bool = False,
    ) -> Steps[list[Answer]]:
        """Reschedule many messages in one round trip.

        Args:
            messages, key, dry_run: as for `cancel_many`.
            delay, at: as for `schedule`; give one.
            spread_ms: for each message, the milliseconds by which it is due later than that.

        Returns:
            The answer of `reschedule` for each, in their order.

        Raises:
            MessageError: an argument is wrong; none is rescheduled.
        """
        named = self._named(messages)
        due = self._due(delay, at)
        sign = "+" if due.startswith("+") else ""
        dues = [f"{sign}{int(due) + later_ms}" for later_ms in spread_over(spread_ms, named)]
        steps = self._calls.reschedule_many(named, dues, check_key(key), dry=dry_run)
        return steps if dry_run else traced("reschedule", named, steps, due)

    @verb(
        Scope.WRITE,
        "Move the due times of many messages",
        is_audited=True,
        states=(State.PARKED, State.DELAYED),  # the others have no due time that can change
    )
    def move_many(
        self,
        messages: Iterable[str | Selected],
        *,
        by_ms: int,
        key: Key = None,
        dry_run: bool = False,
    ) -> Steps[list[Answer]]:
        """Move the due times of many messages at once, each by the same span.

        Args:
            messages: ids, whose due times are looked up first; or what `select` found. A message
                that `select` found in flight is not moved.
            by_ms: how much later each is due than it was when it was found; negative: earlier. A
                time in the past means now.
            key, dry_run: as for `cancel_many`.

        Returns:
            The answer of `reschedule` for each. A message that another caller reschedules after it
            was found, and before it is moved, gets the due time of this call.

        Raises:
            DelayOutOfRange: a message would be due later than the limits allow; none is moved.
        """
        named = self._named(messages)
        steps = self._move(named, by_ms, check_key(key), dry_run)
        return steps if dry_run else traced("reschedule", named, steps)

    @verb(
        Scope.WRITE,
        "Change the ttl of a message",
        unknown=NOT_PENDING,
        states=PENDING,
        is_batched=True,
    )
    def touch(self, id: str, *, ttl: Delay, key: Key = None) -> Steps[Answer]:
        """Give a pending message another ttl: it is replaced by itself, with the same due time.

        Its attempts start again.

        Args:
            id, key: as for `cancel`.
            ttl: as for `schedule`, counted from the due time, or from now if that is past; None:
                no ttl any more.

        Returns:
            `replaced`, `in_flight` (too late, or a consumer of a pull topic has it), `dead` (use
            `dead.kick`), `unreadable` (it cannot be decoded and stays as it is) or `unknown`.

        Raises:
            MessageError: an argument is wrong.
        """
        steps = self._calls.touch(self._id(id), check_key(key), _ttl_ms(ttl))
        return traced("touch", (id,), steps)

    @verb(Scope.WRITE, "Change the ttl of many messages", is_audited=True, states=PENDING)
    def touch_many(
        self,
        messages: Iterable[str | Selected],
        *,
        ttl: Delay,
        key: Key = None,
        dry_run: bool = False,
    ) -> Steps[list[Answer]]:
        """Touch many messages at once; arguments as for `touch` and `cancel_many`.

        Returns:
            The answer of `touch` for each, in their order.
        """
        named = self._named(messages)
        steps = self._calls.touch_many(named, _ttl_ms(ttl), check_key(key), dry=dry_run)
        return steps if dry_run else traced("touch", named, steps)

    @verb(Scope.READ, "Show a message", unknown=NOT_PENDING, is_batched=True)
    def get(self, id: str, *, key: Key = None) -> Steps[Stored | None]:
        """A message with its content, state and attempts; None once it is delivered or cancelled.

        Args:
            id, key: as for `cancel`.

        Raises:
            MessageError: the id or key is wrong.
        """
        return self._calls.get(self._id(id), check_key(key))

    @verb(Scope.WRITE, "Redirect a message", unknown=NOT_PENDING, states=PENDING, is_batched=True)
    def redirect(
        self, id: str, *, to: str, bound_for: str | None = None, key: Key = None
    ) -> Steps[RedirectAnswer]:
        """Give a pending message another destination, perhaps at a broker of another kind.

        Its due time stays; its attempts start again. It is delivered to one of the two.

        Args:
            id, key: as for `cancel`.
            to: the new destination.
            bound_for: only if it goes there now: a broker, an exchange or topic, or a destination.

        Returns:
            `redirected`, `redirected_maybe_delivered` (an earlier publish, to the old destination,
            may have been delivered), `refused` (the new one does not take it, and it stays),
            `changed` (others changed it meanwhile, or it goes elsewhere: it stays as it is now),
            `in_flight` (too late), `dead` (use `dead.redirect`), `unreadable` or `unknown`. Its
            `notes` say what the new broker cannot carry, as headers, or why it refuses.

        Raises:
            MessageError: an argument is wrong.
        """
        steps = self._calls.redirect_many([self._id(id)], to, check_key(key), bound_for=bound_for)
        return traced("redirect", (id,), first_of(steps))

    @verb(Scope.WRITE, "Redirect many messages", is_audited=True, states=PENDING)
    def redirect_many(
        self, messages: Iterable[Named], *, to: str, bound_for: str | None = None,
        key: Key = None, dry_run: bool = False,
    ) -> Steps[list[RedirectAnswer]]:  # fmt: skip
        """Redirect many messages at once; arguments as for `redirect` and `cancel_many`.

        Returns:
            The answer of `redirect` for each, in their order.
        """
        named, own = self._named(messages), check_key(key)
        steps = self._calls.redirect_many(named, to, own, bound_for=bound_for, dry=dry_run)
        return steps if dry_run else traced("redirect", named, steps)

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
            check_delay(latest_ms - time.time_ns() // 1_000_000, self._calls.limits, "by")
        steps = self._calls.reschedule_many([*moved], dues, None, dry=dry)
        given = iter((yield from steps) if moved else [])
        return [one if isinstance(one, Answer) else next(given) for one in found]

    def _found(self, id: str, key: bytes | None) -> Steps[Selected | None]:
        found = yield from self._calls.get(id, key)
        if found is None:
            return None
        due_ms = None if found.state is State.DEAD else found.due_ms
        return Selected(found.id, found.bucket, found.state, due_ms)


def _ttl_ms(ttl: Delay) -> int | None:
    return None if ttl is None else delay_ms(ttl, field="ttl")


def _movable(one: Selected | None) -> Selected | Answer:
    """The message if its due time is known; else why it cannot be moved."""
    if one is None:
        return Answer.UNKNOWN
    if one.due_ms is None:
        return Answer.DEAD if one.state is State.DEAD else Answer.IN_FLIGHT
    return one
