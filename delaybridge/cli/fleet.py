"""The fleet: `delaybridge worker ls` and `bucket ls`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from delaybridge.cli.grammar import Group, pass_call
from delaybridge.cli.invocation import Invocation
from delaybridge.cli.output import Row, in_time, roughly, tally_text

if TYPE_CHECKING:
    from delaybridge import Stats
    from delaybridge.store.announcements import IngestInfo, SourceInfo, WorkerInfo
    from delaybridge.store.held import Paused
    from delaybridge.store.stats import BucketStats
    from delaybridge.store.troubles import Retrying


@click.group(cls=Group)
def worker() -> None:
    """The running workers."""


@worker.command("ls")
@pass_call
def worker_ls(call: Invocation) -> int:
    """List the workers and their buckets, and the ingest processes and their sources."""
    found = _stats(call)
    spare = ("HOST", "VERSION", ">PID", "STARTED")
    if not call.output.table(found.workers, lambda each: _worker_row(each, found), spare=spare):
        call.note("no worker runs; start one: delaybridge scan")
    if found.ingests:
        call.note("")
        show_sources(call, found)
    return call.say_unseen(found.unseen)


@click.group(cls=Group)
def bucket() -> None:
    """The buckets and who owns them."""


@bucket.command("ls")
@pass_call
def bucket_ls(call: Invocation) -> int:
    """List the buckets: contents, owner, time left of its lease; on a Cluster its Redis server."""
    found = _stats(call)
    show_buckets(call, found)
    return call.say_unseen(found.unseen)


def _stats(call: Invocation) -> Stats:
    with call.client() as client:
        return client.stats()


def sources_of(found: Stats) -> list[tuple[SourceInfo, IngestInfo]]:
    """The sources of all ingest processes, each with its process."""
    return [(source, process) for process in found.ingests for source in process.sources]


def failing_text(each: Retrying, found: Stats) -> str:
    """`12 messages to rabbitmq:orders failing for 5m: unroutable: 312 NO_ROUTE`."""
    row = retrying_row(each, found)
    noun = "message" if row[">RETRYING"] == "1" else "messages"
    lasting = f"failing for {row['FAILING FOR']}"
    return f"{row['>RETRYING']} {noun} to {each.destination} {lasting}: {each.example}"


def ingest_numbers(source: SourceInfo) -> str:
    """`lag 12, 100/s, 0 quarantined`."""
    rate, quarantined = _number(source.rate), _number(source.quarantined)
    return f"lag {_number(source.lag)}, {rate}/s, {quarantined} quarantined"


def _number(count: float | None) -> str:
    """`?` for a number that an ingest process of another version does not report."""
    return "?" if count is None else f"{count:,.0f}"


def retrying_row(each: Retrying, found: Stats) -> dict[str, str]:
    """Cells of a group of failing messages."""
    return {
        # Ends in + if only a sample of the messages was counted.
        ">RETRYING": f"{each.messages:,}{'+' if found.retrying_sampled else ''}",
        "DESTINATION": each.destination,
        "REASON": each.reason,
        "FAILING FOR": roughly(max(0, found.now_ms - each.since_ms)),
        "EXAMPLE": each.example,
    }


def paused_row(each: Paused, now_ms: int) -> dict[str, str]:
    """Cells of a paused place."""
    return {
        "PAUSED": each.place,
        ">WAITING": tally_text(each.waiting),
        "SINCE": "?" if each.since_ms is None else roughly(max(0, now_ms - each.since_ms)),
    }


def paused_text(each: Paused, now_ms: int) -> str:
    """`rabbitmq:orders is paused since 2h05m, 1,234 messages wait`."""
    since = "" if each.since_ms is None else f" for {roughly(max(0, now_ms - each.since_ms))}"
    return f"{each.place} is paused{since}, {tally_text(each.waiting)} messages wait"


def _rules_text(each: WorkerInfo, found: Stats) -> str | None:
    if not found.rules.by_place or each.said.paused is None:
        return "ignored" if found.rules.by_place else None
    return f"obeyed, {len(each.said.paused)} paused" if each.said.paused else "obeyed"


def _worker_row(each: WorkerInfo, found: Stats) -> Row:
    started_ms = each.started_ms
    return {
        "NAME": each.name,
        "HOST": each.host,
        ">PID": "?" if each.pid is None else each.pid,
        "VERSION": each.version,
        ">BUCKETS": each.buckets,
        "STARTED": "?" if started_ms is None else in_time(started_ms - found.now_ms),
        "EXPIRES IN": roughly(each.expires_ms - found.now_ms),
        "RULES": _rules_text(each, found),
    }


def bucket_row(each: BucketStats, now_ms: int) -> dict[str, str | int]:
    """Cells of a bucket."""
    if each.unseen:
        unknown = (">DELAYED", ">IN FLIGHT", ">PARKED", ">DEAD", "NEXT DUE", "OVERDUE", "OWNER")
        return {
            ">BUCKET": each.bucket,
            **dict.fromkeys((*unknown, "LEASE"), "?"),
            "NODE": each.node,
        }
    return {
        ">BUCKET": each.bucket,
        ">DELAYED": each.delayed,
        ">IN FLIGHT": each.in_flight,
        ">PARKED": each.parked,
        ">DEAD": each.dead,
        "NEXT DUE": "-" if each.next_due_ms is None else in_time(each.next_due_ms - now_ms),
        "OVERDUE": roughly(each.overdue_ms) if each.overdue_ms else "-",
        "OWNER": each.owner or "none",
        "LEASE": "-" if each.lease_ms is None else roughly(each.lease_ms),
        "NODE": each.node,
    }


def show_buckets(call: Invocation, found: Stats) -> None:
    """Print the buckets."""
    spare = ("LEASE", ">PARKED", ">DEAD", ">IN FLIGHT")
    call.output.table(found.buckets, lambda each: bucket_row(each, found.now_ms), spare=spare)


def show_sources(call: Invocation, found: Stats) -> None:
    """Print the sources of all ingest processes."""
    call.output.table(
        sources_of(found),
        lambda pair: _source_row(*pair),
        spare=(">TAKEN", "TARGET", ">RATE", "INGEST"),
        data=lambda pair: {"ingest": pair[1].name, **pair[0]._asdict()},
    )


def _source_row(source: SourceInfo, process: IngestInfo) -> dict[str, str]:
    return {
        "INGEST": process.name,
        "SOURCE": source.source,
        "TARGET": source.target,
        ">LAG": _number(source.lag),
        ">RATE": f"{_number(source.rate)}/s",
        ">TAKEN": _number(source.total),
        ">QUARANTINED": _number(source.quarantined),
        "STATE": source.state,
    }
