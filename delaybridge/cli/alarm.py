"""`delaybridge alarm`: Redis came back with an older past, or empty, and workers noticed it."""

from __future__ import annotations

from typing import Any

import click

from delaybridge.cli.failure import Exit
from delaybridge.cli.grammar import Group, pass_call
from delaybridge.cli.invocation import Invocation
from delaybridge.doctor.finding import FAIL, OK
from delaybridge.store import setbacks


@click.group(cls=Group)
def alarm() -> None:
    """Whether Redis came back with an older past, or empty."""


@alarm.command("show")
@pass_call
def show(call: Invocation) -> int:
    """Show what workers noticed; exits with 1 if there is something."""
    with call.store() as store:
        (found,) = store.run([setbacks.read(call.settings.namespace)])
    if not found:
        call.output.verdict({"alarm": None, "setbacks": []}, OK, "no alarm")
        return Exit.DONE
    data: dict[str, Any] = {
        "alarm": setbacks.told(found),
        "setbacks": [each._asdict() for each in found],
    }
    call.output.verdict(data, FAIL, setbacks.told(found))
    return Exit.FAILED


@alarm.command("clear")
@pass_call
def clear(call: Invocation) -> None:
    """Go on with what Redis has now: workers of a wiped namespace start again."""
    with call.store() as store:
        (cleared,) = store.run([setbacks.clear(call.settings.namespace)])
    call.output.result({"cleared": bool(cleared)}, "cleared" if cleared else "no alarm")
