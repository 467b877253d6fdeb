"""`delaybridge scan` and `delaybridge ingest`: the processes of the fleet."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

import click

from delaybridge import __version__
from delaybridge.operate.terminal.failure import Exit, Failure, failure_of, refused
from delaybridge.operate.terminal.grammar import NAME, Command, Group, option, options, pass_call
from delaybridge.operate.terminal.invocation import Invocation

if TYPE_CHECKING:
    from delaybridge.ingest.rabbitmq.conversion import Converted
    from delaybridge.ingest.routes import Route
    from delaybridge.operate.notices.announcements import IngestInfo, WorkerInfo
    from delaybridge.operate.supervisor.child import ChildSpec
    from delaybridge.settings.settings import Settings

_NO_TOPICS = "names no delay topic"
_ASK_S = 3.0  # how long a cluster may take to name its topics
_SHOWN = 10

_metrics_port = option(
    "--metrics-port PORT",
    "Serve /metrics and /health on this port. [default: metrics.port, 0: none]",
    type=click.IntRange(0, 65_535),
)


@click.command("scan", cls=Command)
@option(
    "--processes N",
    "Worker processes; one per core is the most that helps. [default: scan.processes, 1]",
    type=click.IntRange(1, 256),
)
@option("--name", "The worker's name. [default: host and pid]", type=NAME)
@option("--burst", "Exit when nothing is due any more.")
@option("--with-ingest", "Also read delay exchanges and topics, in another process; see ingest.")
@option("--with-front", "Also run the AMQP front, in other processes; see front.")
@_metrics_port
@pass_call
def scan(
    call: Invocation,
    processes: int | None,
    name: str | None,
    burst: bool,
    with_ingest: bool,
    with_front: bool,
    metrics_port: int | None,
) -> int:
    """Run a worker: publish messages when they are due.

    Start as many as you like, on as many hosts: they share the buckets among themselves.
    On SIGTERM or Ctrl-C a worker waits for its publishes to end and gives its buckets to the
    others; a second signal stops it at once.
    """
    given: dict[str, Any] = {"scan": {"processes": processes}, "metrics": {"port": metrics_port}}
    settings = call.load(given | {"ingest": {"front": with_front or None}})
    if burst and (with_ingest or with_front):
        raise refused("--burst", "ingest and the front never end by themselves; leave one out")
    from delaybridge.publish import PublishOptions, check_brokers

    check_brokers(settings.brokers, PublishOptions.from_settings(settings.publish, settings.http))
    routes = _routes(call, settings) if with_ingest else []
    if with_front:
        from delaybridge.operate.cli.processes.front import banner

        for line in banner(settings):
            call.note(line)
    with _started(call, settings, "worker", name, routes) as prepare:
        reads = bool(routes) or with_front or (with_ingest and settings.ingest.front)
        specs = _beside(settings, name, prepare, reads, with_front)
        return _run_workers(settings, name, burst, specs, prepare)


def _beside(
    settings: Settings,
    name: str | None,
    prepare: Callable[[], None],
    with_ingest: bool,
    with_front: bool,
) -> list[ChildSpec]:
    """The processes beside the workers."""
    specs = [ingest_spec(settings.scan.processes, name, prepare)] if with_ingest else []
    if with_front:
        from delaybridge.operate.cli.processes.front import front_specs

        specs += front_specs(settings, name, prepare)
    return specs


def ingest_spec(number: int, name: str | None, prepare: Callable[[], None]) -> ChildSpec:
    """An ingest process, as a child of a supervisor."""
    from delaybridge.ingest.process import run_ingest
    from delaybridge.operate.parts.lists import ingest_parts
    from delaybridge.operate.supervisor.child import ChildSpec
    from delaybridge.store.namespace.registry import INGEST

    own, work = name and f"{name}-ingest", partial(run_ingest, parts=ingest_parts)
    return ChildSpec(f"ingest-{number}", own, work, INGEST, worker_exit_code, prepare)


def _run_workers(
    settings: Settings,
    name: str | None,
    burst: bool,
    beside: Sequence[ChildSpec],
    prepare: Callable[[], None],
) -> int:
    """Run them, each with its parts: in this process if it is one, and serves no metrics."""
    from delaybridge.ingest.process import routes_of
    from delaybridge.operate.metrics.serving import served
    from delaybridge.operate.parts.lists import worker_parts
    from delaybridge.operate.supervisor.child import ChildSpec
    from delaybridge.operate.supervisor.supervisor import Supervisor
    from delaybridge.store.namespace.registry import WORKER
    from delaybridge.worker.worker import run_one

    count = settings.scan.processes
    is_alone = count == 1 and not beside
    scans = partial(run_one, parts=worker_parts, burst=burst)

    def spec(number: int) -> ChildSpec:
        own = name if name is None or is_alone else f"{name}-{number}"
        return ChildSpec(f"worker-{number}", own, scans, WORKER, worker_exit_code, prepare)

    specs = [*map(spec, range(count)), *beside]
    with served(settings, [each.process_name for each in specs]) as reports:
        if is_alone and reports is None:
            scans(settings, name=name)
            return 0
        # A scrape takes milliseconds of an interpreter: not of one that has messages to publish.
        check = routes_of if beside else lambda settings: None
        return Supervisor(settings, specs, reports, check).run()


def _routes(call: Invocation, settings: Settings) -> list[Route]:
    """The sources of `--with-ingest`. A worker runs also where no delay topic is named."""
    from delaybridge.ingest.process import routes_of
    from delaybridge.settings.urls import kinds_of

    if not settings.ingest.topics and "kafka" in kinds_of(settings.brokers).values():
        call.note(
            f"warning: ingest.topics: {_NO_TOPICS}, so none is read; name yours, then restart"
        )
        if not settings.ingest.exchanges:
            return []
    return routes_of(settings)


@click.group(cls=Group)
def ingest() -> None:
    """Read delay exchanges or delay topics into the store.

    Producers publish to X.delay instead of X, with the delay in a header (x-delay in ms, or
    delaybridge-delay as 15m); workers publish the message to X when it is due. Start as many as you
    like. SIGTERM and Ctrl-C drain.
    """


_ingest_options = options(
    option(
        "--take-over NAMESPACE@BIRTH",
        "Take over the sources of this abandoned namespace. Repeat for several.",
        multiple=True,
    ),
    option("--name", "The process' name. [default: host and pid]", type=NAME),
    _metrics_port,
)


@ingest.command("rabbitmq")
@option(
    "--exchange X.delay",
    "A delay exchange, declared if missing: [BROKER:]X.delay or NAME=TARGET. Repeat for several. "
    "[default: ingest.exchanges]",
    to="exchanges",
    multiple=True,
)
@option(
    "--convert X.delay",
    "Replace this delay exchange of an earlier form, and its queue, and exit. What the queue "
    "holds is read first; bindings into the exchange are kept. Repeat for several.",
    multiple=True,
)
@option(
    "--front", "Also read for the exchanges that delaybridge front makes. [default: ingest.front]"
)
@_ingest_options
@pass_call
def rabbitmq(
    call: Invocation,
    name: str | None,
    metrics_port: int | None,
    convert: tuple[str, ...],
    **given: Any,
) -> None:
    """Read delay exchanges of RabbitMQ."""
    if convert:
        _convert(call, convert, given)
    else:
        _ingest(call, "rabbitmq", name, metrics_port, given)


def _given(options: dict[str, Any]) -> dict[str, Any]:
    """The settings of ingest among the options of a command."""
    return {name: [*v] if isinstance(v, tuple) else v for name, v in options.items() if v}


def _convert(call: Invocation, names: tuple[str, ...], given: dict[str, Any]) -> None:
    """Replace delay exchanges of an earlier form."""
    settings = call.load({"ingest": _given(given)})
    from delaybridge.ingest.rabbitmq.converter import convert
    from delaybridge.ingest.routes import parse_routes
    from delaybridge.operate.parts.rights import RightsCheck
    from delaybridge.settings.urls import kinds_of

    kinds = kinds_of(settings.brokers)
    known = parse_routes(settings.ingest.exchanges, kinds, "rabbitmq", settings.brokers)
    named = {text: [r for r in known if text in (r.source, str(r))] for text in names}
    new = parse_routes([text for text, found in named.items() if not found], kinds, "rabbitmq")
    routes = [*dict.fromkeys(route for found in named.values() for route in found), *new]
    call.begin_log()
    convert(settings, routes, partial(_tell, call), [RightsCheck("producer")])


def _tell(call: Invocation, route: Route, done: Converted) -> None:
    """Print the result of a conversion as soon as it is done."""
    what = (
        f"replaced; read from its queue: {done.messages}; bindings kept: {done.bindings}"
        if done.was_earlier or done.bindings else "of today's form already"
    )  # fmt: skip
    lost = ", ".join(done.unbound)
    what += f"; no longer bound to it, bind to {route.target}: {lost}" if lost else ""
    call.output.result({"source": str(route), **done._asdict()}, f"{route}: {what}")


@ingest.command("kafka")
@option(
    "--topic T.delay",
    "A delay topic, or a pattern with *: [BROKER:]T.delay or NAME=TARGET. Repeat for several. "
    "[default: ingest.topics]",
    to="topics",
    multiple=True,
)
@option(
    "--skip-offset T/PARTITION=OFFSET",
    "Skip an offset that cannot be read; its record is lost. Repeat for several.",
    to="skip_offsets",
    multiple=True,
)
@_ingest_options
@pass_call
def kafka(call: Invocation, name: str | None, metrics_port: int | None, **given: Any) -> None:
    """Read delay topics of Kafka, as a member of the consumer group ingest.group."""
    _ingest(call, "kafka", name, metrics_port, given)


def _ingest(
    call: Invocation, kind: str, name: str | None, metrics_port: int | None, given: dict[str, Any]
) -> None:
    sources = _given(given)
    settings = call.load({"ingest": sources, "metrics": {"port": metrics_port}})
    from delaybridge.ingest.process import routes_of, run_ingest
    from delaybridge.operate.metrics.serving import served
    from delaybridge.operate.parts.lists import ingest_parts
    from delaybridge.publish import PublishOptions, check_brokers

    check_brokers(
        settings.brokers, PublishOptions.from_settings(settings.publish, settings.http), [kind]
    )
    if kind == "kafka" and not settings.ingest.topics:
        raise refused("ingest.topics", _unnamed(settings), "config")
    routes = routes_of(settings, [kind])
    with _started(call, settings, "ingest", name, routes), served(settings, ["ingest"]) as reports:
        on_report = None if reports is None else partial(reports.put, "ingest")
        run_ingest(settings, kinds=[kind], parts=ingest_parts, name=name, on_report=on_report)


def _unnamed(settings: Settings) -> str:
    """The remedy if no delay topic is named. Asks for those that an earlier version would read."""
    from delaybridge.ingest.kafka.topics import topics_of
    from delaybridge.ingest.routes import SUFFIX
    from delaybridge.publish import PublishOptions
    from delaybridge.settings.urls import kinds_of

    options = PublishOptions.from_settings(settings.publish, settings.http)
    clusters = [name for name, kind in kinds_of(settings.brokers).items() if kind == "kafka"]
    found: list[str] = []
    for name in clusters:
        topics = topics_of(name, settings.brokers[name], options, _ASK_S)
        named = f"{name}:" if len(clusters) > 1 else ""
        found += [named + topic for topic in sorted(topics) if topic.endswith(SUFFIX)]
    what = f'{_NO_TOPICS}; write ["orders.delay"] or --topic orders.delay'
    if not found:
        return what
    more = f" and {len(found) - _SHOWN} more" if len(found) > _SHOWN else ""
    return f"{what}. Until now *{SUFFIX} was read: {', '.join(found[:_SHOWN])}{more}"


@contextmanager
def _started(
    call: Invocation, settings: Settings, role: str, name: str | None, routes: Sequence[Route]
) -> Iterator[Callable[[], None]]:
    """Banner, warnings and log before a process runs; yields what sets up a child's log.

    Failure if Redis is unreachable, or if another process has this name.
    """
    from delaybridge.scan.leases.fleet import NameTaken

    for line in _banner(call, settings, role, name, routes):
        call.note(line)
    prepare = call.begin_log(settings)
    try:
        yield prepare
    except NameTaken as exc:
        with call.client() as client:
            stats = client.stats()
        running: list[WorkerInfo | IngestInfo] = [*stats.workers, *stats.ingests]
        same = [each for each in running if each.name == str(exc)]
        where = "".join(f" on {each.host}, pid {each.pid}" for each in same)
        noun = "a worker" if role == "worker" else "an ingest process"
        what = f"{exc} is the name of {noun} that runs{where}; choose another"
        raise Failure(Exit.CONFLICT, "name_taken", "--name", what) from exc


def _banner(
    call: Invocation, settings: Settings, role: str, name: str | None, routes: Sequence[Route]
) -> Iterator[str]:
    """The lines that a process prints when it starts: its store, brokers, sources and settings."""
    from delaybridge.operate.doctor.checks import measured, server_name
    from delaybridge.store.namespace import registry
    from delaybridge.times import format_duration

    with call.store() as store:
        server, persistence = store.run([registry.info(s) for s in ("server", "persistence")])
        trip_ms, ahead_ms = measured(store)
        about = store.describe()
    aof = "on" if persistence.get("aof_enabled") == "1" else "off"
    who = name or f"{socket.gethostname()}:{os.getpid()}"
    yield f"delaybridge {__version__} {role} {who}  (Ctrl-C drains, twice aborts)"
    yield (
        f" store    {settings.redis.url}  {server_name(server)}  aof {aof}  "
        f"latency {trip_ms:.2f} ms  clock {round(ahead_ms):+d} ms"
    )
    if about:
        yield f" redis    {about}"
    for broker, url in settings.brokers.items():
        yield f" broker   {broker}  {url}"
    for route in routes:
        yield f" ingest   {route} -> {route.target or 'the same without .delay'}"
    yield (
        f" buckets  {settings.buckets} in {settings.namespace}  "
        f"processes {settings.scan.processes}  batch {settings.scan.batch_messages}  "
        f"lease {format_duration(settings.lease.ttl_ms)}"
    )


def worker_exit_code(exc: BaseException) -> int:
    """The exit code of a worker process that ended with this error."""
    from delaybridge.scan.leases.fleet import NameTaken

    if isinstance(exc, NameTaken):
        return Exit.CONFLICT
    return failure_of(exc).exit if isinstance(exc, Exception) else Exit.FAILED
