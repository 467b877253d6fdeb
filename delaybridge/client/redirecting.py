"""The verbs that give messages another destination: rows of the table, for both clients."""

from __future__ import annotations

from collections.abc import Iterable

from delaybridge.accept.accept import check_key
from delaybridge.client.requests import NOT_PENDING, Key, Named, Requests, first_of, traced
from delaybridge.client.verbs import Scope, verb
from delaybridge.store.messages.rewriting import RedirectAnswer
from delaybridge.store.messages.selection import PENDING
from delaybridge.store.protocol.verbs import Steps


class RedirectVerbs(Requests):
    """Verbs of messages that are pending."""

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
