"""`delaybridge demo`."""

from __future__ import annotations

from typing import Any

import click

from delaybridge.operate.cli.processes.serve import has_web
from delaybridge.operate.terminal.failure import refused
from delaybridge.operate.terminal.grammar import Command, option, pass_call
from delaybridge.operate.terminal.invocation import Invocation

_MESSAGES_DEFAULT, _SECONDS_DEFAULT = 300, 10
_PORT = click.IntRange(0, 65_535)
_MESSAGES, _SECONDS = click.IntRange(10, 1_000_000), click.IntRange(1, 600)


@click.command("demo", cls=Command)
@option("--broker URL", "A real broker; else an embedded Kafka.")
@option("--redis URL", "A Redis, in a namespace that is deleted at the end; else a private one.")
@option("--messages N", "How many to schedule.", type=_MESSAGES, default=_MESSAGES_DEFAULT)
@option("--seconds N", "Over how long they fall due.", type=_SECONDS, default=_SECONDS_DEFAULT)
@option("--no-kill", "Leave both workers alive.")
@option("--serve", "Open the console on a load without end; Ctrl-C ends it with a verdict.")
@option("--port PORT", "Of the console. [default: 8645, or any free one]", type=_PORT)
@option("--no-browser", "With --serve: only print the console's address.")
@pass_call
def demo(call: Invocation, /, no_kill: bool, no_browser: bool, **given: Any) -> int:
    """Watch it work: two workers, one of them killed, a verdict.

    A private Redis, two worker processes, a consumer that imports only its client library. Exit
    code 0 only if everything due arrived, and nothing early. Uses no broker and no Redis but those
    you name here.
    """
    if given["serve"] and not has_web():
        raise refused("--serve", 'it needs: pip install "delaybridge[demo,web]"', "config")
    load = given["messages"], given["seconds"]
    if given["serve"] and load != (_MESSAGES_DEFAULT, _SECONDS_DEFAULT):
        what = "its load has no end; leave out --messages and --seconds"
        raise refused("--serve", what, "usage")
    from delaybridge.operate.demo import Plan, run

    given["redis"] = given["redis"] or call.redis
    plan = Plan(kill=not no_kill, browser=not no_browser, **given)
    return run(plan, color=call.output.color)
