"""`delaybridge horizon`: how many messages fall due in the coming time, as bars."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import click

from delaybridge.operate.terminal.grammar import Command, option, pass_call
from delaybridge.operate.terminal.invocation import Invocation
from delaybridge.operate.terminal.output import moment_and_wait
from delaybridge.operate.terminal.streams import is_utf
from delaybridge.operate.views.described import moment, plain, retrying_text

if TYPE_CHECKING:
    from delaybridge import Horizon

_BAR_CELLS = 30
_DAY_MS = 86_400_000
_NAMED = 3  # failing destinations
_EIGHTHS = " ▏▎▍▌▋▊▉"
_PLACE = "Only this destination, exchange (rabbitmq:orders) or broker; of many an estimate."


@click.command("horizon", cls=Command)
@option("--for --span DURATION", "How far to look ahead.", to="span", default="1h")
@option("--step DURATION", "Time per bar. [default: a sixtieth]")
@option("--destination D", _PLACE)
@pass_call
def horizon(call: Invocation, span: str, step: str | None, destination: str | None) -> None:
    """Show how many messages fall due in the coming time, in bars with numbers.

    Bars begin at whole multiples of --step in UTC, the first one now.
    """
    with call.client() as client:
        found = client.horizon(span, step, destination=destination)
    output = call.output
    if output.json:
        output.result(plain(found) | {"estimated": found.is_estimated}, "")
        return
    labels = list(_labels(found))
    most = max(cell.messages for cell in found.cells)
    counts = [f"{cell.messages:,}" for cell in found.cells]
    errors = [
        f" {'±' if is_utf() else '+-'}{cell.error:,}" if found.is_estimated else ""
        for cell in found.cells
    ]
    wide, wider = max(map(len, counts)), max(map(len, errors))
    for cell, label, count, error in zip(found.cells, labels, counts, errors, strict=True):
        drawn = bar(cell.messages, most, _BAR_CELLS).ljust(_BAR_CELLS)
        peak = "  <- peak" if cell is found.fullest else ""
        output.line(f"{label}  {drawn}  {count.rjust(wide)}{error.ljust(wider)}{peak}".rstrip())
    output.line()
    output.fields(_facts(found, span, destination))


def bar(count: float, most: float, cells: int) -> str:
    """A bar of up to `cells` cells for `most`; anything above zero shows."""
    eighths = max(round(count / most * cells * 8), 1) if count and most else 0
    if not is_utf():
        return "#" * -(-eighths // 8)
    return ("█" * (eighths // 8) + _EIGHTHS[eighths % 8]).rstrip()


def _labels(found: Horizon) -> Iterator[str]:
    """When each cell begins: the day only if there is more than one, parts if cells are short."""
    starts = [cell.from_ms for cell in found.cells]
    is_long = found.cells[-1].to_ms - found.now_ms > _DAY_MS
    steps_ms = [later - start for start, later in zip(starts[1:], starts[2:], strict=False)]
    least_ms = min(steps_ms, default=1000)
    end = 16 if least_ms % 60_000 == 0 else 19 if least_ms % 1000 == 0 else 23
    for start in starts:
        yield (moment(start) or "")[0 if is_long else 11 : end].replace("T", " ")


def _facts(found: Horizon, span: str, destination: str | None) -> Iterator[tuple[str, object]]:
    about = "about " if found.is_estimated else ""
    of = f" to {destination}" if destination else ""
    total = found.messages + found.overdue + found.later
    pending = total if destination else total + found.in_flight + found.parked
    yield f"next {span}", f"{about}{found.messages:,} of {about}{pending:,} pending{of}"
    if (cell := found.busiest) is not None:
        until = f"{(moment(cell.from_ms) or '')[11:-1]} to {(moment(cell.to_ms) or '')[11:]}"
        yield "peak", f"{cell.messages:,} from {until}"
    yield "later", f"{about}{found.later:,}"
    yield "overdue", f"{about}{found.overdue:,}" if found.overdue else "nothing"
    if found.next_due_ms is not None:
        quiet = found.next_due_ms >= found.cells[0].to_ms
        yield (
            "quiet until" if quiet else "next due",
            moment_and_wait(found.next_due_ms, found.now_ms),
        )
    elif not (found.messages or found.later):
        yield "next due", "-"
    for each in found.retrying[:_NAMED]:
        yield "retrying", retrying_text(each, found.now_ms)
    apart = " (all destinations)" if destination else ""
    yield "in flight", f"{found.in_flight:,} claimed: due in seconds, or being delivered{apart}"
    yield "parked", f"{found.parked:,}{apart}" if found.parked else None
