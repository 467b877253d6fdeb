"""`delaybridge alarm`: Redis came back with an older past, empty or without some keys."""

from __future__ import annotations

import click

from delaybridge.operate.doctor.finding import FAIL, OK
from delaybridge.operate.terminal.failure import Exit
from delaybridge.operate.terminal.grammar import Group, pass_call
from delaybridge.operate.terminal.invocation import Invocation
from delaybridge.store.namespace import alarms


@click.group(cls=Group)
def alarm() -> None:
    """Whether Redis came back with an older past, empty or without some keys."""


@alarm.command("show")
@pass_call
def show(call: Invocation) -> int:
    """Show what workers noticed; exits with 1 if there is something."""
    with call.store() as store:
        found = store.complete(alarms.read(call.settings.namespace))
    call.output.verdict(found.data, FAIL if found.text else OK, found.text or "no alarm")
    return Exit.FAILED if found.text else Exit.DONE


@alarm.command("clear")
@pass_call
def clear(call: Invocation) -> None:
    """Go on with what Redis has now: workers of a wiped namespace start again."""
    with call.store() as store:
        cleared = store.complete(alarms.clear(call.settings.namespace))
    call.output.result({"cleared": cleared}, "cleared" if cleared else "no alarm")
