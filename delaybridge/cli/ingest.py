"""`delaybridge ingest`: delay exchanges and delay topics, read into the store."""

from __future__ import annotations

import click

from delaybridge.cli.failure import Exit, Failure
from delaybridge.cli.grammar import Command, Group, name_option, pass_session
from delaybridge.cli.session import Session

_NAME = name_option("The process' name. [default: host and pid]")
_TAKE_OVER = click.option(
    "--take-over",
    "owners",
    multiple=True,
    metavar="NAMESPACE@BIRTH",
    help="Take over the sources of this abandoned namespace. Repeat for several.",
)


@click.group(cls=Group)
def ingest() -> None:
    """Read delay exchanges or delay topics into the store.

    Producers publish to X.delay instead of X, with the delay in a header (x-delay in ms, or
    delaybridge-delay as 15m); workers publish the message to X when it is due. Start as many as you
    like. SIGTERM and Ctrl-C drain.
    """


@ingest.command("rabbitmq", cls=Command)
@click.option(
    "--exchange",
    "exchanges",
    multiple=True,
    metavar="X.delay",
    help="A delay exchange, declared if missing: [BROKER:]X.delay or NAME=TARGET, and "
    ";type=fanout (topic, headers, direct). Repeat for several. [default: ingest.exchanges]",
)
@_TAKE_OVER
@_NAME
@pass_session
def rabbitmq(
    session: Session, exchanges: tuple[str, ...], owners: tuple[str, ...], name: str | None
) -> None:
    """Read delay exchanges of RabbitMQ."""
    _work(session, "rabbitmq", {"exchanges": exchanges, "take_over": owners}, name)


@ingest.command("kafka", cls=Command)
@click.option(
    "--topic",
    "topics",
    multiple=True,
    metavar="T.delay",
    help="A delay topic, or a pattern with *: [BROKER:]T.delay or NAME=TARGET. Repeat for several. "
    "[default: ingest.topics, *.delay]",
)
@click.option(
    "--skip-offset",
    "skips",
    multiple=True,
    metavar="T/PARTITION=OFFSET",
    help="Skip an offset that cannot be read; its record is lost. Repeat for several.",
)
@_TAKE_OVER
@_NAME
@pass_session
def kafka(
    session: Session,
    topics: tuple[str, ...],
    skips: tuple[str, ...],
    owners: tuple[str, ...],
    name: str | None,
) -> None:
    """Read delay topics of Kafka, as a member of the consumer group ingest.group."""
    given = {"topics": topics, "skip_offsets": skips, "take_over": owners}
    _work(session, "kafka", given, name)


def _work(session: Session, kind: str, given: dict[str, tuple[str, ...]], name: str | None) -> None:
    flags = {setting: list(texts) for setting, texts in given.items() if texts}
    settings = session.load({"ingest": flags})
    from delaybridge.cli.banner import show_banner
    from delaybridge.cli.logs import configure
    from delaybridge.publish import check_brokers
    from delaybridge.scan.lease import NameTaken
    from delaybridge.worker.ingester import routes_of, run_ingest

    check_brokers(settings.brokers, settings.publish, [kind])
    routes = routes_of(settings, [kind])
    show_banner(session, settings, name, routes, role="ingest")
    for caution in settings.cautions():
        session.note(f"warning: {caution}")
    configure(as_json=session.output.json, verbose=session.verbose)
    try:
        run_ingest(settings, routes=routes, kinds=[kind], name=name)
    except NameTaken as exc:
        what = f"{exc} is the name of an ingest process that runs; choose another"
        raise Failure(Exit.CONFLICT, "name_taken", "--name", what) from exc
