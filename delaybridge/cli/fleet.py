"""`delaybridge scan`, and what the fleet looks like: stats, workers, buckets."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import click

from delaybridge.cli.failure import Exit, Failure, report_of
from delaybridge.cli.grammar import Command, Group, name_option, pass_session
from delaybridge.cli.output import cut, in_time, moment, roughly
from delaybridge.cli.session import Session

if TYPE_CHECKING:
    from collections.abc import Sequence

    from delaybridge.ingest.routes import Route
    from delaybridge.settings.settings import Settings
    from delaybridge.store.announcements import IngestInfo, SourceInfo, WorkerInfo
    from delaybridge.store.stats import BucketStats, Stats
    from delaybridge.store.troubles import Retrying

_BUCKET_TITLES = (
    *("BUCKET", "DELAYED", "IN FLIGHT", "PARKED", "DEAD", "NEXT DUE", "OVERDUE", "OWNER", "LEASE"),
)
_SOURCE_TITLES = ("INGEST", "SOURCE", "TARGET", "LAG", "RATE", "TAKEN", "QUARANTINED", "STATE")
_RETRYING_TITLES = ("RETRYING", "DESTINATION", "REASON", "FAILING FOR", "EXAMPLE")
_TROUBLE_TITLES = ("PARKED", "WORKER", "REASON")
_WORKER_TITLES = ("NAME", "HOST", "PID", "VERSION", "BUCKETS", "STARTED", "EXPIRES IN")
# What a narrow terminal leaves out, the first of them first.
_SOURCE_SPARE = ("TAKEN", "TARGET", "RATE", "INGEST")
_BUCKET_SPARE = ("LEASE", "PARKED", "DEAD", "IN FLIGHT")
_WORKER_SPARE = ("HOST", "VERSION", "PID", "STARTED")


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

    check_brokers(settings)
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
    counts = (
        ("delayed", found.delayed),
        ("in_flight", found.in_flight),
        ("parked", found.parked),
        ("dead", found.dead),
    )
    rows = [({"state": state}, [state, f"{count:,}"]) for state, count in counts]
    session.output.table(("STATE", "MESSAGES"), rows, right=("MESSAGES",))
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
    rows = (
        ({**each._asdict(), "said": each.said._asdict()}, _worker_cells(each, found.now_ms))
        for each in found.workers
    )
    right = ("PID", "BUCKETS")
    if not session.output.table(_WORKER_TITLES, rows, right=right, spare=_WORKER_SPARE):
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
    rows = ((_bucket_data(each), _bucket_cells(each, found.now_ms)) for each in found.buckets)
    session.output.table(_BUCKET_TITLES, rows, right=_BUCKET_TITLES[:5], spare=_BUCKET_SPARE)


def _show_troubles(session: Session, found: Stats) -> None:
    """What keeps messages from going out, nothing where nothing does."""
    if found.retrying:
        more = "+" if found.retrying_sampled else ""
        rows = [
            (
                each._asdict(),
                [
                    *(f"{each.messages:,}{more}", each.destination, each.reason),
                    *(failing_for(each, found), cut(each.example)),
                ],
            )
            for each in found.retrying
        ]
        session.output.line()
        session.output.table(_RETRYING_TITLES, rows, right=("RETRYING",), spare=("EXAMPLE",))
    if found.troubles:
        parked = [(t._asdict(), [t.destination, t.worker, cut(t.reason)]) for t in found.troubles]
        session.output.line()
        session.output.table(_TROUBLE_TITLES, parked)


def failing_for(each: Retrying, found: Stats) -> str:
    """How long the first of these messages has failed."""
    return roughly(max(0, found.now_ms - each.since_ms))


def failing_text(each: Retrying, found: Stats) -> str:
    """`12 messages to rabbitmq:orders have failed for 5m: unroutable: 312 NO_ROUTE`."""
    many = f"{each.messages:,}{'+' if found.retrying_sampled else ''}"
    what = "message" if many == "1" else "messages"
    lasting = f"failing for {failing_for(each, found)}"
    return f"{many} {what} to {each.destination} {lasting}: {each.example}"


def _show_sources(session: Session, found: Stats) -> None:
    rows = (
        ({"ingest": ingest.name, **source._asdict()}, _source_cells(ingest, source))
        for ingest in found.ingests
        for source in ingest.sources
    )
    session.output.table(_SOURCE_TITLES, rows, right=_SOURCE_TITLES[3:7], spare=_SOURCE_SPARE)


def _source_cells(ingest: IngestInfo, source: SourceInfo) -> list[str]:
    numbers = [_shown(source.lag), f"{_shown(source.rate)}/s", _shown(source.total)]
    numbers.append(_shown(source.quarantined))
    return [ingest.name, source.source, source.target, *numbers, source.state]


def _shown(count: float | None) -> str:
    """`?` for what another version of an ingest process does not say."""
    return "?" if count is None else f"{count:,.0f}"


def ingest_numbers(source: SourceInfo) -> str:
    """How it goes, in a few words."""
    quarantined = f"{_shown(source.quarantined)} quarantined"
    return f"lag {_shown(source.lag)}, {_shown(source.rate)}/s, {quarantined}"


def unowned(found: Stats) -> list[int]:
    """Buckets that nobody scans."""
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


def _worker_cells(each: WorkerInfo, now_ms: int) -> list[str]:
    return [
        each.name,
        each.host,
        "?" if each.pid is None else str(each.pid),
        each.version,
        str(each.buckets),
        "?" if each.started_ms is None else in_time(each.started_ms - now_ms),
        roughly(each.expires_ms - now_ms),
    ]


def _bucket_data(each: BucketStats) -> dict[str, object]:
    return {**each._asdict(), "damage": [one._asdict() for one in each.damage]}


def _bucket_cells(each: BucketStats, now_ms: int) -> list[str]:
    counts = (each.bucket, each.delayed, each.in_flight, each.parked, each.dead)
    next_due = "-" if each.next_due_ms is None else in_time(each.next_due_ms - now_ms)
    overdue = roughly(each.overdue_ms) if each.overdue_ms else "-"
    lease = "-" if each.lease_ms is None else roughly(each.lease_ms)
    return [*map(str, counts), next_due, overdue, each.owner or "nobody", lease]
