"""`delaybridge scan`, and what the fleet looks like: stats, workers, buckets."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import click

from delaybridge.cli.failure import Exit, Failure, report_of
from delaybridge.cli.grammar import Command, Group, name_option, pass_session
from delaybridge.cli.output import Column, in_time, moment, roughly, shortened
from delaybridge.cli.session import Session

if TYPE_CHECKING:
    from collections.abc import Sequence

    from delaybridge.ingest.routes import Route
    from delaybridge.settings.settings import Settings
    from delaybridge.store.announcements import SourceInfo, WorkerInfo
    from delaybridge.store.stats import BucketStats, Stats
    from delaybridge.store.troubles import Retrying, Trouble


@click.command("scan", cls=Command)
@click.option(
    "--processes",
    type=click.IntRange(1, 256),
    metavar="N",
    help="Worker processes; one per core is the most that helps. [default: scan.processes, 1]",
)
@name_option("The worker's name. [default: host and pid]")
@click.option("--burst", is_flag=True, help="Exit when nothing is due any more.")
@click.option(
    "--with-ingest",
    is_flag=True,
    help="Also read delay exchanges and delay topics, in a process of its own; see ingest.",
)
@pass_session
def scan(
    session: Session, processes: int | None, name: str | None, burst: bool, with_ingest: bool
) -> int:
    """Run a worker: publish messages when they are due.

    Start as many as you like, on as many hosts: they share the buckets among themselves.
    On SIGTERM or Ctrl-C a worker finishes what it has begun and gives its buckets to the others; a
    second signal stops it at once.
    """
    settings = session.load({"scan": {"processes": processes}})
    if not settings.brokers:
        what = (
            "none is configured, so nothing could be published; add --broker amqp://HOST, "
            "DELAYBRIDGE_BROKERS__RABBITMQ or [brokers]"
        )
        raise Failure(Exit.REFUSED, "config", "brokers", what)
    if burst and with_ingest:
        what = "ingest never ends by itself; leave one of the two out"
        raise Failure(Exit.REFUSED, "usage", "--burst", what)
    from delaybridge.cli.banner import show_banner
    from delaybridge.publish import check_brokers
    from delaybridge.worker.ingester import routes_of

    check_brokers(settings.brokers, settings.publish)
    routes = routes_of(settings) if with_ingest else []
    show_banner(session, settings, name, routes)
    for caution in settings.cautions():
        session.note(f"warning: {caution}")
    return _work(session, settings, name, burst, routes)


def _work(
    session: Session, settings: Settings, name: str | None, burst: bool, routes: Sequence[Route]
) -> int:
    from delaybridge.cli.logs import configure
    from delaybridge.scan.lease import NameTaken
    from delaybridge.worker.processes import run

    prepare = partial(configure, as_json=session.output.json, verbose=session.verbose)
    prepare()
    try:
        return run(
            settings,
            processes=settings.scan.processes,
            name=name,
            burst=burst,
            routes=routes,
            exit_code=worker_exit_code,
            prepare=prepare,
        )
    except NameTaken as exc:
        what = f"{exc} is the name of a worker that runs{_whereabouts(session, str(exc))}"
        raise Failure(Exit.CONFLICT, "name_taken", "--name", f"{what}; choose another") from exc


def worker_exit_code(exc: BaseException) -> int:
    """What an error that ended a worker process means to whoever started it."""
    from delaybridge.scan.lease import NameTaken

    if isinstance(exc, NameTaken):
        return Exit.CONFLICT
    return report_of(exc).exit if isinstance(exc, Exception) else Exit.FAILED


def _whereabouts(session: Session, name: str) -> str:
    with session.client() as client:
        found = [each for each in client.stats().workers if each.name == name]
    return "".join(f" on {each.host}, pid {each.pid}" for each in found)


@click.command("stats", cls=Command)
@pass_session
def stats(session: Session) -> None:
    """Count messages by state."""
    with session.client() as client:
        found = client.stats()
    if session.output.json:
        session.output.result(_stats_data(found), "")
        return
    counts = [
        (state, getattr(found, state)) for state in ("delayed", "in_flight", "parked", "dead")
    ]
    session.output.table(_COUNT_COLUMNS, counts, lambda _: {})
    session.output.line()
    session.output.fields(_stats_facts(found))
    _show_troubles(session, found)
    if found.ingests:
        session.output.line()
        _show_sources(session, found)


@click.group(cls=Group)
def worker() -> None:
    """The running workers."""


@worker.command("ls")
@pass_session
def worker_ls(session: Session) -> None:
    """List the workers and their buckets, and the ingest processes and their sources."""
    with session.client() as client:
        found = client.stats()
    columns = _worker_columns(found.now_ms)
    if not session.output.table(columns, found.workers, _worker_data):
        session.note("no worker runs; start one: delaybridge scan")
    if found.ingests:
        session.note("")
        _show_sources(session, found)


@click.group(cls=Group)
def bucket() -> None:
    """The buckets and who owns them."""


@bucket.command("ls")
@pass_session
def bucket_ls(session: Session) -> None:
    """List the buckets: contents, owner, and time left of its lease."""
    with session.client() as client:
        found = client.stats()
    session.output.table(_bucket_columns(found.now_ms), found.buckets, _bucket_data)


def _show_troubles(session: Session, found: Stats) -> None:
    """Why messages do not go out, if some do not."""
    if found.retrying:
        session.output.line()
        session.output.table(_retrying_columns(found), found.retrying, _fields)
    if found.troubles:
        session.output.line()
        session.output.table(_TROUBLE_COLUMNS, found.troubles, _fields)


def failing_for(each: Retrying, found: Stats) -> str:
    """How long the first of these messages has failed."""
    return roughly(max(0, found.now_ms - each.since_ms))


def failing_text(each: Retrying, found: Stats) -> str:
    """`12 messages to rabbitmq:orders failing for 5m: unroutable: 312 NO_ROUTE`."""
    count = _retrying_count(each, found)
    noun = "message" if count == "1" else "messages"
    lasting = f"failing for {failing_for(each, found)}"
    return f"{count} {noun} to {each.destination} {lasting}: {each.example}"


def _retrying_count(each: Retrying, found: Stats) -> str:
    """Ends in + if only a sample of the messages was counted."""
    return f"{each.messages:,}{'+' if found.retrying_sampled else ''}"


def _show_sources(session: Session, found: Stats) -> None:
    sources = [(ingest.name, source) for ingest in found.ingests for source in ingest.sources]
    session.output.table(_SOURCE_COLUMNS, sources, lambda s: {"ingest": s[0], **s[1]._asdict()})


def _shown(count: float | None) -> str:
    """`?` for a number that an ingest process of another version does not report."""
    return "?" if count is None else f"{count:,.0f}"


def ingest_numbers(source: SourceInfo) -> str:
    """`lag 12, 100/s, 0 quarantined`."""
    quarantined = f"{_shown(source.quarantined)} quarantined"
    return f"lag {_shown(source.lag)}, {_shown(source.rate)}/s, {quarantined}"


def unowned(found: Stats) -> list[int]:
    """Buckets without a worker."""
    return [each.bucket for each in found.buckets if each.owner is None]


def overdue_text(found: Stats) -> str:
    """How late the oldest waiting message is."""
    return roughly(found.overdue_ms) if found.overdue_ms else "nothing"


def _stats_data(found: Stats) -> dict[str, object]:
    return {
        "now_ms": found.now_ms,
        "delayed": found.delayed,
        "in_flight": found.in_flight,
        "parked": found.parked,
        "dead": found.dead,
        "dead_dropped": found.dead_dropped,
        "next_due": moment(found.next_due_ms),
        "next_due_ms": found.next_due_ms,
        "overdue_ms": found.overdue_ms,
        "buckets": len(found.buckets),
        "buckets_unowned": len(unowned(found)),
        "damaged": [str(one) for one in found.all_damage],
        "workers": len(found.workers),
        "retrying": [each._asdict() for each in found.retrying],
        "retrying_sampled": found.retrying_sampled,
        "troubles": [each._asdict() for each in found.troubles],
        "ingests": [
            {**ingest._asdict(), "sources": [source._asdict() for source in ingest.sources]}
            for ingest in found.ingests
        ],
    }


def _stats_facts(found: Stats) -> list[tuple[str, str]]:
    next_due = "-"
    if found.next_due_ms is not None:
        wait = in_time(found.next_due_ms - found.now_ms)
        next_due = f"{wait}  {moment(found.next_due_ms)}"
    owned = len(found.buckets) - len(unowned(found))
    return [
        ("next due", next_due),
        ("overdue", overdue_text(found)),
        ("buckets", f"{owned}/{len(found.buckets)} owned"),
        ("workers", str(len(found.workers))),
        *(("damaged", f"{one}; see: delaybridge doctor") for one in found.all_damage[:1]),
        *([("ingests", str(len(found.ingests)))] if found.ingests else []),
        *([("dead set", f"{found.dead_dropped:,} dropped")] if found.dead_dropped else []),
    ]


_COUNT_COLUMNS: list[Column[tuple[str, int]]] = [
    Column("STATE", lambda count: count[0]),
    Column("MESSAGES", lambda count: f"{count[1]:,}", right=True),
]
_TROUBLE_COLUMNS: list[Column[Trouble]] = [
    Column("PARKED", lambda trouble: trouble.destination),
    Column("WORKER", lambda trouble: trouble.worker),
    Column("REASON", lambda trouble: shortened(trouble.reason)),
]
_SOURCE_COLUMNS: list[Column[tuple[str, SourceInfo]]] = [
    Column("INGEST", lambda s: s[0], spare=4),
    Column("SOURCE", lambda s: s[1].source),
    Column("TARGET", lambda s: s[1].target, spare=2),
    Column("LAG", lambda s: _shown(s[1].lag), right=True),
    Column("RATE", lambda s: f"{_shown(s[1].rate)}/s", right=True, spare=3),
    Column("TAKEN", lambda s: _shown(s[1].total), right=True, spare=1),
    Column("QUARANTINED", lambda s: _shown(s[1].quarantined), right=True),
    Column("STATE", lambda s: s[1].state),
]


def _retrying_columns(found: Stats) -> list[Column[Retrying]]:
    return [
        Column("RETRYING", lambda each: _retrying_count(each, found), right=True),
        Column("DESTINATION", lambda each: each.destination),
        Column("REASON", lambda each: each.reason),
        Column("FAILING FOR", lambda each: failing_for(each, found)),
        Column("EXAMPLE", lambda each: shortened(each.example), spare=1),
    ]


def _worker_columns(now_ms: int) -> list[Column[WorkerInfo]]:
    return [
        Column("NAME", lambda worker: worker.name),
        Column("HOST", lambda worker: worker.host, spare=1),
        Column(
            "PID",
            lambda worker: "?" if worker.pid is None else str(worker.pid),
            right=True,
            spare=3,
        ),
        Column("VERSION", lambda worker: worker.version, spare=2),
        Column("BUCKETS", lambda worker: str(worker.buckets), right=True),
        Column("STARTED", lambda worker: _in_time(worker.started_ms, now_ms, "?"), spare=4),
        Column("EXPIRES IN", lambda worker: roughly(worker.expires_ms - now_ms)),
    ]


def _worker_data(each: WorkerInfo) -> dict[str, object]:
    return {**each._asdict(), "said": each.said._asdict()}


def _bucket_columns(now_ms: int) -> list[Column[BucketStats]]:
    return [
        Column("BUCKET", lambda bucket: str(bucket.bucket), right=True),
        Column("DELAYED", lambda bucket: str(bucket.delayed), right=True),
        Column("IN FLIGHT", lambda bucket: str(bucket.in_flight), right=True, spare=4),
        Column("PARKED", lambda bucket: str(bucket.parked), right=True, spare=2),
        Column("DEAD", lambda bucket: str(bucket.dead), right=True, spare=3),
        Column("NEXT DUE", lambda bucket: _in_time(bucket.next_due_ms, now_ms, "-")),
        Column("OVERDUE", lambda bucket: roughly(bucket.overdue_ms) if bucket.overdue_ms else "-"),
        Column("OWNER", lambda bucket: bucket.owner or "nobody"),
        Column("LEASE", _lease, spare=1),
    ]


def _bucket_data(each: BucketStats) -> dict[str, object]:
    return {**each._asdict(), "damage": [one._asdict() for one in each.damage]}


def _fields(each: Retrying | Trouble) -> dict[str, object]:
    return each._asdict()


def _lease(bucket: BucketStats) -> str:
    return "-" if bucket.lease_ms is None else roughly(bucket.lease_ms)


def _in_time(at_ms: int | None, now_ms: int, unknown: str) -> str:
    return unknown if at_ms is None else in_time(at_ms - now_ms)
