"""What a client says about what there is, what was and what is to come."""

from __future__ import annotations

from typing import Literal

from delaybridge.client.requests import OfAsyncClient, OfClient, Requests
from delaybridge.errors import MessageError, shown
from delaybridge.operate.views.horizon import Horizon, check_cells, read_horizon
from delaybridge.operate.views.series import STEPS, Recent, Series, read_rates, read_series
from delaybridge.operate.views.tally import DestinationCounts, count_by_destination
from delaybridge.store.protocol.command import Steps
from delaybridge.times import YEAR_3000_MS, Delay, delay_ms, format_duration

_STEPS = 60  # cells, unless a step is given


class Overview(OfClient):
    """What there is, what was and what is to come, for `Client`."""

    def counts(self, by: Literal["destination"] = "destination") -> list[DestinationCounts]:
        """How many messages each destination has in each state, the one with the most first.

        Up to 2000 messages of each state are read, about 6 us of Redis' time for each. If there are
        more, they are drawn at random: each number is an estimate and says by how much it may be
        wrong, and a destination with very few messages may be missing.

        Raises:
            MessageError: `by` is anything else than "destination".
            StoreDamaged: a key is damaged.
        """
        return self._store.complete(_counts(self._requests, by))

    def series(self, step: Literal["1s", "1m", "30m"] = "1s") -> Series:
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
        return self._store.complete(_series(self._requests, step))

    def rates(self) -> Recent:
        """Messages per second, and lateness, of the last second, minute and quarter of an hour."""
        return self._store.complete(read_rates(self._requests.calls))

    def horizon(
        self,
        span: Delay = "1h",
        step: Delay = None,
        *,
        destination: str | None = None,
        from_ms: int | None = None,
    ) -> Horizon:
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
        return self._store.complete(_horizon(self._requests, span, step, destination, from_ms))


class AsyncOverview(OfAsyncClient):
    """The same for `AsyncClient`."""

    async def counts(self, by: Literal["destination"] = "destination") -> list[DestinationCounts]:
        """How many messages each destination has in each state; as `Client.counts`."""
        return await self._store.complete(_counts(self._requests, by))

    async def series(self, step: Literal["1s", "1m", "30m"] = "1s") -> Series:
        """What the fleet counted in each of the last periods; as `Client.series`."""
        return await self._store.complete(_series(self._requests, step))

    async def rates(self) -> Recent:
        """Messages per second and lateness of the last 1 s, 1 min, 15 min; as `Client.rates`."""
        return await self._store.complete(read_rates(self._requests.calls))

    async def horizon(
        self,
        span: Delay = "1h",
        step: Delay = None,
        *,
        destination: str | None = None,
        from_ms: int | None = None,
    ) -> Horizon:
        """How many messages fall due in each part of the coming time; as `Client.horizon`."""
        return await self._store.complete(
            _horizon(self._requests, span, step, destination, from_ms)
        )


def _counts(requests: Requests, by: str) -> Steps[list[DestinationCounts]]:
    if by != "destination":
        raise MessageError("bad_count", "by", f"got {shown(by)}; write destination")
    return count_by_destination(requests.calls)


def _series(requests: Requests, step: str) -> Steps[Series]:
    if step not in STEPS:
        raise MessageError("bad_time", "step", f"got {shown(step)}; write {' or '.join(STEPS)}")
    return read_series(requests.calls, step)


def _horizon(
    requests: Requests, span: Delay, step: Delay, destination: str | None, from_ms: int | None
) -> Steps[Horizon]:
    span_ms = _length_ms(span, "span")
    step_ms = max(1, span_ms // _STEPS) if step is None else _length_ms(step, "step")
    if step_ms > span_ms:
        longer, whole = format_duration(step_ms), format_duration(span_ms)
        raise MessageError("bad_time", "step", f"{longer} is longer than the span, {whole}")
    check_cells(span_ms, step_ms)
    if not isinstance(destination, str | None):
        raise MessageError("bad_destination", "destination", f"got {shown(destination)}")
    if from_ms is not None and not 0 <= from_ms <= YEAR_3000_MS:
        raise MessageError("bad_time", "from_ms", f"got {shown(from_ms)}; give epoch ms")
    return read_horizon(requests.calls, span_ms, step_ms, destination, from_ms)


def _length_ms(value: Delay, field: str) -> int:
    if value is None:
        raise MessageError("bad_time", field, "missing; write a number with a unit, as 1h")
    found = delay_ms(value, field=field)
    if not found:
        raise MessageError("bad_time", field, "is zero; give 1ms or more")
    return found
