"""`delaybridge recurring`: messages that are sent again and again."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

import click

import delaybridge
from delaybridge.errors import quoted
from delaybridge.operate.cli.messages.scheduling import described, message_fields, stdin_body
from delaybridge.operate.cli.messages.scheduling import warn_without_workers as warn
from delaybridge.operate.terminal import grammar
from delaybridge.operate.terminal.failure import Exit, Failure
from delaybridge.operate.terminal.grammar import Group, option, options, pass_call
from delaybridge.operate.terminal.invocation import Invocation
from delaybridge.operate.terminal.output import Row, moment_and_wait
from delaybridge.operate.views.described import moment
from delaybridge.times import format_duration, in_time

if TYPE_CHECKING:
    from delaybridge.recurring.client import Preview

_NAME = click.argument("name", metavar="NAME")
_cron_option = option("--cron CRON", "When: 5 fields, as '*/15 9-17 * * MON-FRI'.")
_every_option = option("--every DURATION", "Or: how long from one run to the next, from 1s.")
_tz_option = option("--tz ZONE", "The time zone of --cron, as Europe/Berlin.", default="UTC")
_MISSED = click.Choice(["skip", "one", "all"])
_fields = options(
    _cron_option,
    _every_option,
    _tz_option,
    option("--start TIME", "No run is due before.", type=grammar.TIME, to="start_ms"),
    option("--end TIME", "No run is due after.", type=grammar.TIME, to="end_ms"),
    option("--missed", "Runs that are made after no worker ran.", type=_MISSED, default="one"),
    option("-H --header NAME=VALUE", "A header.", to="headers", multiple=True),
    option("-P --property NAME=VALUE", "An AMQP property.", to="properties", multiple=True),
    option("-k --key KEY", "Kafka's record key; messages of one key keep their order."),
    option("--priority N", "0 to 255.", type=int, default=0, show_default=False),
    option("--ttl DURATION", "How long after its due time a run is still worth delivering."),
    grammar.plan_options,
    option("--at-most-once", "May be lost in a crash; never duplicated."),
)


@click.group(cls=Group)
def recurring() -> None:
    """Messages sent again and again, by cron expression or interval.

    Workers make a message of each run, one run ahead, with the id NAME@DUE, as
    report@2030-01-31T09:00:00Z; any number of workers make one.
    """


@recurring.command("ls")
@pass_call
def ls(call: Invocation) -> None:
    """List definitions: when each runs, its state, its next and its last run."""
    with call.client() as client:
        found, now_ms = client.recurring.list(), call.now_ms(client)

    def row(one: delaybridge.Recurring) -> Row:
        return _row(one, now_ms)

    spare = ("LAST", ">MISSED", "ZONE", "DESTINATION")
    if not call.output.table(found, row, spare=spare, data=_data):
        call.note("no recurring definitions; add one: delaybridge recurring add")
    for one in found:
        if one.error:
            call.note(f"{one.name}: {one.error}")


@recurring.command("add")
@_NAME
@click.argument("destination")
@click.argument("body", required=False, metavar="[BODY | -]")
@_fields
@option("--paused", "Add it paused.")
@option("--replace", "Replace another definition of this name.")
@pass_call
def add(call: Invocation, name: str, destination: str, body: str | None, **given: Any) -> None:
    """Send BODY to DESTINATION again and again.

    In BODY and headers, ${due}, ${due_ms} and ${name} stand for the run's due time and the name;
    write $${ for ${.

    \b
    delaybridge recurring add report rabbitmq:reports/daily '{"for": "${due}"}' \\
        --cron '0 9 * * MON-FRI' --tz Europe/Berlin
    delaybridge recurring add beat kafka:heartbeats --every 30s

    A time that the clocks skip runs when the gap ends, one that they show twice runs once (see
    docs/recurring.md). The same command again changes nothing.
    """
    from delaybridge.recurring.client import definition_of, preview_of_definition

    content = stdin_body(call) if body == "-" else os.fsencode(body or "")
    given = message_fields(given)
    bounds_ms, replace = (given.pop("start_ms"), given.pop("end_ms")), given.pop("replace")
    from msgspec import structs

    definition = definition_of(name, destination, content, **given)
    definition = structs.replace(definition, start_ms=bounds_ms[0], end_ms=bounds_ms[1])
    from delaybridge.recurring.definitions import Definitions

    with call.client() as client:
        answer = client.run(lambda calls: Definitions(calls).add(definition, replace=replace))
        preview = preview_of_definition(definition, 1, call.now_ms(client))
        data = {"name": name, "answer": answer.value, "next": _iso(preview.times[:1])}
        next_run = f"next {_shown(preview.times[0])}" if preview.times else "no further run"
        if definition.paused:
            next_run = "paused"
        call.output.result(data, f"{name}  {answer.value}  {next_run}")
        warn(call, client)


@recurring.command("preview")
@click.argument("spec", metavar="[CRON | NAME]", required=False)
@_every_option
@_tz_option
@option("-n --count N", "How many runs.", type=click.IntRange(1, 1000), default=5)
@pass_call
def preview(call: Invocation, spec: str | None, every: str | None, tz: str, count: int) -> None:
    """Say when a cron expression, or a definition, runs next.

    \b
    delaybridge recurring preview '*/15 9-17 * * MON-FRI' --tz Europe/Berlin
    """
    from delaybridge.recurring.client import preview_of, preview_of_definition
    from delaybridge.recurring.definition import is_name

    if spec is None or not is_name(spec):
        found = preview_of(spec, every, tz, count)
    else:
        with call.client() as client:
            one, now_ms = _known(client.recurring.get(spec), spec), call.now_ms(client)
        if one.definition is None:
            raise Failure(Exit.FAILED, "bad_definition", "NAME", one.error)
        found = preview_of_definition(one.definition, count, now_ms)
    lines = _lines(found)
    if call.output.json:
        call.output.result({"words": found.words, "runs": _iso(found.times)}, "")
    else:
        call.output.line(found.words)
        for line in lines:
            call.output.line(line)


@recurring.command("show")
@_NAME
@pass_call
def show(call: Invocation, name: str) -> None:
    """Show one definition with all its fields."""
    with call.client() as client:
        one, now_ms = _known(client.recurring.get(name), name), call.now_ms(client)
    if call.output.json:
        call.output.result(_data(one), "")
    else:
        call.output.fields(_facts(one, now_ms))


@recurring.command("pause")
@_NAME
@pass_call
def pause(call: Invocation, name: str) -> None:
    """Make no further run, and cancel those that are not due."""
    from delaybridge.recurring.definitions import Definitions

    with call.client() as client:
        found = client.run(lambda calls: Definitions(calls).pause(name, paused=True))
    _say_ended(call, name, "paused", _known(found, name))


@recurring.command("resume")
@_NAME
@pass_call
def resume(call: Invocation, name: str) -> None:
    """Go on with the first run from now on; those in between are not made."""
    from delaybridge.recurring.definitions import Definitions

    with call.client() as client:
        found = client.run(lambda calls: Definitions(calls).pause(name, paused=False))
        _say_ended(call, name, "resumed", _known(found, name))
        warn(call, client)


@recurring.command("run")
@_NAME
@pass_call
def run(call: Invocation, name: str) -> None:
    """Send it once now, besides the plan, with an id as NAME@NOW/run-5f0c21ab."""
    with call.client() as client:
        receipt = _known(client.recurring.run(name), name)
        call.output.result(*described(receipt, call.now_ms(client)))
        warn(call, client)


@recurring.command("backfill")
@_NAME
@option("--from TIME", "The first run is due at this time or later.", to="from_ms",
        type=grammar.TIME, required=True)  # fmt: skip
@option("--to TIME", "The last is due before.  [default: now]", to="to_ms", type=grammar.TIME)
@pass_call
def backfill(call: Invocation, name: str, from_ms: int, to_ms: int | None) -> None:
    """Make the runs of a span in the past that were not made, due now, in order.

    Runs that were made, by the plan or by another backfill, are not made again. If it is
    interrupted, repeat it: it goes on where it ended.
    """
    from delaybridge.recurring.definitions import Definitions

    with call.client() as client:
        found = _known(
            client.run(lambda calls: Definitions(calls).backfill(name, from_ms, to_ms)), name
        )
        span = f"{moment(found.from_ms)} until {moment(found.to_ms)}"
        text = f"{name}  {found.made} runs made, {found.known} had been made before  {span}"
        call.output.result({"name": name, **found._asdict()}, text)
        warn(call, client)


@recurring.command("rm")
@_NAME
@option("--idempotently", "It is no error if there is no such definition.")
@pass_call
def rm(call: Invocation, name: str, idempotently: bool) -> None:
    """Remove a definition, and cancel its runs that are not due."""
    from delaybridge.recurring.definitions import Definitions

    with call.client() as client:
        found = client.run(lambda calls: Definitions(calls).remove(name))
    if found is None and idempotently:
        found = {}
    _say_ended(call, name, "removed", _known(found, name))


def _known(found: Any, name: str) -> Any:
    if found is None:
        raise Failure(Exit.NOT_FOUND, "not_found", "NAME", f"no definition is named {quoted(name)}")
    return found


def _say_ended(call: Invocation, name: str, done: str, answers: dict[int, Any]) -> None:
    """Say how the runs ended that were ahead."""
    told = {due_ms: one.value for due_ms, one in answers.items() if one.value != "unknown"}
    runs = ", ".join(f"{moment(due_ms)} {answer}" for due_ms, answer in told.items())
    data = {"name": name, "answer": done, "runs": [{"due_ms": d, "answer": a} for d, a in
                                                   told.items()]}  # fmt: skip
    call.output.result(data, f"{name}  {done}" + (f"; run {runs}" if runs else ""))


def _row(one: delaybridge.Recurring, now_ms: int) -> Row:
    definition = one.definition
    return {
        "NAME": one.name,
        "WHEN": None if definition is None else definition.spec,
        "ZONE": definition.tz if definition is not None and definition.cron else None,
        "DESTINATION": None if definition is None else definition.destination,
        "STATE": one.state,
        "NEXT": None if one.next_ms is None else in_time(one.next_ms - now_ms),
        "LAST": moment(one.last_ms),
        ">MISSED": one.missed,
    }


def _data(one: delaybridge.Recurring) -> dict[str, Any]:
    from msgspec import to_builtins

    fields = {} if one.definition is None else to_builtins(one.definition)
    return {**one._asdict(), "definition": fields}


def _facts(one: delaybridge.Recurring, now_ms: int) -> Iterator[tuple[str, object]]:
    yield "name", one.name
    yield "state", one.state
    yield "error", one.error or None
    yield "next", moment_and_wait(one.next_ms, now_ms)
    yield "last", moment(one.last_ms)
    yield "missed runs", one.missed or None
    for field, value in _data(one)["definition"].items():
        if field in ("start_ms", "end_ms"):
            yield field.removesuffix("_ms"), moment(value)
        elif field.endswith("_ms"):
            yield field.removesuffix("_ms"), format_duration(value)
        elif field == "retry":
            yield field, " ".join(f"{name}={each}" for name, each in value.items())
        elif field in ("headers", "properties"):
            pairs = value.items() if isinstance(value, dict) else value
            yield from ((field, f"{name}={each}") for name, each in pairs)
        elif field != "name":
            yield field, value


def _lines(found: Preview) -> Sequence[str]:
    """The next runs, a line for each day, as `Mon 2026-11-23 09:00  09:15  UTC`."""
    lines: list[str] = []
    day = None
    for each in found.times:
        clock = each.strftime("%H:%M:%S" if each.second else "%H:%M")
        if each.date() == day:
            lines[-1] += f"  {clock}"
        else:
            lines.append(f"{each:%a %Y-%m-%d} {clock}")
        day = each.date()
    zone = getattr(found.times[0].tzinfo, "key", "UTC") if found.times else ""
    return [f"{line}  {zone}" for line in lines]


def _shown(at: datetime) -> str:
    return f"{at:%a %Y-%m-%d %H:%M:%S} {getattr(at.tzinfo, 'key', 'UTC')}"


def _iso(times: Sequence[datetime]) -> list[str]:
    return [each.isoformat() for each in times]
