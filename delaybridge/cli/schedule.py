"""`delaybridge schedule`: one message from the command line, or one per line of stdin."""

from __future__ import annotations

import os
import shlex
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import IO, TYPE_CHECKING, Any, NoReturn

import click

from delaybridge.cli.failure import Exit, Failure
from delaybridge.cli.grammar import Command, as_bytes, pass_session, text_or_bytes
from delaybridge.cli.output import in_time, moment
from delaybridge.cli.session import Session

if TYPE_CHECKING:
    from delaybridge.client import Client
    from delaybridge.store.scheduling import Receipt

# AMQP properties that are numbers; all others are text.
_NUMBERS = ("delivery_mode", "priority", "timestamp", "partition")


@click.command("schedule", cls=Command)
@click.argument("destination")
@click.argument("body", required=False, metavar="[BODY | -]")
@click.option("--in", "delay", metavar="DURATION", help="How long from now, as 15m or 1h30m.")
@click.option("--at", metavar="TIME", help="When, as 2030-01-31T09:00:00Z.")
@click.option("--id", metavar="ID", help="The message's id; generated if omitted.")
@click.option(
    "-k",
    "--key",
    metavar="KEY",
    callback=as_bytes,
    help="Kafka's record key; messages of one key keep their order.",
)
@click.option("-H", "--header", "headers", metavar="NAME=VALUE", multiple=True, help="A header.")
@click.option(
    "-P",
    "--property",
    "properties",
    metavar="NAME=VALUE",
    multiple=True,
    help="An AMQP property, as content_type=text/plain; for Kafka partition=N.",
)
@click.option(
    "--priority",
    type=int,
    metavar="N",
    default=0,
    help="0 to 255; the highest goes first among messages due in the same millisecond.",
)
@click.option(
    "--ttl", metavar="DURATION", help="How long after its due time it is still worth delivering."
)
@click.option("--at-most-once", is_flag=True, help="May be lost in a crash; never duplicated.")
@click.option(
    "--on-conflict",
    type=click.Choice(["fail", "keep", "replace"]),
    default="fail",
    show_default=True,
    help="What to do if the id is pending already.",
)
@click.option("--lines", is_flag=True, help="Each line of stdin is the body of one message.")
@click.option("--keep-going", is_flag=True, help="With --lines: skip what is refused, exit with 6.")
@pass_session
def schedule(session: Session, /, body: str | None, **options: Any) -> int | None:
    """Accept a message now, to be delivered to DESTINATION later.

    DESTINATION is rabbitmq:EXCHANGE/ROUTING.KEY, rabbitmq:/QUEUE or kafka:TOPIC; the part
    before the colon is the name of a configured broker. BODY is the message; - reads it from stdin.

    \b
    delaybridge schedule kafka:orders.timeout --in 15m '{"order": 42}'
    delaybridge schedule rabbitmq:orders/close --at 2030-01-31T09:00:00Z - < body
    delaybridge schedule rabbitmq:/jobs --in 1h --lines < jobs.txt

    Prints the message's id and when it is due, and warns if no worker runs. With --lines empty
    lines are skipped, and on a terminal only a summary is printed.
    """
    lines, keep_going = options.pop("lines"), options.pop("keep_going")
    on_conflict = options.pop("on_conflict")
    _refuse_contradictions(body, options, lines, keep_going)
    arguments = _arguments(options)
    if lines:
        from delaybridge.cli.lines import schedule_lines

        return schedule_lines(session, arguments, on_conflict, keep_going=keep_going)
    limit = session.settings.limits.body_bytes
    content = _stdin_body(session, limit) if body == "-" else os.fsencode(body or "")
    _schedule_one(session, content, arguments, on_conflict)
    return None


def _refuse_contradictions(
    body: str | None, options: dict[str, Any], lines: bool, keep_going: bool
) -> None:
    if options["delay"] is not None and options["at"] is not None:
        _refuse("time_ambiguous", "--in", "given together with --at; give one of them")
    if options["delay"] is None and options["at"] is None:
        _refuse("time_required", "--in", "missing; say when: --in 15m or --at TIME")
    if lines and body is not None:
        _refuse("usage", "BODY", "given together with --lines, which reads bodies from stdin")
    if lines and options["id"] is not None:
        _refuse("usage", "--id", "given together with --lines: one id, many messages")
    if not lines and keep_going:
        _refuse("usage", "--keep-going", "only together with --lines")
    if not lines and body is None:
        _refuse("usage", "BODY", "missing; give it as an argument, or - to read it from stdin")


def _refuse(code: str, field: str, what: str) -> NoReturn:
    raise Failure(Exit.REFUSED, code, field, what)


def _arguments(options: dict[str, Any]) -> dict[str, Any]:
    """The options as `Message` takes them."""
    return {
        **options,
        "headers": [
            (name, text_or_bytes(value)) for name, value in _pairs(options["headers"], "-H")
        ],
        "properties": {name: _property(name, v) for name, v in _unique(options["properties"])},
    }


def _pairs(texts: Sequence[str], flag: str) -> list[tuple[str, str]]:
    pairs = []
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals:
            _refuse("usage", flag, f"got {text[:80]!r}; write NAME=VALUE")
        pairs.append((name, value))
    return pairs


def _unique(texts: Sequence[str]) -> list[tuple[str, str]]:
    pairs = _pairs(texts, "-P")
    for name in {name for name, _ in pairs if [n for n, _ in pairs].count(name) > 1}:
        _refuse("usage", "-P", f"{name} is given twice")
    return pairs


def _property(name: str, value: str) -> Any:
    if name not in _NUMBERS:
        return text_or_bytes(value)
    digits = value.removeprefix("-")
    if not (digits.isascii() and digits.isdigit() and len(digits) <= 18):
        _refuse("bad_property", "-P", f"{name}: got {value[:80]!r}; give a whole number")
    return int(value)


def stdin_bytes(session: Session, what: str) -> IO[bytes]:
    """stdin as bytes; Failure where it is closed, a hint where a person must type."""
    if sys.stdin is None or sys.stdin.closed:
        raise Failure(Exit.REFUSED, "usage", "BODY", "stdin is closed; pipe the input into it")
    if sys.stdin.isatty():
        session.note(f"reading {what} from the terminal; Ctrl-D ends it")
    return sys.stdin.buffer


def _stdin_body(session: Session, limit: int) -> bytes:
    """All of stdin; what is too long is refused after one byte too many."""
    body = stdin_bytes(session, "the body").read(limit + 1)
    if len(body) > limit:
        what = f"longer than {limit} bytes, the limit (limits.body_bytes)"
        raise Failure(Exit.REFUSED, "body_too_large", "BODY", what)
    return body


def _schedule_one(
    session: Session, body: bytes, arguments: dict[str, Any], on_conflict: str
) -> None:
    from delaybridge.message import Message, new_id

    id = new_id() if arguments["id"] is None else arguments["id"]
    message = Message(body=body, **{**arguments, "id": id})
    repeat = f"if it may have arrived, repeat it with --id {shlex.quote(id)}: it comes once"
    with session.client(remedy=repeat) as client:
        (receipt,) = client.schedule_many([message], on_conflict=on_conflict)
        if receipt.answer.value == "conflict":
            what = f"{id!r} is pending with other content, due {moment(receipt.due_ms)}"
            remedy = "choose another id, or --on-conflict replace"
            raise Failure(Exit.CONFLICT, "conflict", "--id", f"{what}; {remedy}")
        session.output.result(*shown(receipt))
        warn_if_nobody_works(session, client)


def warn_if_nobody_works(session: Session, client: Client) -> None:
    """Say that nothing will be delivered as things stand; what was scheduled, is."""
    from delaybridge.errors import DelayBridgeError

    with suppress(DelayBridgeError):  # perhaps this user may only schedule
        if not client.stats().workers:
            session.note("warning: no worker runs; start one: delaybridge scan")


def shown(receipt: Receipt) -> tuple[dict[str, Any], str]:
    """As data, and as a line: id, due time, bucket; the answer where it is not `created`."""
    wait_ms = receipt.due_ms - time.time_ns() // 1_000_000
    data = {
        "id": receipt.id,
        "answer": receipt.answer.value,
        "due": moment(receipt.due_ms),
        "due_ms": receipt.due_ms,
        "bucket": receipt.bucket,
    }
    text = f"{receipt.id}  due {data['due']}  {in_time(wait_ms)}  bucket {receipt.bucket}"
    if receipt.answer.value != "created":
        text += f"  {receipt.answer.value}"
    return data, text
