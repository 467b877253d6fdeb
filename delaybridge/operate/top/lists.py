"""The lists of `delaybridge top`: destinations, workers, buckets. One line can be selected."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from rich.text import Text

from delaybridge.errors import printable
from delaybridge.operate.terminal.layout import table
from delaybridge.operate.terminal.output import rate_text
from delaybridge.operate.terminal.rows import bucket_row
from delaybridge.operate.top.controls import DESTINATIONS, View
from delaybridge.operate.top.picture import Picture
from delaybridge.operate.views.described import tally_text
from delaybridge.operate.views.destinations import FLOWING, Place
from delaybridge.times import in_time

if TYPE_CHECKING:
    from delaybridge import Stats
    from delaybridge.operate.notices.announcements import FrontInfo, IngestInfo, WorkerInfo

Row = Mapping[str, str]
_SPARE = ("STARTED", "VERSION", "EXPIRES", "NEXT DUE", "LEASE", ">DEAD", ">IN FLIGHT", ">PARKED")


def listed(picture: Picture, stats: Stats, view: View, width: int, room: int) -> list[Text]:
    """The list of the present tab in `room` lines, scrolled to what is selected.

    Tells the view the names of its lines.
    """
    if view.tab <= DESTINATIONS:
        rows, none = dict(_destinations(picture)), "no messages, no rules"
    elif view.tab == 2:
        rows, none = dict(_processes(stats)), "no worker runs; start one: delaybridge scan"
    else:
        rows, none = dict(_buckets(stats)), ""
    names = list(rows)
    view.names = names if view.tab else ()
    if not rows:
        return [Text(none, style="dim")]
    head, *lines = table(list(rows.values()), _SPARE, width)
    shown = max(room - 1, 1)
    at = names.index(view.selected) if view.selected in rows else 0
    first = max(0, min(at - shown // 2, len(lines) - shown))
    body = [
        Text(line, style="reverse" if name == view.selected else "")
        for name, line in zip(names, lines, strict=True)
    ][first : first + shown]
    left = len(lines) - shown
    title = Text(head, style="bold")
    if left > 0 and view.tab:
        title.append(f"  {first + 1}-{first + len(body)} of {len(lines)}", style="dim")
    return [title, *body]


def _destinations(picture: Picture) -> Iterator[tuple[str, Row]]:
    """Places with messages, a rule or trouble: the one with the most messages first."""
    if picture.places is None:
        return
    # Messages a second of the last minute, by destination.
    rates = picture.recent.rates[1].destinations if picture.recent else {}
    for each in sorted(picture.places.places, key=_most_first):
        out = rates.get(each.place, {}).get("published")
        yield (
            each.place,
            {
                "DESTINATION": printable(each.place),
                ">DELAYED": tally_text(each.delayed),
                ">IN FLIGHT": tally_text(each.in_flight),
                ">PARKED": tally_text(each.parked),
                ">DEAD": tally_text(each.dead),
                ">OUT/s": "" if out is None else rate_text(out),
                "STATE": "" if each.state == FLOWING else each.state,
            },
        )


def _most_first(each: Place) -> tuple[int, str]:
    return -sum(tally.messages for tally in each[1:5]), each.place


def _processes(stats: Stats) -> Iterator[tuple[str, Row]]:
    for each in stats.workers:
        yield f"scan {each.name}", _process("scan", each, f"{each.buckets} buckets", stats)
    for process in stats.ingests:
        states = ", ".join(f"{source.source}: {source.condition}" for source in process.sources)
        yield f"ingest {process.name}", _process("ingest", process, states, stats)

    for front in stats.fronts:
        work = f"{front.listen}: {front.open or 0} connections; {front.unreached or 'well'}"
        yield f"front {front.name}", _process("front", front, work, stats)


def _process(kind: str, each: WorkerInfo | IngestInfo | FrontInfo, work: str, stats: Stats) -> Row:
    return {
        "PROCESS": kind,
        "NAME": printable(each.name),
        "WORK": printable(work),
        "VERSION": printable(each.version),
        "STARTED": "?" if each.started_ms is None else in_time(each.started_ms - stats.now_ms),
        "EXPIRES": in_time(each.expires_ms - stats.now_ms),
    }


def _buckets(stats: Stats) -> Iterator[tuple[str, Row]]:
    for each in stats.buckets:
        cells = bucket_row(each, stats.now_ms).items()
        row = {title: f"{cell:,}" if isinstance(cell, int) else cell for title, cell in cells}
        yield str(each.bucket), {title: printable(cell) for title, cell in row.items()}
