"""What a client says about the time to come."""

from __future__ import annotations

from delaybridge.client.requests import OfAsyncClient, OfClient, Requests
from delaybridge.errors import MessageError, shown
from delaybridge.store.command import Steps
from delaybridge.store.horizon import Horizon, check_cells
from delaybridge.times import Delay, delay_ms, format_duration

_STEPS = 60  # cells, unless a step is given


class LooksAhead(OfClient):
    """What is to come, for `Client`."""

    def horizon(
        self, span: Delay = "1h", step: Delay = None, *, destination: str | None = None
    ) -> Horizon:
        """How many messages fall due in each part of the coming time, as Redis counts them.

        Args:
            span: `"6h"`, a timedelta, or seconds; how far to look ahead.
            step: the length of a cell; by default a sixtieth of the span. A cell begins at a
                multiple of the step, in UTC.
            destination: only of this destination, exchange (`rabbitmq:orders`) or broker. If
                thousands are pending, the numbers are estimated from some thousand of them, and
                each cell says by how much it may be wrong.

        Raises:
            MessageError: an argument is wrong, or there were more than 1000 cells.
        """
        return self._store.complete(_horizon(self._requests, span, step, destination))


class AsyncLooksAhead(OfAsyncClient):
    """The same for `AsyncClient`."""

    async def horizon(
        self, span: Delay = "1h", step: Delay = None, *, destination: str | None = None
    ) -> Horizon:
        """How many messages fall due in each part of the coming time; as `Client.horizon`."""
        return await self._store.complete(_horizon(self._requests, span, step, destination))


def _horizon(
    requests: Requests, span: Delay, step: Delay, destination: str | None
) -> Steps[Horizon]:
    span_ms = _length_ms(span, "span")
    step_ms = max(1, span_ms // _STEPS) if step is None else _length_ms(step, "step")
    if step_ms > span_ms:
        longer, whole = format_duration(step_ms), format_duration(span_ms)
        raise MessageError("bad_time", "step", f"{longer} is longer than the span, {whole}")
    check_cells(span_ms, step_ms)
    if not isinstance(destination, str | None):
        raise MessageError("bad_destination", "destination", f"got {shown(destination)}")
    return requests.calls.horizon(span_ms, step_ms, destination)


def _length_ms(value: Delay, field: str) -> int:
    if value is None:
        raise MessageError("bad_time", field, "missing; write a number with a unit, as 1h")
    found = delay_ms(value, field=field)
    if not found:
        raise MessageError("bad_time", field, "is zero; give 1ms or more")
    return found
