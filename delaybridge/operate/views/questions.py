"""Questions of clients to the views: each function checks its arguments, then returns the steps."""

from __future__ import annotations

from dataclasses import replace

from delaybridge.errors import MessageError, quoted
from delaybridge.message import State
from delaybridge.operate.views.destinations import check_broker
from delaybridge.operate.views.horizon import Horizon, check_cells, read_horizon
from delaybridge.operate.views.listing import Cursor, Page, read_page
from delaybridge.operate.views.series import STEPS, Series, read_series
from delaybridge.operate.views.tally import DestinationCounts, count_by_destination
from delaybridge.store.calls import Calls
from delaybridge.store.messages.record_filters import ANY, Conditions
from delaybridge.store.namespace.rules import place_of
from delaybridge.store.protocol.verbs import Steps
from delaybridge.times import YEAR_3000_MS, Delay, delay_ms, format_duration

Span = tuple[int | None, int | None]  # the first and the last due time
_STEPS = 60  # cells, unless a step is given
_MAX_PAGE_MESSAGES = 1000


def page(
    calls: Calls,
    state: State,
    destination: str | None,
    span_ms: Span,
    limit: int,
    cursor: Cursor | None,
    *,
    partial: bool = False,
    conditions: Conditions = ANY,
) -> Steps[Page]:
    """One page of messages, as `Client.pending`; partial, conditions: as of `read_page`."""
    if state not in [*State]:
        raise MessageError("bad_state", "state", f"got {quoted(state)}; see State")
    for name, due_ms in zip(("due_from_ms", "due_to_ms"), span_ms, strict=True):
        if due_ms is not None and not _is_number(due_ms):
            raise MessageError("bad_time", name, f"got {quoted(due_ms)}; give epoch ms")
    if not _is_number(limit):
        what = f"got {quoted(limit)}; give 1 to {_MAX_PAGE_MESSAGES}"
        raise MessageError("bad_limit", "limit", what)
    if cursor is not None and not _is_cursor(cursor):
        raise MessageError("bad_cursor", "cursor", "give the cursor of a page")
    limit = max(1, min(limit, _MAX_PAGE_MESSAGES))
    destination = _place(calls, destination)
    conditions = replace(conditions, place=_place(calls, conditions.place))
    asked = State(state), destination, span_ms, limit, cursor, partial, conditions
    return _checked(calls, destination or conditions.place, read_page(calls, *asked))


def _checked(calls: Calls, place: str | None, page: Steps[Page]) -> Steps[Page]:
    found = yield from page
    if not (found.items or found.cursor or found.unseen):
        yield from check_broker(calls, place)
    return found


def counts(calls: Calls, by: str) -> Steps[list[DestinationCounts]]:
    """Messages by destination and state, as `Client.counts`."""
    if by != "destination":
        raise MessageError("bad_count", "by", f"got {quoted(by)}; write destination")
    return count_by_destination(calls)


def series(calls: Calls, step: str) -> Steps[Series]:
    """What the fleet counted lately, as `Client.series`."""
    if step not in STEPS:
        raise MessageError("bad_time", "step", f"got {quoted(step)}; write {' or '.join(STEPS)}")
    return read_series(calls, step)


def horizon(
    calls: Calls, span: Delay, step: Delay, destination: str | None, from_ms: int | None
) -> Steps[Horizon]:
    """What falls due in each part of a span, as `Client.horizon`."""
    span_ms = _length_ms(span, "span")
    step_ms = max(1, span_ms // _STEPS) if step is None else _length_ms(step, "step")
    if step_ms > span_ms:
        longer, whole = format_duration(step_ms), format_duration(span_ms)
        raise MessageError("bad_time", "step", f"{longer} is longer than the span, {whole}")
    check_cells(span_ms, step_ms)
    destination = _place(calls, destination)
    if from_ms is not None and not 0 <= from_ms <= YEAR_3000_MS:
        raise MessageError("bad_time", "from_ms", f"got {quoted(from_ms)}; give epoch ms")
    return read_horizon(calls, span_ms, step_ms, destination, from_ms)


def _place(calls: Calls, text: str | None) -> str | None:
    return None if text is None else place_of(text, calls.kinds)


def _length_ms(value: Delay, field: str) -> int:
    if value is None:
        raise MessageError("bad_time", field, "missing; write a number with a unit, as 1h")
    found = delay_ms(value, field=field)
    if not found:
        raise MessageError("bad_time", field, "is zero; give 1ms or more")
    return found


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and abs(value) < 2**63


def _is_cursor(cursor: object) -> bool:
    if not isinstance(cursor, tuple) or len(cursor) != 2:
        return False
    score, id = cursor
    return _is_number(score) and isinstance(id, str) and id.isprintable()
