"""`delaybridge schedule`: one message from the command line, or one per line of stdin."""

from __future__ import annotations

import os
import shlex
from typing import Any

import click

import delaybridge
from delaybridge.operate.cli.messages.lines import schedule_lines
from delaybridge.operate.cli.messages.scheduling import (
    described,
    message_fields,
    stdin_body,
    warn_without_workers,
)
from delaybridge.operate.terminal import grammar
from delaybridge.operate.terminal.failure import Exit, Failure, refused
from delaybridge.operate.terminal.grammar import Command, option, pass_call
from delaybridge.operate.terminal.invocation import Invocation
from delaybridge.operate.views.described import moment

_TIMES = {"--in": "delay", "--at": "at", "--debounce": "debounce", "--throttle": "throttle"}
_NAMES = ("--debounce", "--throttle", "--id")


@click.command("schedule", cls=Command)
@click.argument("destination")
@click.argument("body", required=False, metavar="[BODY | -]")
@grammar.in_option
@grammar.at_option
@grammar.gathering_options
@option("--id ID", "The message's id; generated if omitted.")
@option("-k --key", "Kafka's record key; messages of one key keep their order.", type=grammar.KEY)
@option("-H --header NAME=VALUE", "A header.", to="headers", multiple=True)
@option(
    "-P --property NAME=VALUE",
    "An AMQP property, as content_type=text/plain; for Kafka partition=N.",
    to="properties",
    multiple=True,
)
@option(
    "--priority N",
    "0 to 255; the highest goes first among messages due in the same millisecond.",
    type=int,
    default=0,
    show_default=False,
)
@option("--ttl DURATION", "How long after its due time it is still worth delivering.")
@grammar.plan_options
@option("--at-most-once", "May be lost in a crash; never duplicated.")
@option(
    "--tenant NAME",
    "Whose message it is: stored as NAME/ID, delivered as ID.",
    default="",
    show_default=False,
)
@option(
    "--on-conflict",
    "What to do if the id is pending already.",
    type=click.Choice(["fail", "keep", "replace"]),
    default="fail",
)
@option("--lines", "Each line of stdin is the body of one message.")
@option("--keep-going", "With --lines: skip refused lines, exit with 6.")
@pass_call
def schedule(
    call: Invocation,
    /,
    body: str | None,
    on_conflict: str,
    lines: bool,
    keep_going: bool,
    **arguments: Any,
) -> int | None:
    """Accept a message now, to be delivered to DESTINATION later.

    DESTINATION is rabbitmq:EXCHANGE/ROUTING.KEY, rabbitmq:/QUEUE or kafka:TOPIC; the part
    before the colon is the name of a configured broker. BODY is the message; - reads it from stdin.

    \b
    delaybridge schedule kafka:orders.timeout --in 15m '{"order": 42}'
    delaybridge schedule rabbitmq:orders/close --at 2030-01-31T09:00:00Z - < body
    delaybridge schedule rabbitmq:/jobs --in 1h --lines < jobs.txt
    delaybridge schedule rabbitmq:/index 42 --debounce page:42 --quiet 5m
    delaybridge schedule rabbitmq:/mail hello --throttle user:7 --every 1m

    Prints the message's id and when it is due, and warns if no worker runs. With --lines empty
    lines are skipped, and on a terminal only a summary is printed.
    """
    _check_combination(body, lines, keep_going, arguments)
    arguments = message_fields(arguments)
    if lines:
        return schedule_lines(call, arguments, on_conflict, keep_going=keep_going)
    content = stdin_body(call) if body == "-" else os.fsencode(body or "")
    _schedule_one(call, content, arguments, on_conflict)
    return None


def _check_combination(
    body: str | None, lines: bool, keep_going: bool, arguments: dict[str, Any]
) -> None:
    times = [flag for flag, name in _TIMES.items() if arguments[name] is not None]
    if len(times) > 1:
        what = f"given together with {times[1]}; give one of them"
        raise refused(times[0], what, "time_ambiguous")
    if not times:
        raise refused("--in", "missing; say when: --in 15m or --at TIME", "time_required")
    if lines and body is not None:
        raise refused("BODY", "given together with --lines, which reads bodies from stdin")
    named = [*times, "--id"] if arguments["id"] is not None else times
    if lines and named[-1] in _NAMES:
        raise refused(named[-1], "given together with --lines: one id, many messages")
    if arguments["id"] is not None and times[0] in _NAMES:
        raise refused("--id", f"given together with {times[0]}, whose key is the id")
    if not lines and keep_going:
        raise refused("--keep-going", "only together with --lines")
    if not lines and body is None:
        raise refused("BODY", "missing; give it as an argument, or - to read it from stdin")


def _schedule_one(
    call: Invocation, body: bytes, arguments: dict[str, Any], on_conflict: str
) -> None:
    from delaybridge.client.requests import receipt_unless_conflict
    from delaybridge.message import new_id

    id = new_id() if arguments["id"] is None else arguments["id"]
    message = delaybridge.Message(body=body, **{**arguments, "id": id})
    repeat = f"it may be stored; repeat with --id {shlex.quote(id)}, and it is stored once"
    if is_gathered := isinstance(message.delay, delaybridge.Debounce | delaybridge.Throttle):
        repeat = "it may be stored; repeat it"
    with call.client(remedy=repeat) as client:
        (receipt,) = client.schedule_many([message], on_conflict=on_conflict)
        if receipt.answer.value == "conflict":
            if is_gathered:
                receipt_unless_conflict(receipt, message)
            what = f"{id!r} is pending with other content, due {moment(receipt.due_ms)}"
            remedy = "choose another id, or --on-conflict replace"
            raise Failure(Exit.CONFLICT, "conflict", "--id", f"{what}; {remedy}")
        if receipt.answer.value == "in_flight":
            what = f"{receipt.id!r} is being delivered, not settled in time; nothing was stored"
            raise Failure(Exit.CONFLICT, "in_flight", "--id", f"{what}: try again")
        call.output.result(*described(receipt, call.now_ms(client)))
        warn_without_workers(call, client)
