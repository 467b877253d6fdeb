"""`delaybridge demo`."""

from __future__ import annotations

import click

from delaybridge.cli.grammar import Command, option, pass_call
from delaybridge.cli.invocation import Invocation

_MESSAGES, _SECONDS = click.IntRange(10, 1_000_000), click.IntRange(1, 600)


@click.command("demo", cls=Command)
@option("--broker URL", "A real broker; else an embedded Kafka.")
@option("--redis URL", "A Redis, in a namespace that is deleted at the end; else a private one.")
@option("--messages N", "How many to schedule.", type=_MESSAGES, default=300)
@option("--seconds N", "Over how long they fall due.", type=_SECONDS, default=10)
@option("--no-kill", "Leave both workers alive.")
@pass_call
def demo(
    call: Invocation,
    broker: str | None,
    redis: str | None,
    messages: int,
    seconds: int,
    no_kill: bool,
) -> int:
    """Watch it work: two workers, one of them killed, a verdict.

    A private Redis, two worker processes, a consumer that imports only its client library. Exit
    code 0 only if everything due arrived, and nothing early. Uses no broker and no Redis but those
    you name here.
    """
    from delaybridge.demo import Plan, run

    plan = Plan(messages=messages, seconds=seconds, kill=not no_kill)
    return run(plan, broker, redis or call.redis, color=call.output.color)
