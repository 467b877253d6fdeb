"""The verbs that steer destinations, as methods of `client.destinations`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

from delaybridge.accept.destination import check_plan, parse_destination
from delaybridge.backoff import RetryPlan
from delaybridge.client.messages import MessageVerbs
from delaybridge.client.requests import Requests
from delaybridge.client.verbs import Scope, verb
from delaybridge.errors import MessageError, quoted
from delaybridge.message import Answer, Destination, MessagePlan, Retry, State
from delaybridge.store.messages.selection import PENDING, Selected, Selection
from delaybridge.store.namespace.rules import RATE_LIMIT, SPREAD_LIMIT_MS, Rule, place_of
from delaybridge.store.protocol.verbs import LedgerSteps, Steps
from delaybridge.times import Delay, delay_ms, format_duration

_PASSES = 10  # of a purge
CALL_MESSAGES = 250  # a pipeline that keeps Redis busy for about 4 ms
_OF_RETRY = RetryPlan.__struct_fields__


class DestinationVerbs(Requests):
    """Verbs of destinations.

    A destination is a broker (`rabbitmq`), an exchange or topic (`rabbitmq:orders`) or a whole
    destination (`rabbitmq:orders/close`). Its rule holds for all of its messages and is kept in
    Redis. When a method returns, the rule is stored; each worker obeys it within a second.
    Messages that were handed to a broker before then go out.

    Every method raises MessageError if an argument is wrong: `destination` if its broker is not
    configured.
    """

    @verb(Scope.ADMIN, "Pause a destination", is_audited=True)
    def pause(self, destination: str) -> Steps[Rule]:
        """Publish nothing to a destination: what falls due waits, in order.

        Waiting costs no attempt. A message whose ttl passes meanwhile expires.
        """
        return self._calls.pause(destination)

    @verb(Scope.ADMIN, "Resume a destination", is_audited=True)
    def resume(self, destination: str) -> Steps[Rule]:
        """End a pause: what waited goes out, the earliest first.

        A pause of a broader place (its exchange, its broker) stays in force.
        """
        return self._calls.resume(destination)

    @verb(Scope.ADMIN, "Limit the rate of a destination", is_audited=True)
    def limit(self, destination: str, rate: float | None) -> Steps[Rule]:
        """Publish at most `rate` messages a second, of all workers together; None: no limit.

        If broader places have limits, each of them holds as well.
        """
        return self._calls.steer(destination, {"rate": _rate(rate)})

    @verb(Scope.ADMIN, "Spread what is due at once for a destination", is_audited=True)
    def spread(self, destination: str, window: Delay) -> Steps[Rule]:
        """Let messages due in one instant leave over this time, none of them early; None: end it.

        Args:
            destination: it replaces the window of a broader place; `"0s"` takes it away here.
            window: as `"10m"`; at most a day.
        """
        return self._calls.steer(destination, {"spread_ms": _window_ms(window)})

    @verb(Scope.ADMIN, "Set the retry plan of a destination", is_audited=True)
    def retry_plan(self, destination: str, plan: Retry) -> Steps[Rule]:
        """Set what happens after failed publishes; None: as the settings of the workers say.

        Args:
            destination: its fields come before those of broader places; a message's own come
                before them.
            plan: fields of a `MessagePlan`; those not given stay. In a mapping, None removes a
                field, and `{"dead_letter": ""}` means the dead set, whatever else is set.
        """
        place = place_of(destination, self.kinds)
        return self._calls.steer(place, plan_change(place, plan, self.kinds))

    @verb(Scope.ADMIN, "Set the rule of a destination", is_audited=True)
    def set_rule(
        self,
        destination: str,
        *,
        rate: float | None = None,
        spread: Delay = None,
        retry: Retry = None,
    ) -> Steps[Rule]:
        """Set the whole rule of a destination at once: what is not given is not set any more.

        A pause stays as it is. The arguments are those of `limit`, `spread` and `retry_plan`.
        """
        place = place_of(destination, self.kinds)
        whole: dict[str, Any] = {"retry": None, "dead_letter": None}
        whole |= plan_change(place, retry, self.kinds)
        whole |= {"rate": _rate(rate), "spread_ms": _window_ms(spread)}
        return self._calls.steer(place, whole)

    @verb(Scope.ADMIN, "Purge a destination", is_audited=True, is_destructive=True)
    def purge(self, destination: str) -> LedgerSteps[Mapping[Answer, int]]:
        """Cancel all messages of a destination, also parked and paused ones; delete dead ones.

        Returns:
            How many got each answer of `cancel`. Those answered `in_flight` were too late: handed
            to the broker. None of the others is delivered. Messages scheduled meanwhile may stay.
        """
        purge = Purge(destination)
        while not purge.is_done:
            walk = self._walk(purge.selection)
            while (page := (yield from walk.page())) is not None:
                for some in purge.parts(page):
                    purge.count((yield from MessageVerbs.cancel_many.call(self, some)))
            purge.end_pass()
        return purge.answers


class Purge:
    """The passes of a purge, until one changes nothing: messages move while they are looked for."""

    def __init__(self, destination: str) -> None:
        self.selection = Selection(states=(*PENDING, State.DEAD), place=destination)
        self.answers = Counter[Answer]()
        self.is_done = False
        self._pass = Counter[Answer]()
        self._left = _PASSES

    def parts(self, page: Sequence[Selected]) -> Iterator[Sequence[Selected]]:
        """The messages in calls of bounded size."""
        return (page[at : at + CALL_MESSAGES] for at in range(0, len(page), CALL_MESSAGES))

    def count(self, answers: Iterable[Answer]) -> None:
        """Take the answers to one call."""
        self._pass.update(answers)

    def end_pass(self) -> None:
        """All pages were purged: decide whether another pass is needed."""
        late, self._pass[Answer.IN_FLIGHT] = self._pass[Answer.IN_FLIGHT], 0
        self._left -= 1
        self.is_done = not self._left or not (self._pass.total() - self._pass[Answer.UNKNOWN])
        self.answers += self._pass
        self._pass.clear()
        if late:
            self.answers[Answer.IN_FLIGHT] = late  # they may be seen in every pass
        else:
            del self.answers[Answer.IN_FLIGHT]


def _rate(rate: float | None) -> float | None:
    """The rate; MessageError if it is wrong."""
    if rate is not None:
        is_number = isinstance(rate, int | float) and not isinstance(rate, bool)
        if is_number and rate == 0:
            raise MessageError("bad_rate", "rate", "0 would let nothing pass; use pause")
        if not is_number or not 0 < rate <= RATE_LIMIT:
            detail = f"got {quoted(rate)}; give messages a second, up to {RATE_LIMIT:,.0f}"
            raise MessageError("bad_rate", "rate", detail)
    return rate


def _window_ms(window: Delay) -> int | None:
    """The window in milliseconds; MessageError if it is too long."""
    window_ms = None if window is None else delay_ms(window, field="window")
    if window_ms is not None and window_ms > SPREAD_LIMIT_MS:
        most = format_duration(SPREAD_LIMIT_MS)
        raise MessageError("too_far", "window", f"got {format_duration(window_ms)}; at most {most}")
    return window_ms


def plan_change(place: str, plan: Retry, kinds: Mapping[str, str]) -> dict[str, Any]:
    """The change of a place's rule that sets a plan; MessageError."""
    if plan is None:
        return {"retry": None, "dead_letter": None}
    checked = check_plan(plan, kinds, within(place, kinds), to_dead_set=True) or MessagePlan()
    # In a mapping, None removes a field.
    given = set(plan) if isinstance(plan, Mapping) else set()
    fields = {
        name: value
        for name in checked.__struct_fields__
        if (value := getattr(checked, name)) is not None or name in given
    }
    change: dict[str, Any] = {"retry": {n: v for n, v in fields.items() if n in _OF_RETRY}}
    return change | {n: v for n, v in fields.items() if n not in _OF_RETRY}


def within(place: str, kinds: Mapping[str, str]) -> Destination | None:
    """The destination that a place is, or any of its broker; None if that is unknown."""
    broker = place.partition(":")[0]
    if broker not in kinds:
        return None
    with suppress(MessageError):
        return parse_destination(place, kinds)
    return Destination(broker, kinds[broker], "")
