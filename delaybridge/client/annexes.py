"""The port for annexes: what a client can do if their packages are there.

Annexes are no part of the engine. A method here imports its annex when it is called; if that is
missing, ConfigError names it. No other file of the client knows an annex.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Literal

from delaybridge.client.requests import Requests
from delaybridge.client.verbs import Scope, verb
from delaybridge.errors import ConfigError
from delaybridge.message import State
from delaybridge.store.protocol.verbs import Steps
from delaybridge.times import Delay

if TYPE_CHECKING:
    from delaybridge.operate.views.destinations import Places
    from delaybridge.operate.views.horizon import Horizon
    from delaybridge.operate.views.listing import Cursor, Page
    from delaybridge.operate.views.series import Recent, Series
    from delaybridge.operate.views.stats import Stats
    from delaybridge.operate.views.tally import DestinationCounts
    from delaybridge.recurring.client import AsyncRecurringMessages as AsyncRecurringMessages
    from delaybridge.recurring.client import RecurringMessages as RecurringMessages


def annex(name: str) -> Any:
    """A module of an annex by its name below `delaybridge`, as `operate.views.stats`.

    ConfigError: the annex is not installed.
    """
    full = f"delaybridge.{name}"
    try:
        return import_module(full)
    except ModuleNotFoundError as exc:
        if not f"{full}.".startswith(f"{exc.name}."):
            raise  # of a library: the annex says itself which extra it needs
        package = ".".join(full.split(".")[:2])
        raise ConfigError(f"this needs the package {package}, which is not installed") from None


class ViewVerbs(Requests):
    """Verbs that show what there is, what was and what is to come: by the annex `operate`."""

    @verb(Scope.READ, "List messages by due time")
    def pending(
        self,
        *,
        state: State = State.DELAYED,
        destination: str | None = None,
        due_from_ms: int | None = None,
        due_to_ms: int | None = None,
        limit: int = 100,
        cursor: Cursor | None = None,
    ) -> Steps[Page]:
        """One page of messages in order of due time.

        Args:
            state: of the messages. Those in flight are in order of claim, dead ones of burial.
            destination: only messages to this destination.
            due_from_ms, due_to_ms: only messages due in this span, both ends included; in
                milliseconds since the epoch.
            limit: the most messages of the page, 1 to 1000.
            cursor: the `cursor` of the page before; None for the first page.

        Returns:
            `items`, and the `cursor` of the next page; it is None on the last page.

        Raises:
            MessageError: an argument is wrong.
        """
        asked = state, destination, (due_from_ms, due_to_ms), limit, cursor
        return _ask("operate.views.questions.page", self._calls, *asked)

    @verb(Scope.READ, "Count messages by state")
    def stats(self) -> Steps[Stats]:
        """Counts by state and bucket, the workers, and the failures with their reasons."""
        return _ask("operate.views.stats.read_stats", self._calls)

    @verb(Scope.READ, "Count messages by destination")
    def counts(self, by: Literal["destination"] = "destination") -> Steps[list[DestinationCounts]]:
        """How many messages each destination has in each state, the one with the most first.

        Up to 2000 messages of each state are read, about 6 us of Redis' time for each. If there are
        more, they are drawn at random: each number is an estimate and says by how much it may be
        wrong, and a destination with very few messages may be missing.

        Raises:
            MessageError: `by` is anything else than "destination".
            StoreDamaged: a key is damaged.
        """
        return _ask("operate.views.questions.counts", self._calls, by)

    @verb(Scope.READ, "Show what was published lately")
    def series(self, step: Literal["1s", "1m", "30m"] = "1s") -> Steps[Series]:
        """What the fleet counted in the last 60 seconds or minutes, or the last 24 hours.

        Args:
            step: the length of each period. 60 points of "1s" or "1m", 48 of "30m", in order of
                time. A period in which no worker reported is None.

        Returns:
            The points; also, which living workers do not report: their messages are missing. What
            happened while no worker looked (`scheduled` and the like) is missing too.

        Raises:
            MessageError: there is no such step.
        """
        return _ask("operate.views.questions.series", self._calls, step)

    @verb(Scope.READ, "Show the rates of publishing")
    def rates(self) -> Steps[Recent]:
        """Messages per second, and lateness, of the last second, minute and quarter of an hour."""
        return _ask("operate.views.series.read_rates", self._calls)

    @verb(Scope.READ, "Show what falls due")
    def horizon(
        self,
        span: Delay = "1h",
        step: Delay = None,
        *,
        destination: str | None = None,
        from_ms: int | None = None,
    ) -> Steps[Horizon]:
        """How many messages fall due in each part of the coming time, as Redis counts them.

        Args:
            span: `"6h"`, a timedelta, or seconds; how far to look ahead.
            step: the length of a cell; by default a sixtieth of the span. A cell begins at a
                multiple of the step, in UTC.
            destination: only of this destination, exchange (`rabbitmq:orders`) or broker. If
                thousands are pending, the numbers are estimated from some thousand of them, and
                each cell says by how much it may be wrong.
            from_ms: where the span begins, in epoch milliseconds; by default now.

        Raises:
            MessageError: an argument is wrong, or there were more than 1000 cells.
        """
        return _ask(
            "operate.views.questions.horizon", self._calls, span, step, destination, from_ms
        )


class DeadViews(Requests):
    """What `client.dead` does when it is called."""

    @verb(Scope.READ, "List dead messages")
    def __call__(self, *, limit: int = 100, cursor: Cursor | None = None) -> Steps[Page]:
        """One page of the dead set, by time of burial; arguments as for `pending`."""
        return _ask(
            "operate.views.questions.page",
            self._calls,
            State.DEAD,
            None,
            (None, None),
            limit,
            cursor,
        )


class PlaceViews(Requests):
    """What `client.destinations` does when it is called."""

    @verb(Scope.READ, "List destinations")
    def __call__(self, destination: str | None = None) -> Steps[Places]:
        """What waits for each destination, the rules in force, and why messages do not go out.

        Counted as by `counts`: beyond 2000 messages in one state the numbers are estimates, and say
        by how much they may be wrong.

        Args:
            destination: only this one, whether or not it has messages.
        """
        return _ask("operate.views.destinations.list_destinations", self._calls, destination)


def _ask(name: str, *args: Any) -> Steps[Any]:
    """Call a function of an annex by its name below `delaybridge`."""
    module, _, function = name.rpartition(".")
    steps: Steps[Any] = getattr(annex(module), function)(*args)
    return steps
