"""`delaybridge stats`: how many messages there are, and what happens to them."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, TypeAlias

import click

from delaybridge.operate.cli.watching.fleet import show_buckets, show_sources
from delaybridge.operate.notices import repairs
from delaybridge.operate.notices.announcements import LedgerDrift, waiting_text
from delaybridge.operate.notices.silent_buckets import numbers
from delaybridge.operate.terminal.failure import Exit, failure_of
from delaybridge.operate.terminal.grammar import DURATION, Command, option, pass_call
from delaybridge.operate.terminal.invocation import Invocation
from delaybridge.operate.terminal.output import rate_text
from delaybridge.operate.terminal.rows import paused_row, retrying_row
from delaybridge.operate.terminal.streams import stdout_is_closed
from delaybridge.operate.troubles.found import troubles
from delaybridge.operate.views.described import (
    moment,
    stats_data,
    unowned,
    window_text,
)
from delaybridge.operate.views.facts import fullest
from delaybridge.recurring.summary import DefinitionCounts, count_definitions
from delaybridge.store.namespace.history_alarm import setbacks_text
from delaybridge.times import in_time, roughly

if TYPE_CHECKING:
    from delaybridge import Client, Rates, Recent, Stats
    from delaybridge.operate.views.bucket_counts import BucketStats
    from delaybridge.operate.views.tally import DestinationCounts, Tally

_STATES = ("delayed", "in_flight", "parked", "dead")
_ALWAYS = ("scheduled", "published", "retried")
_IF_ANY = ("cancelled", "rescheduled", "buried", "dead_lettered", "dropped")
_LEAST_MS = 100  # between two looks
_LOOK_S = 1.0  # a reader that goes away is noticed within this time
_CLEAR = "\x1b[H\x1b[2J"
_Show: TypeAlias = "Callable[[Invocation, Client], Exit]"
_BY = click.Choice(["destination", "bucket", "worker"])
_SILENT_SHOWN = 3
_NO_REASON = "it has just started, or its version reports nothing"


@click.command("stats", cls=Command)
@option("-i --interval", "Repeat this often until Ctrl-C.", to="interval_ms", type=DURATION)
@option("--by", "Count by this. Of many messages, destinations are estimated: ±n.", type=_BY)
@pass_call
def stats(call: Invocation, interval_ms: int | None, by: str | None) -> int:
    """Count messages by state; how many are scheduled and published each second, and how late.

    Rates are of the last second, minute and quarter of an hour, as the workers reported them.
    """
    show = _BY_SHOWN[by]
    with call.client(reads=True) as client:
        if interval_ms is None:
            return show(call, client)
        try:
            _repeat(call, client, show, max(interval_ms, _LEAST_MS) / 1000)
        except KeyboardInterrupt:
            pass  # the usual end
    return Exit.DONE


def _repeat(call: Invocation, client: Client, show: _Show, every_s: float) -> None:
    """Until stdout is closed. Redis must answer the first time; later, each silence is said."""
    from delaybridge.errors import StoreError

    in_place = call.output.is_watched and os.environ.get("TERM", "dumb") != "dumb"
    planned_s, is_first = time.monotonic(), True
    while not stdout_is_closed():
        if in_place:
            click.echo(_CLEAR, nl=False)
        elif not is_first:
            call.output.line()
        try:
            show(call, client)
        except StoreError as exc:
            if is_first:
                raise
            failure_of(exc).show(as_json=call.output.json)
        is_first = False
        planned_s += every_s
        if (late_s := time.monotonic() - planned_s) > 0:  # what was missed is left out
            planned_s += every_s * (late_s // every_s + 1)
        while (left_s := planned_s - time.monotonic()) > 0 and not stdout_is_closed():
            time.sleep(min(left_s, _LOOK_S))


def _all(call: Invocation, client: Client) -> Exit:
    found, recent, output = client.stats(), client.rates(), call.output
    definitions = client.run(count_definitions)
    if output.json:
        output.result(stats_data(found, definitions, recent), "")
        return call.say_unseen(found.unseen)
    output.table(_STATES, lambda s: {"STATE": s, ">MESSAGES": f"{getattr(found, s):,}"})
    if not recent.missing:
        output.line()
        names = [*_ALWAYS, *(n for n in _IF_ANY if any(r.per_s.get(n) for r in recent.rates))]
        output.table(names, lambda name: {"RATE/s": name} | _rate_cells(recent, name))
        late = [each for each in recent.rates[1:] if each.lateness is not None]
        if late:
            output.line()
            output.table(late, _lateness_row)
    output.line()
    output.fields([*_facts(found), *_recurring_facts(definitions), *_rate_facts(recent)])
    if found.retrying:
        output.line()
        output.table(found.retrying, lambda each: retrying_row(each, found), spare=("EXAMPLE",))
    if found.paused:
        output.line()
        output.table(found.paused, lambda each: paused_row(each, found.now_ms))
    if wrong := troubles(found, client.run(lambda calls: fullest(calls.placement))):
        output.line()
        output.table(wrong, lambda each: {"WRONG": each.code, "WHAT": each.what})
        output.line("what to do: delaybridge doctor")
    if found.ingests:
        output.line()
        show_sources(call, found)
    return call.say_unseen(found.unseen)


def _by_destination(call: Invocation, client: Client) -> Exit:
    recent = client.rates()
    minute = recent.rates[1]
    counts = {each.destination: each for each in client.counts()}
    names = [*counts, *sorted(minute.destinations.keys() - counts.keys())]
    call.output.table(
        names,
        lambda name: _destination_row(name, counts.get(name), minute),
        spare=(">BURIED/s", ">RETRIED/s", ">IN FLIGHT"),
        data=lambda name: _destination_data(name, counts.get(name), minute),
    )
    if not names:
        call.note("no messages, and none in the last minute")
    for name, value in _rate_facts(recent):
        call.note(f"{name}: {value}")
    return Exit.DONE


def _by_bucket(call: Invocation, client: Client) -> Exit:
    found = client.stats()
    show_buckets(call, found)
    return call.say_unseen(found.unseen)


def _by_worker(call: Invocation, client: Client) -> Exit:
    found = client.stats()
    owned: dict[str | None, list[BucketStats]] = {each.name: [] for each in found.workers}
    for bucket in found.buckets:
        if not bucket.unseen:
            owned.setdefault(bucket.owner, []).append(bucket)
    rows = [_owner_data(owner, buckets) for owner, buckets in owned.items()]
    call.output.table(
        rows,
        lambda row: {
            "WORKER": str(row["worker"] or "none"),
            ">BUCKETS": f"{row['buckets']:,}",
            **{f">{_title(state)}": f"{row[state]:,}" for state in _STATES},
            "OVERDUE": roughly(int(row["overdue_ms"] or 0)) if row["overdue_ms"] else "-",
        },
        data=lambda row: row,
    )
    return call.say_unseen(found.unseen)


_BY_SHOWN: Mapping[str | None, _Show] = {
    None: _all,
    "destination": _by_destination,
    "bucket": _by_bucket,
    "worker": _by_worker,
}


def _title(state: str) -> str:
    return state.replace("_", " ").upper()


def _owner_data(owner: str | None, buckets: list[BucketStats]) -> dict[str, str | int | None]:
    sums = {state: sum(getattr(each, state) for each in buckets) for state in _STATES}
    overdue_ms = max((each.overdue_ms for each in buckets), default=0)
    return {"worker": owner, "buckets": len(buckets), **sums, "overdue_ms": overdue_ms}


def _destination_row(
    name: str, counts: DestinationCounts | None, minute: Rates
) -> dict[str, str | int]:
    of = minute.destinations.get(name, {})
    return {
        "DESTINATION": name,
        **{f">{_title(s)}": _tally(getattr(counts, s)) if counts else "0" for s in _STATES},
        ">OUT/s": _rate(of.get("published", 0.0), minute),
        ">RETRIED/s": _rate(of.get("retried", 0.0), minute),
        ">BURIED/s": _rate(of.get("buried", 0.0), minute),
    }


def _destination_data(
    name: str, counts: DestinationCounts | None, minute: Rates
) -> dict[str, object]:
    """A number with `_error` is an estimate, wrong by at most that in 95 of 100 cases."""
    data: dict[str, object] = {"destination": name}
    for state in _STATES:
        messages, error = getattr(counts, state) if counts else (0, 0)
        data |= {state: messages, f"{state}_error": error}
    known = minute.destinations.get(name, {})
    return data | {"per_s": {of: round(value, 3) for of, value in known.items()}}


def _tally(tally: Tally) -> str:
    return f"{tally.messages:,}" + (f" ±{tally.error:,}" if tally.error else "")


def _rate(per_s: float, of: Rates) -> str:
    """A rate; `-` if no worker reported in this window."""
    return rate_text(per_s) if of.covered_s else "-"


def _rate_cells(recent: Recent, name: str) -> dict[str, str]:
    return {f">{window_text(r)}": _rate(r.per_s.get(name, 0.0), r) for r in recent.rates}


def _lateness_row(each: Rates) -> dict[str, str]:
    p50_ms, p99_ms, max_ms = each.lateness or (0.0, 0.0, 0)
    return {
        "LATENESS": window_text(each),
        ">p50": _late(p50_ms),
        ">p99": _late(p99_ms),
        ">max": _late(max_ms),
    }


def _late(ms: float) -> str:
    return f"{ms:.1f}ms" if ms < 100 else roughly(round(ms))


def _rate_facts(recent: Recent) -> Iterator[tuple[str, object]]:
    """Reasons why the rates are not those of the whole fleet."""
    if recent.missing:
        yield "rates", f"none: {recent.missing}"
        return
    minute, quarter = recent.rates[1:]
    if not quarter.covered_s:
        yield "rates", "none: no worker reported in the last 15m"
    elif quarter.covered_s < min(quarter.window_s, 60) or minute.covered_s < minute.window_s:
        since_s = quarter.covered_s if quarter.covered_s < 60 else minute.covered_s
        yield "rates", f"the first report is {roughly(round(since_s * 1000))} old"
    for name, reason in list(recent.silent.items())[:_SILENT_SHOWN]:
        yield "not in rates", f"{name}: {reason or _NO_REASON}"
    if (more := len(recent.silent) - _SILENT_SHOWN) > 0:
        yield "not in rates", f"and {more} more"


def _facts(found: Stats) -> Iterator[tuple[str, object]]:
    wait_ms = None if found.next_due_ms is None else found.next_due_ms - found.now_ms
    next_due = "-" if wait_ms is None else f"{in_time(wait_ms)}  {moment(found.next_due_ms)}"
    yield "next due", next_due
    yield "overdue", roughly(found.overdue_ms) if found.overdue_ms else "nothing"
    owned = len(found.buckets) - len(unowned(found.buckets)) - len(numbers(found.unseen))
    yield "redis", found.redis or None
    yield "buckets", f"{owned}/{len(found.buckets)} owned"
    yield "workers", len(found.workers)
    if (ledger := found.ledger) is not None:
        yield "ledger", _ledger_fact(ledger)
    if found.setbacks:
        yield "alarm", setbacks_text(found.setbacks)
    if found.held_back:
        yield "held back", f"{repairs.held(found.held_back)}; see: delaybridge doctor"
    if found.mended:
        yield "mended", repairs.mended_text(found.mended)
    for one in [*found.all_damage[:1], *found.odd_rules[:1]]:
        yield "damaged", f"{one}; see: delaybridge doctor"
    late_ms = found.recurring_late_ms
    yield "recurring", f"none was made for {roughly(late_ms)}" if late_ms else None
    yield "ingests", len(found.ingests) or None
    yield "fronts", len(found.fronts) or None
    yield "dead set", f"{found.dead_dropped:,} dropped" if found.dead_dropped else None


def _ledger_fact(drift: LedgerDrift) -> str:
    if drift.waiting:
        return waiting_text(drift.waiting, drift.silent)
    if drift.silent:
        return f"does not answer: {drift.silent}"
    said = [f"{n:,} {name}" for name, n in drift._asdict().items() if n and name != "silent"]
    return ", ".join(said).replace("without_row", "without a row") or "agrees with Redis"


def _recurring_facts(known: DefinitionCounts | None) -> Iterator[tuple[str, object]]:
    """Definitions that fail and runs that were missed, if there are any."""
    if known is None:
        return
    failing = known.failing
    wrong = [f"{len(failing)} of {known.definitions} fail"] if failing else []
    wrong += [f"{known.missed:,} missed runs"] if known.missed else []
    if wrong:
        yield "recurring", f"{', '.join(wrong)}; see: delaybridge recurring ls"
    for name, error in [*failing.items()][:1]:
        yield "failing", f"{name}: {error}"
