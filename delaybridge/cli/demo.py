"""`delaybridge demo`."""

from __future__ import annotations

import click

from delaybridge.cli.grammar import Command, pass_session
from delaybridge.cli.session import Session


@click.command("demo", cls=Command)
@click.option("--broker", metavar="URL", help="A real broker; else an embedded Kafka.")
@click.option(
    "--messages",
    type=click.IntRange(10, 1_000_000),
    metavar="N",
    default=300,
    show_default=True,
    help="How many to schedule.",
)
@click.option(
    "--seconds",
    type=click.IntRange(1, 600),
    metavar="N",
    default=10,
    show_default=True,
    help="Over how long they fall due.",
)
@click.option("--no-kill", is_flag=True, help="Leave both workers alive.")
@pass_session
def demo(session: Session, broker: str | None, messages: int, seconds: int, no_kill: bool) -> int:
    """Watch it work: two workers, one of them killed, a verdict.

    A private Redis, two worker processes, a consumer that imports only its client library. Exit
    code 0 only if everything due arrived, and nothing early. Uses no broker but the one you name.
    """
    from delaybridge.demo import run

    return run(
        broker=broker,
        messages=messages,
        seconds=seconds,
        kill=not no_kill,
        color=session.output.color,
    )
