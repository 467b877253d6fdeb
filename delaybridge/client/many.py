"""The methods of `Client` for many messages at once."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from delaybridge.client.requests import Key, OfClient, Spread
from delaybridge.message import Answer
from delaybridge.store.messages.selection import Selected, Selection, Walk
from delaybridge.times import At, Delay


class Many(OfClient):
    """Finds messages, and applies a verb to all of them."""

    def select(self, selection: Selection) -> Iterator[list[Selected]]:
        """Find every message that matches, page by page; each page can be passed to `cancel_many`.

        A message is found once, also if it is moved meanwhile. It matches if it did when its page
        was read.

        Args:
            selection: the states, destination, reason, ... of the messages.

        Raises:
            MessageError: the selection is wrong.
            StoreDamaged: a bucket is damaged; raised after all others were searched.
        """
        walk = Walk(self._requests.calls, selection, self._store.recorder)
        while (page := self._store.complete(walk.page())) is not None:
            yield page

    def cancel_many(
        self, messages: Iterable[str | Selected], *, key: Key = None, dry_run: bool = False
    ) -> list[Answer]:
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
        return self._store.complete(self._requests.cancel_many(messages, key, dry_run))

    def reschedule_many(
        self,
        messages: Iterable[str | Selected],
        *,
        delay: Delay = None,
        at: At = None,
        spread_ms: Spread = None,
        key: Key = None,
        dry_run: bool = False,
    ) -> list[Answer]:
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
        return self._store.complete(
            self._requests.reschedule_many(messages, delay, at, spread_ms, key, dry_run)
        )

    def move_many(
        self,
        messages: Iterable[str | Selected],
        *,
        by_ms: int,
        key: Key = None,
        dry_run: bool = False,
    ) -> list[Answer]:
        """Move the due times of many messages at once, each by the same span.

        Args:
            messages: ids, whose due times are looked up first; or what `select` found. A message
                that `select` found in flight is not moved.
            by_ms: how much later each is due than it was when it was found; negative: earlier. A
                time in the past means now.
            key, dry_run: as for `cancel_many`.

        Returns:
            The answer of `reschedule` for each. A message that somebody else reschedules after it
            was found, and before it is moved, gets the due time of this call.

        Raises:
            DelayOutOfRange: a message would be due later than the limits allow; none is moved.
        """
        return self._store.complete(self._requests.move_many(messages, by_ms, key, dry_run))

    def kick_many(
        self,
        messages: Iterable[str | Selected],
        *,
        spread_ms: Spread = None,
        key: Key = None,
        dry_run: bool = False,
    ) -> list[Answer]:
        """Kick many messages at once.

        Args:
            messages, key, dry_run: as for `cancel_many`.
            spread_ms: for each message, the milliseconds from now until it is due.

        Returns:
            The answer of `kick` for each, in their order.
        """
        steps = self._requests.kick_many(messages, spread_ms, key, dry_run)
        return self._store.complete(steps)

    def discard_many(
        self, messages: Iterable[str | Selected], *, key: Key = None, dry_run: bool = False
    ) -> list[Answer]:
        """Discard many messages at once; arguments as for `cancel_many`.

        Returns:
            The answer of `discard` for each, in their order.
        """
        return self._store.complete(self._requests.discard_many(messages, key, dry_run))
