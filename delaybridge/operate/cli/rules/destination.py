"""`delaybridge destination`: what waits for each destination, and the rules that steer it."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import click

import delaybridge
from delaybridge.client.destinations import DestinationVerbs
from delaybridge.client.verbs import verbs_of
from delaybridge.operate.cli.messages.bulk import BulkVerb, perform
from delaybridge.operate.cli.messages.targets import (
    PENDING_STATES,
    Targets,
    check_confirmed,
    purge_options,
)
from delaybridge.operate.terminal import grammar
from delaybridge.operate.terminal.failure import Exit, Failure, refused
from delaybridge.operate.terminal.grammar import Group, option, pass_call
from delaybridge.operate.terminal.invocation import Invocation
from delaybridge.operate.terminal.output import Row, moment_and_wait
from delaybridge.operate.terminal.quantities import per_second
from delaybridge.operate.views.described import (
    error_of,
    place_data,
    retrying_text,
    rule_data,
    tally_text,
)
from delaybridge.times import in_time, roughly

if TYPE_CHECKING:
    from delaybridge.operate.views.destinations import Place, Places
    from delaybridge.store.namespace.rules import Rule

_COUNTS = ("delayed", "parked", "in_flight", "dead")
_PLACE = click.argument("destination", metavar="D")
_OFF = option("--off", "Remove this rule.")
_NEW = option("--new", "D may have no message and no rule yet.")


@click.group(cls=Group)
def destination() -> None:
    """Pause, limit, spread, purge what goes to a destination.

    D is a whole destination (rabbitmq:orders/close), an exchange or topic (rabbitmq:orders,
    kafka:orders), or a broker (rabbitmq). A rule holds for all messages of D, is kept in Redis,
    and is obeyed by all workers within a second.
    """


@destination.command("ls")
@pass_call
def ls(call: Invocation) -> None:
    """List destinations that have messages, a rule or trouble.

    A row counts the messages of narrower rows, too. If more than 2000 messages are in one state,
    the numbers are estimates, and begin with ~.
    """
    with call.client() as client:
        found = client.destinations()

    def row(place: Place) -> Row:
        return _row(place, found.now_ms)

    def data(place: Place) -> dict[str, Any]:
        return place_data(place, found)

    if not call.output.table(
        found.places, row, spare=("RULE", ">DEAD", ">IN FLIGHT", "NEXT DUE"), data=data
    ):
        call.note("no messages, no rules")
    _show_notes(call, found)


@destination.command("show")
@_PLACE
@pass_call
def show(call: Invocation, destination: str) -> int:
    """Show one destination: what waits, each rule in force, and which place sets it.

    Exit code 3: there is no message to it, and no rule for it.
    """
    with call.client() as client:
        found = client.destinations(destination)
    (place,) = found.places
    if call.output.json:
        call.output.result(place_data(place, found), "")
    else:
        call.output.fields(_facts(place, found.now_ms))
    _show_notes(call, found)
    return Exit.NOT_FOUND if found.is_unused else Exit.DONE


def _add_plain_command(name: str, help: str) -> None:
    """Add the command of a verb that needs nothing but the destination."""

    @destination.command(name, help=help)
    @_PLACE
    @pass_call
    def command(call: Invocation, destination: str) -> None:
        _steer(call, destination, lambda c: getattr(c.destinations, name)(destination))


@destination.command("pause")
@_PLACE
@_NEW
@pass_call
def pause(call: Invocation, destination: str, new: bool) -> None:
    """Publish nothing to D: what falls due waits, in order, and costs no attempt.

    Messages that were handed to the broker before are delivered. Those with a ttl may expire.
    """
    _steer(call, destination, lambda client: client.destinations.pause(destination), new=new)


@destination.command("resume")
@_PLACE
@pass_call
def resume(call: Invocation, destination: str) -> None:
    """End the pause of D: what waited goes out, the earliest first.

    It is no error if D is not paused.
    """
    was_paused = True

    def change(client: delaybridge.Client) -> Rule:
        nonlocal was_paused
        was_paused = client.destinations(destination).places[0].rule.paused
        return client.destinations.resume(destination)

    _steer(call, destination, change)
    if not was_paused:
        call.note(f"{destination} itself was not paused")


@destination.command("limit")
@_PLACE
@option("--rate N/s", "Messages a second, of all workers together; also N/m or N/h.")
@_OFF
@_NEW
@pass_call
def limit(call: Invocation, destination: str, rate: str | None, off: bool, new: bool) -> None:
    """Publish at most N messages a second to D. Limits of broader places hold as well."""
    _check_off(off, "--rate", rate)
    number = None if rate is None else per_second(rate)
    _steer(call, destination, lambda c: c.destinations.limit(destination, number), new=new or off)


@destination.command("spread")
@_PLACE
@click.argument("window", required=False)
@_OFF
@_NEW
@pass_call
def spread(call: Invocation, destination: str, window: str | None, off: bool, new: bool) -> None:
    """Let messages due in one instant leave over WINDOW, as 10m; none of them early."""
    _check_off(off, "WINDOW", window)
    _steer(call, destination, lambda c: c.destinations.spread(destination, window), new=new or off)


@destination.command("retry")
@_PLACE
@grammar.plan_options
@grammar.further_plan_options
@_OFF
@_NEW
@pass_call
def retry(call: Invocation, destination: str, off: bool, new: bool, **plan: Any) -> None:
    """Set what happens after failed publishes to D; options not given stay as they are.

    The plan of a message comes before that of its destination, and both before the settings of
    the workers. --dead-letter '' means the dead set, whatever else is set.
    """
    given = {field: value for field, value in plan.items() if value is not None}
    _check_off(off, "--max-attempts", given or None, "give it, another option, or --off")
    new, change = new or off, None if off else given
    _steer(call, destination, lambda c: c.destinations.retry_plan(destination, change), new=new)


@destination.command("purge")
@_PLACE
@purge_options
@pass_call
def purge(call: Invocation, destination: str, confirm: str | None, dry_run: bool) -> int:
    """Cancel all messages to D, also parked and paused ones, and delete its dead ones.

    They are counted first. Messages already handed to the broker are too late: `in_flight`. None
    of the others is delivered. A purge is not a pause: new messages are accepted meanwhile.
    """
    flag = check_confirmed(destination, confirm)
    targets = Targets(
        place=destination,
        default_states=(*PENDING_STATES, "dead"),
        yes=confirm is not None,
        dry_run=dry_run,
        confirmed_by=flag,
        repeated=True,
    )
    return perform(call, targets, BulkVerb("cancel_many", "purge"))


def _add_plain_commands() -> None:
    """Add the commands of rows that need nothing but the destination and have none yet."""
    for name, row in verbs_of(DestinationVerbs).items():
        is_plain = [*inspect.signature(row.call).parameters] == ["self", "destination"]
        if is_plain and name not in destination.commands:
            _add_plain_command(name, inspect.getdoc(row.call) or row.help)


_add_plain_commands()


def _check_off(off: bool, flag: str, given: object, missing: str = "give it, or --off") -> None:
    if off == (given is not None):
        what = "given together with --off; give one of them" if off else f"missing; {missing}"
        raise refused(flag, what)


def _steer(
    call: Invocation,
    destination: str,
    change: Callable[[delaybridge.Client], Rule],
    *,
    new: bool = True,
) -> None:
    """Change a rule, then show what holds for the destination now.

    Unless it is `new`, an exchange, topic or queue without a message and a rule is refused.
    """
    with call.client(remedy="run the command again") as client:
        if not new:
            _check_used(client, destination)
        rule = change(client)
        found = None
        with suppress(delaybridge.StoreError):  # the change was made: that is the result
            found = client.destinations(destination)
    if found is None:
        data = {"destination": destination, "rule": rule_data(rule)}
        call.output.result(data, f"{destination}  {_rule_text(rule) or 'no rule'}")
        return
    (place,) = found.places
    numbers = _numbers(place)
    text = f"{place.place}  {_state_text(place)}  "
    text += f"{numbers['parked']} parked, {numbers['delayed']} delayed"
    call.output.result(place_data(place, found), f"{text}  {_rule_text(rule)}".rstrip())
    _show_notes(call, found)
    if place.paused_by and not rule.paused:
        call.note(f"still paused: delaybridge destination resume {place.paused_by[0]}")


def _check_used(client: delaybridge.Client, destination: str) -> None:
    """Failure if a destination has no message and no rule, as after a typing error."""
    with suppress(delaybridge.StoreError):  # it does not hinder the change
        found = client.destinations(destination)
        if found.is_unused and ":" in destination:
            hint = "to set the rule before its first message, add --new"
            raise Failure(Exit.REFUSED, "unused", "destination", found.unused_text, hint)


def _rule_text(rule: Rule) -> str:
    """`rate=500/s retry.max_attempts=3`; a pause is shown as the state."""
    fields = {n: value for n, value in rule_data(rule).items() if not n.startswith("paused")}
    plan = fields.pop("retry", {})
    fields |= {f"retry.{name}": value for name, value in plan.items()}
    return " ".join(f"{n.removesuffix('_ms')}={_value(n, v)}" for n, v in fields.items())


def _value(name: str, value: Any) -> str:
    if name.endswith("_ms"):
        return roughly(value)
    if name == "dead_letter":
        return value or "(the dead set)"
    if name == "rate":
        return _rate_text(value)
    return f"{value:g}" if isinstance(value, float) else str(value)


def _rate_text(rate: float) -> str:
    """`500/s`; seven digits, so that the highest rate is not 1e+06."""
    return f"{rate:.7g}/s"


def _numbers(place: Place) -> dict[str, str]:
    """The counts, with ~ before estimates."""
    return {name: tally_text(getattr(place, name)) for name in _COUNTS}


def _state_text(place: Place) -> str:
    """`paused`, `paused by rabbitmq`, `trouble`, `retrying 12`, `limited 500/s`, `ok`."""
    if by := place.paused_by:
        return "paused" if by[0] == place.place else f"paused by {by[0]}"
    if place.state == "retrying":
        return f"retrying {sum(each.messages for each in place.retrying):,}"
    if place.state == "limited":
        return f"limited {_rate_text(place.in_force['rate'][0])}"
    return place.state


def _row(place: Place, now_ms: int) -> Row:
    numbers, due_ms = _numbers(place), place.next_due_ms
    return {
        "DESTINATION": place.place,
        "STATE": _state_text(place),
        ">DELAYED": numbers["delayed"],
        ">PARKED": numbers["parked"],
        ">IN FLIGHT": numbers["in_flight"],
        ">DEAD": numbers["dead"],
        "NEXT DUE": None if due_ms is None else in_time(due_ms - now_ms),
        "RULE": _rule_text(place.rule) or None,
    }


def _facts(place: Place, now_ms: int) -> Iterator[tuple[str, object]]:
    numbers, paused = _numbers(place), place.paused_by
    yield "destination", place.place
    yield "state", _state_text(place)
    if paused:
        yield "paused since", moment_and_wait(paused[1], now_ms) or "unknown"
    yield "trouble", place.trouble
    for each in place.retrying:
        yield "retrying", retrying_text(each, now_ms)
    for name in _COUNTS:
        yield name.replace("_", " "), numbers[name]
    yield "next due", moment_and_wait(place.next_due_ms, now_ms)
    for name, (value, by) in place.in_force.items():
        origin = "" if by == place.place else f"  (set for {by})"
        yield name.removesuffix("_ms"), f"{_value(name, value)}{origin}"
    if not place.levels:
        yield "rules", "none: the settings of the workers hold"


def _show_notes(call: Invocation, found: Places) -> None:
    if found.ignoring and any(place.levels for place in found.places):
        names = ", ".join(found.ignoring[:5])
        more = f" and {len(found.ignoring) - 5} more" if len(found.ignoring) > 5 else ""
        call.note(f"warning: workers of an older version ignore these rules: {names}{more}")
    if found.more and len(found.places) > 1:
        call.note(f"{found.more:,} more destinations with fewer messages")
    if error := max(map(error_of, found.places), default=0):
        call.note(f"~: estimated from a sample; off by up to {error:,} (95 of 100 cases)")
    for place, what in found.odd.items():
        call.note(f"warning: ignored in the rule of {place}: {what}")
    if len(found.places) == 1 and (found.near or found.is_unused):
        call.note(found.unused_text)
    if found.damaged:
        call.note("warning: not everything could be read; see: delaybridge doctor")
