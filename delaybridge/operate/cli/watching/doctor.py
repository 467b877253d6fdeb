"""`delaybridge doctor`: checks everything a deployment needs, and names what to change."""

from __future__ import annotations

import logging

import click

from delaybridge.operate.doctor.finding import FAIL
from delaybridge.operate.doctor.findings import findings
from delaybridge.operate.terminal.failure import Exit
from delaybridge.operate.terminal.grammar import Command, pass_call
from delaybridge.operate.terminal.invocation import Invocation


@click.command("doctor", cls=Command)
@pass_call
def doctor(call: Invocation) -> int:
    """Check Redis, brokers, clock and workers; say what to change. Exits with 1 if a check fails.

    Changes nothing: scripts are tried on a bucket of their own, which is removed.
    """
    settings = call.settings
    if call.verbose:
        from delaybridge.operate.terminal.logs import configure

        configure(as_json=call.output.json, verbose=True)
    else:
        logging.basicConfig(handlers=[logging.NullHandler()])
    has_failed = False
    for finding in findings(settings):
        has_failed |= finding.level == FAIL
        data = {"level": finding.level.lower(), "about": finding.about, "text": finding.text}
        call.output.verdict(data, finding.level, f"{finding.about}: {finding.text}")
    return Exit.FAILED if has_failed else Exit.DONE
