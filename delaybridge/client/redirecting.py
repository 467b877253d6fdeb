"""The verbs that give messages another destination: rows of the table, for both clients."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from delaybridge.accept.accept import check_key
from delaybridge.client.requests import NOT_DEAD, NOT_PENDING, Key, Named, Requests, traced
from delaybridge.client.verbs import Scope, verb
from delaybridge.message import Answer, State
from delaybridge.store.messages.rewriting import RedirectAnswer
from delaybridge.store.messages.selection import PENDING, Selected
from delaybridge.store.protocol.verbs import Steps

_DEAD = (State.DEAD,)


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
        return traced("redirect", (id,), _first(steps))

    @verb(Scope.WRITE, "Redirect many messages", is_audited=True, states=PENDING)
    def redirect_many(
        self,
        messages: Iterable[str | Selected],
        *,
        to: str,
        bound_for: str | None = None,
        key: Key = None,
        dry_run: bool = False,
    ) -> Steps[list[RedirectAnswer]]:
        """Redirect many messages at once; arguments as for `redirect` and `cancel_many`.

        Returns:
            The answer of `redirect` for each, in their order.
        """
        named = self._named(messages)
        steps = self._calls.redirect_many(
            named, to, check_key(key), bound_for=bound_for, dry=dry_run
        )
        return steps if dry_run else traced("redirect", named, steps)


class DeadRedirectVerbs(Requests):
    """Verbs of messages that were given up."""

    @verb(Scope.WRITE, "Redirect a dead message", unknown=NOT_DEAD, states=_DEAD, is_batched=True)
    def redirect(
        self,
        id: str,
        *,
        to: str,
        bound_for: str | None = None,
        kick: bool = False,
        key: Key = None,
    ) -> Steps[RedirectAnswer]:
        """Give a dead message another destination; it stays dead unless it is kicked.

        Args:
            id, to, bound_for, key: as for `client.redirect`.
            kick: bring it back as well, due now.

        Returns:
            `redirected`, `redirected_maybe_delivered`, `refused`, `changed` or `unreadable` as for
            `client.redirect`; `in_flight` or `unknown` as for `kick`.
        """
        steps = self._redirect_dead([self._id(id)], to, bound_for, check_key(key), kick=kick)
        return _first(steps)

    @verb(Scope.WRITE, "Redirect many dead messages", is_audited=True, states=_DEAD)
    def redirect_many(
        self,
        messages: Iterable[str | Selected],
        *,
        to: str,
        bound_for: str | None = None,
        kick: bool = False,
        key: Key = None,
        dry_run: bool = False,
    ) -> Steps[list[RedirectAnswer]]:
        """Redirect many dead messages at once; arguments as for `redirect` and `cancel_many`.

        Returns:
            The answer of `redirect` for each, in their order.
        """
        named = self._named(messages)
        key_ = check_key(key)
        return self._redirect_dead(named, to, bound_for, key_, kick=kick, dry=dry_run)

    def _redirect_dead(
        self,
        named: Sequence[Named],
        to: str,
        bound_for: str | None,
        key: bytes | None,
        *,
        kick: bool,
        dry: bool = False,
    ) -> Steps[list[RedirectAnswer]]:
        """Redirect all, then bring those back that were; in between they are dead, and not lost."""
        redirect = self._calls.redirect_many
        answers = yield from redirect(named, to, key, bound_for=bound_for, is_dead=True, dry=dry)
        if kick and not dry:
            places = [i for i, one in enumerate(answers) if one.is_done]
            some = [named[i] for i in places]
            kicked = yield from self._calls.kick_many(some, [0] * len(some), key)
            for i, answer in zip(places, kicked, strict=True):
                if answer is not Answer.KICKED:
                    answers[i] = RedirectAnswer(answer)
        return answers


def _first(steps: Steps[list[RedirectAnswer]]) -> Steps[RedirectAnswer]:
    (answer,) = yield from steps
    return answer
