"""`delaybridge health`, `doctor` and `alarm`: whether all is well, as exit codes too."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Sequence
from itertools import islice

import click

import delaybridge
from delaybridge.operate.doctor.checks import (
    RULES,
    STORE,
    clocks,
    definitions_of,
    problems,
    recurring_definitions,
)
from delaybridge.operate.doctor.durability import durability
from delaybridge.operate.doctor.finding import FAIL, OK, Finding
from delaybridge.operate.notices import alarms
from delaybridge.operate.notices.silent_buckets import numbers
from delaybridge.operate.terminal.failure import Exit
from delaybridge.operate.terminal.grammar import DURATION, Command, Group, option, pass_call
from delaybridge.operate.terminal.invocation import Invocation
from delaybridge.operate.views.alerts import failing_text, paused_text
from delaybridge.operate.views.described import unowned
from delaybridge.store.namespace import gate

LOOK_AGAIN_S = 0.5
_NAMED = 3  # failing destinations
_OVERDUE = "How late the oldest waiting message may be."
_UNOWNED = "How long a bucket may lack a worker; the check waits up to this long."
_RETRYING = "How long a message may have been failing and retried."


@click.command("health", cls=Command)
@option("--max-overdue", _OVERDUE, to="overdue_ms", type=DURATION, default="5s")
@option("--max-unowned", _UNOWNED, to="unowned_ms", type=DURATION, default="0s")
@option("--max-retrying-age", _RETRYING, to="retrying_ms", type=DURATION, default="1m")
@pass_call
def health(call: Invocation, overdue_ms: int, unowned_ms: int, retrying_ms: int) -> int:
    """Check that messages go out on time; exits with 0 or 1.

    Exits with 1 if messages are late or keep failing, if a bucket has no worker, if a key is
    damaged or has lost messages, if recurring messages are not made or rates not recorded, if a
    delay exchange or delay topic is not read, or its messages go elsewhere, or if Redis lacks what
    `durability` asks for; with 5 if Redis is unreachable.
    What an operator has paused or limited is not late. The text also says what is paused, which
    rules are not obeyed, and which recurring definitions fail: a restart of workers mends none of
    these.
    """
    with call.client(reads=True) as client:
        found, alone = _watch(client, unowned_ms)
        definitions = definitions_of(client) or []
        lacking = client.run(
            lambda calls: gate.find_shortfalls(call.settings.kept, calls.placement)
        )
    kept = list(durability(lacking, call.settings))
    ages_ms = [found.now_ms - each.since_ms for each in found.retrying]
    failing = [r for r, ms in zip(found.retrying, ages_ms, strict=True) if ms > retrying_ms]
    troubles = found.troubles if found.overdue_ms > overdue_ms else ()
    relevant = found._replace(retrying=failing[:_NAMED], troubles=troubles[:_NAMED])
    listed = list(problems(relevant, call.settings, alone=alone, max_overdue_ms=overdue_ms))
    faults = [finding.what for finding in listed if not _is_note(finding)]
    faults += [f"durability {call.settings.durability}: {f.what}" for f in kept if f.level == FAIL]
    notes = list(_notes(found, listed, definitions))
    data = {
        "healthy": not faults,
        "overdue_ms": found.overdue_ms,
        "buckets": len(found.buckets),
        "redis": found.redis,
        "durability": call.settings.durability,
        "is_durable": all(finding.level != FAIL for finding in kept),
        "unseen": numbers(found.unseen),
        "unowned": sorted(alone),
        "retrying_age_ms": max(ages_ms, default=0),
        "paused": [each.place for each in found.paused],
        "faults": faults,
        "notes": notes,
    }
    well = ["every bucket has its worker, nothing is late"]
    well += [failing_text(each, found) for each in found.retrying[:_NAMED]]
    text = "; ".join([*(faults or well), *notes])
    text = f"{found.redis}: {text}" if found.redis else text
    call.output.verdict(data, FAIL if faults else OK, text)
    return Exit.FAILED if faults else Exit.DONE


def _is_note(finding: Finding) -> bool:
    """Whether it is no reason to fail (any more)."""
    return finding.about == RULES or (finding.about == STORE and finding.level != FAIL)


def _notes(
    found: delaybridge.Stats,
    listed: Sequence[Finding],
    definitions: Sequence[delaybridge.Recurring],
) -> Iterator[str]:
    """Further oddities, which no restart of a worker mends."""
    for each in found.paused[:_NAMED]:
        yield paused_text(each, found.now_ms)
    for finding in listed:
        if _is_note(finding):
            yield finding.what
    if found.rules.by_place and (ignoring := found.ignoring[:_NAMED]):
        yield f"workers of an older version ignore rules: {', '.join(ignoring)}"
    for finding in islice(clocks(found), _NAMED):
        yield finding.what
    wrong = [one for one in recurring_definitions(definitions) if one.level != OK]
    for finding in wrong[:_NAMED]:
        yield f"recurring {finding.what}"


def _watch(client: delaybridge.Client, patience_ms: int) -> tuple[delaybridge.Stats, set[int]]:
    """The stats, and the buckets that had no worker throughout `patience_ms`."""
    until_s = time.monotonic() + patience_ms / 1000
    found = client.stats()
    alone = set(unowned(found.buckets))
    while alone and (left_s := until_s - time.monotonic()) > 0:
        time.sleep(min(left_s, LOOK_AGAIN_S))
        found = client.stats()
        alone &= set(unowned(found.buckets))
    return found, alone


@click.command("doctor", cls=Command)
@pass_call
def doctor(call: Invocation) -> int:
    """Check Redis, brokers, clock and workers; say what to change. Exits with 1 if a check fails.

    Changes nothing: scripts are tried on a bucket of their own, which is removed.
    """
    from delaybridge.operate.doctor.findings import findings

    settings = call.settings
    if call.verbose:
        call.begin_log()
    else:
        logging.basicConfig(handlers=[logging.NullHandler()])
    has_failed = False
    for finding in findings(settings):
        has_failed |= finding.level == FAIL
        data = {"level": finding.level.lower(), "about": finding.about, "text": finding.text}
        call.output.verdict(data, finding.level, f"{finding.about}: {finding.text}")
    return Exit.FAILED if has_failed else Exit.DONE


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
