"""The methods of the clients that show and steer destinations."""

from __future__ import annotations

from collections import Counter
from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from typing import Any

from delaybridge.accept.plan import check_plan
from delaybridge.backoff import RetryPlan
from delaybridge.client.requests import OfAsyncClient, OfClient, Requests
from delaybridge.errors import MessageError, shown
from delaybridge.message import Answer, MessagePlan, Retry, State
from delaybridge.operate.views.destinations import Places, list_destinations, within
from delaybridge.store.messages.selection import PENDING, Selected, Selection
from delaybridge.store.namespace.rules import RATE_LIMIT, SPREAD_LIMIT_MS, Rule, place_of
from delaybridge.store.protocol.command import Steps
from delaybridge.times import Delay, delay_ms, format_duration

_PASSES = 10  # of a purge
CALL_MESSAGES = 250  # a pipeline that keeps Redis busy for about 4 ms
_OF_RETRY = RetryPlan.__struct_fields__


class Steers(OfClient):
    """Shows and steers destinations, for `Client`.

    A destination is a broker (`rabbitmq`), an exchange or topic (`rabbitmq:orders`) or a whole
    destination (`rabbitmq:orders/close`). Its rule holds for all of its messages and is kept in
    Redis. When a method returns, the rule is stored; each worker obeys it within a second.
    Messages that were handed to a broker before then go out.

    Every method raises MessageError if an argument is wrong: `destination` if its broker is not
    configured.
    """

    select: Callable[[Selection], Iterator[list[Selected]]]
    cancel_many: Callable[[Sequence[Selected]], list[Answer]]

    def destinations(self, destination: str | None = None) -> Places:
        """What waits for each destination, the rules in force, and why messages do not go out.

        Counted as by `counts`: beyond 2000 messages in one state the numbers are estimates, and say
        by how much they may be wrong.

        Args:
            destination: only this one, whether or not it has messages.
        """
        return self._store.complete(list_destinations(self._requests.calls, destination))

    def pause(self, destination: str) -> Rule:
        """Publish nothing to a destination: what falls due waits, in order.

        Waiting costs no attempt. A message whose ttl passes meanwhile expires.
        """
        return self._store.complete(self._requests.calls.pause(destination))

    def resume(self, destination: str) -> Rule:
        """End a pause: what waited goes out, the earliest first.

        A pause of a broader place (its exchange, its broker) stays in force.
        """
        return self._store.complete(self._requests.calls.resume(destination))

    def limit(self, destination: str, rate: float | None) -> Rule:
        """Publish at most `rate` messages a second, of all workers together; None: no limit.

        If broader places have limits, each of them holds as well.
        """
        return self._store.complete(_limit(self._requests, destination, rate))

    def spread(self, destination: str, window: Delay) -> Rule:
        """Let messages due in one instant leave over this time, none of them early; None: end it.

        Args:
            destination: it replaces the window of a broader place; `"0s"` takes it away here.
            window: as `"10m"`; at most a day.
        """
        return self._store.complete(_spread(self._requests, destination, window))

    def retry_plan(self, destination: str, plan: Retry) -> Rule:
        """Set what happens after failed publishes; None: as the settings of the workers say.

        Args:
            destination: its fields come before those of broader places; a message's own come
                before them.
            plan: fields of a `MessagePlan`; those not given stay. In a mapping, None removes a
                field, and `{"dead_letter": ""}` means the dead set, whatever else is set.
        """
        return self._store.complete(_retry_plan(self._requests, destination, plan))

    def set_rule(
        self,
        destination: str,
        *,
        rate: float | None = None,
        spread: Delay = None,
        retry: Retry = None,
    ) -> Rule:
        """Set the whole rule of a destination at once: what is not given is not set any more.

        A pause stays as it is. The arguments are those of `limit`, `spread` and `retry_plan`.
        """
        return self._store.complete(_rule(self._requests, destination, rate, spread, retry))

    def purge(self, destination: str) -> Mapping[Answer, int]:
        """Cancel all messages of a destination, also parked and paused ones; delete dead ones.

        Returns:
            How many got each answer of `cancel`. Those answered `in_flight` were too late: handed
            to the broker. None of the others is delivered. Messages scheduled meanwhile may stay.
        """
        purge = Purge(destination)
        while not purge.is_done:
            for page in self.select(purge.selection):
                for some in purge.parts(page):
                    purge.count(self.cancel_many(some))
            purge.end_pass()
        return purge.answers


class AsyncSteers(OfAsyncClient):
    """The same for `AsyncClient`."""

    select: Callable[[Selection], AsyncIterator[list[Selected]]]
    cancel_many: Callable[[Sequence[Selected]], Awaitable[list[Answer]]]

    async def destinations(self, destination: str | None = None) -> Places:
        """What waits for each destination, and its rules; as `Client.destinations`."""
        return await self._store.complete(list_destinations(self._requests.calls, destination))

    async def pause(self, destination: str) -> Rule:
        """Publish nothing to a destination: what falls due waits; as `Client.pause`."""
        return await self._store.complete(self._requests.calls.pause(destination))

    async def resume(self, destination: str) -> Rule:
        """End a pause; as `Client.resume`."""
        return await self._store.complete(self._requests.calls.resume(destination))

    async def limit(self, destination: str, rate: float | None) -> Rule:
        """At most `rate` messages a second, None: no limit; as `Client.limit`."""
        return await self._store.complete(_limit(self._requests, destination, rate))

    async def spread(self, destination: str, window: Delay) -> Rule:
        """Let messages due in one instant leave over this time; as `Client.spread`."""
        return await self._store.complete(_spread(self._requests, destination, window))

    async def retry_plan(self, destination: str, plan: Retry) -> Rule:
        """What happens after failed publishes; as `Client.retry_plan`."""
        return await self._store.complete(_retry_plan(self._requests, destination, plan))

    async def set_rule(
        self,
        destination: str,
        *,
        rate: float | None = None,
        spread: Delay = None,
        retry: Retry = None,
    ) -> Rule:
        """Set the whole rule of a destination at once, but its pause; as `Client.set_rule`."""
        return await self._store.complete(_rule(self._requests, destination, rate, spread, retry))

    async def purge(self, destination: str) -> Mapping[Answer, int]:
        """Cancel all messages of a destination, and delete dead ones; as `Client.purge`."""
        purge = Purge(destination)
        while not purge.is_done:
            async for page in self.select(purge.selection):
                for some in purge.parts(page):
                    purge.count(await self.cancel_many(some))
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


def _limit(requests: Requests, destination: str, rate: float | None) -> Steps[Rule]:
    return requests.calls.steer(destination, {"rate": _rate(rate)})


def _rate(rate: float | None) -> float | None:
    """The rate; MessageError if it is none."""
    if rate is not None:
        is_number = isinstance(rate, int | float) and not isinstance(rate, bool)
        if is_number and rate == 0:
            raise MessageError("bad_rate", "rate", "0 would let nothing pass; use pause")
        if not is_number or not 0 < rate <= RATE_LIMIT:
            detail = f"got {shown(rate)}; give messages a second, up to {RATE_LIMIT:,.0f}"
            raise MessageError("bad_rate", "rate", detail)
    return rate


def _spread(requests: Requests, destination: str, window: Delay) -> Steps[Rule]:
    return requests.calls.steer(destination, {"spread_ms": _window_ms(window)})


def _window_ms(window: Delay) -> int | None:
    """The window in milliseconds; MessageError if it is too long."""
    window_ms = None if window is None else delay_ms(window, field="window")
    if window_ms is not None and window_ms > SPREAD_LIMIT_MS:
        most = format_duration(SPREAD_LIMIT_MS)
        raise MessageError("too_far", "window", f"got {format_duration(window_ms)}; at most {most}")
    return window_ms


def _rule(
    requests: Requests, destination: str, rate: float | None, spread: Delay, plan: Retry
) -> Steps[Rule]:
    place = place_of(destination, requests.calls.kinds)
    whole: dict[str, Any] = {"retry": None, "dead_letter": None}
    whole |= plan_change(place, plan, requests.calls.kinds)
    whole |= {"rate": _rate(rate), "spread_ms": _window_ms(spread)}
    return requests.calls.steer(place, whole)


def _retry_plan(requests: Requests, destination: str, plan: Retry) -> Steps[Rule]:
    place = place_of(destination, requests.calls.kinds)
    return requests.calls.steer(place, plan_change(place, plan, requests.calls.kinds))


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
