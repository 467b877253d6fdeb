"""The verbs of the dead set: rows of the table, as methods of `client.dead`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from delaybridge.accept.accept import check_key
from delaybridge.client.requests import (
    NOT_DEAD,
    Key,
    Named,
    Requests,
    Spread,
    first_of,
    spread_over,
)
from delaybridge.client.verbs import Scope, verb
from delaybridge.message import Answer, State
from delaybridge.store.messages.rewriting import RedirectAnswer
from delaybridge.store.protocol.stored import Stored
from delaybridge.store.protocol.verbs import Steps

_DEAD = (State.DEAD,)


class DeadVerbs(Requests):
    """Verbs of messages that were given up."""

    @verb(Scope.WRITE, "Redirect a dead message", unknown=NOT_DEAD, states=_DEAD, is_batched=True)
    def redirect(
        self, id: str, *, to: str, bound_for: str | None = None, key: Key = None
    ) -> Steps[RedirectAnswer]:
        """Give a dead message another destination; it stays dead until it is kicked.

        Args:
            id, to, bound_for, key: as for `client.redirect`.

        Returns:
            `redirected`, `redirected_maybe_delivered`, `refused`, `changed` or `unreadable` as for
            `client.redirect`; `in_flight` or `unknown` as for `kick`.
        """
        how: dict[str, Any] = {"bound_for": bound_for, "is_dead": True}
        return first_of(self._calls.redirect_many([self._id(id)], to, check_key(key), **how))

    @verb(Scope.WRITE, "Redirect many dead messages", is_audited=True, states=_DEAD)
    def redirect_many(
        self, messages: Iterable[Named], *, to: str, bound_for: str | None = None,
        key: Key = None, dry_run: bool = False,
    ) -> Steps[list[RedirectAnswer]]:  # fmt: skip
        """Redirect many dead messages at once; arguments as for `redirect` and `cancel_many`.

        Returns:
            The answer of `redirect` for each, in their order.
        """
        how: dict[str, Any] = {"bound_for": bound_for, "is_dead": True, "dry": dry_run}
        return self._calls.redirect_many(self._named(messages), to, check_key(key), **how)

    @verb(Scope.WRITE, "Bring a dead message back", unknown=NOT_DEAD, states=_DEAD, is_batched=True)
    def kick(self, id: str, *, key: Key = None) -> Steps[Answer]:
        """Move a message out of the dead set: it is due now, and its attempts start again.

        Args:
            id, key: as for `cancel`.

        Returns:
            `kicked`, `unreadable` (it cannot be decoded and stays), `in_flight` (it may live: a key
            of its bucket came back old; try again once that is mended) or `unknown`.

        Raises:
            MessageError: the id or key is wrong.
        """
        return self._calls.kick(self._id(id), check_key(key))

    @verb(Scope.WRITE, "Bring many dead messages back", is_audited=True, states=_DEAD)
    def kick_many(
        self,
        messages: Iterable[Named],
        *,
        spread_ms: Spread = None,
        key: Key = None,
        dry_run: bool = False,
    ) -> Steps[list[Answer]]:
        """Kick many messages at once.

        Args:
            messages, key, dry_run: as for `cancel_many`.
            spread_ms: for each message, the milliseconds from now until it is due.

        Returns:
            The answer of `kick` for each, in their order.
        """
        named = self._named(messages)
        waits_ms = spread_over(spread_ms, named)
        return self._calls.kick_many(named, waits_ms, check_key(key), dry=dry_run)

    @verb(
        Scope.ADMIN,
        "Discard a dead message",
        unknown=NOT_DEAD,
        is_audited=True,
        states=_DEAD,
        is_destructive=True,
        is_batched=True,
    )
    def discard(self, id: str, *, key: Key = None) -> Steps[Answer]:
        """Delete a message from the dead set; arguments and errors as for `cancel`.

        Returns:
            `discarded`, `in_flight` or `unknown`, as for `kick`.
        """
        return self._calls.discard(self._id(id), check_key(key))

    @verb(
        Scope.ADMIN,
        "Discard many dead messages",
        is_audited=True,
        states=_DEAD,
        is_destructive=True,
    )
    def discard_many(
        self, messages: Iterable[Named], *, key: Key = None, dry_run: bool = False
    ) -> Steps[list[Answer]]:
        """Discard many messages at once; arguments as for `cancel_many`.

        Returns:
            The answer of `discard` for each, in their order.
        """
        return self._calls.discard_many(self._named(messages), check_key(key), dry=dry_run)

    @verb(Scope.READ, "Show what ingest refused")
    def quarantined(self, id: str) -> Steps[list[Stored]]:
        """The messages with this id that ingest refused; they are in the dead set."""
        return self._calls.quarantined(self._id(id))
