"""`delaybridge health`, `doctor` and `alarm`: whether all is well, as exit codes too."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from functools import partial

import click

import delaybridge
from delaybridge.operate.doctor.checks import recurring_definitions
from delaybridge.operate.doctor.durability import durability
from delaybridge.operate.notices import alarms
from delaybridge.operate.notices.silent_buckets import numbers
from delaybridge.operate.terminal.failure import Exit
from delaybridge.operate.terminal.grammar import DURATION, Command, Group, option, pass_call
from delaybridge.operate.terminal.invocation import Invocation
from delaybridge.operate.troubles.finding import FAIL, OK, Finding
from delaybridge.operate.troubles.found import Thresholds, troubles
from delaybridge.operate.views.described import unowned
from delaybridge.operate.views.facts import Fullness, fullest
from delaybridge.recurring.summary import DefinitionCounts, count_definitions
from delaybridge.settings.durability import Durability
from delaybridge.store.namespace import gate
from delaybridge.store.namespace.gate import Shortfall
from delaybridge.store.namespace.namespace import Namespace
from delaybridge.store.protocol.verbs import Steps
from delaybridge.times import roughly

LOOK_AGAIN_S = 0.5
_NAMED = 10  # troubles; doctor has them all
_ON_TIME = "nothing is late"
_OVERDUE = "How late the oldest waiting message may be."
_UNOWNED = "How long a bucket may lack a worker; the check waits up to this long."
_RETRYING = "How long a message may have been failing and retried."


@click.command("health", cls=Command)
@option("--max-overdue", _OVERDUE, to="overdue_ms", type=DURATION, default="5s")
@option("--max-unowned", _UNOWNED, to="unowned_ms", type=DURATION, default="0s")
@option("--max-retrying-age", _RETRYING, to="retrying_ms", type=DURATION, default="15s")
@pass_call
def health(call: Invocation, overdue_ms: int, unowned_ms: int, retrying_ms: int) -> int:
    """Check that messages go out on time; exits with 0 or 1.

    Exits with 1 if messages are late or keep failing, if a broker or a bucket's worker is missing,
    if Redis is nearly full, damaged or has lost messages, if a source is not read, or if Redis
    lacks what `durability` asks for; with 5 if Redis is unreachable.
    What an operator has paused or limited is not late. Notes follow: what is paused, rules that are
    not obeyed, workers that vanished. `delaybridge doctor` has the remedy of each.
    """
    with call.client(reads=True) as client:
        found, alone = _watch(client, unowned_ms)
        definitions = client.run(count_definitions) or DefinitionCounts()
        lacking, memory = client.run(partial(_of_servers, call.settings.kept))
    kept = list(durability(lacking, call.settings))
    thresholds = Thresholds(overdue_ms, retrying_ms, alone)
    listed = troubles(found, memory, settings=call.settings, thresholds=thresholds)
    wrong = [*listed, *kept, *recurring_definitions(definitions)]
    red = [each for each in wrong if each.is_red]
    notes = [each for each in wrong if each.trouble and not each.is_red]
    data = {
        "healthy": not red,
        "overdue_ms": found.overdue_ms,
        "buckets": len(found.buckets),
        "redis": found.redis,
        "durability": call.settings.durability,
        "is_durable": all(each.level != FAIL for each in kept),
        "unseen": numbers(found.unseen),
        "unowned": sorted(alone),
        "retrying_age_ms": max((found.now_ms - r.since_ms for r in found.retrying), default=0),
        "paused": [each.place for each in found.paused],
        "faults": [each.what for each in red],
        "notes": [each.what for each in notes],
        "troubles": [each.data for each in (*red, *notes)],
    }
    call.output.verdict(data, FAIL if red else OK, _sentence(found, red, notes, overdue_ms))
    if red:
        call.note("what to do: delaybridge doctor")
    return Exit.FAILED if red else Exit.DONE


def _sentence(
    found: delaybridge.Stats, red: Sequence[Finding], notes: Sequence[Finding], overdue_ms: int
) -> str:
    """All of it in one sentence; of many things only the number."""
    said = [each.what for each in (*red, *notes)]
    if not red:
        late = f"nothing is over {roughly(overdue_ms)} late"
        said.insert(0, f"every bucket has its worker, {late if found.overdue_ms else _ON_TIME}")
    if (more := len(said) - _NAMED) > 0:
        said[_NAMED:] = [f"and {more} more: delaybridge doctor"]
    text = "; ".join(said)
    return f"{found.redis}: {text}" if found.redis else text


def _of_servers(
    kept: Durability, calls: Namespace
) -> Steps[tuple[list[Shortfall], Fullness | None]]:
    """What the Redis servers lack of the durability, and the fullest of them."""
    lacking = yield from gate.find_shortfalls(kept, calls.placement)
    return lacking, (yield from fullest(calls.placement))


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
@option("--engine", "Only whether this kind of server can do all that is needed.", to="is_engine")
@pass_call
def doctor(call: Invocation, is_engine: bool) -> int:
    """Check Redis, brokers, clock and workers; say what to change. Exits with 1 if a check fails.

    Changes nothing: scripts are tried on a bucket of their own, which is removed.
    With --engine it tries each command and script that is needed, on Redis or what takes its place,
    and names the setting that helps.
    """
    from delaybridge.operate.doctor.engine import engine
    from delaybridge.operate.doctor.findings import findings

    settings = call.settings
    if call.verbose:
        call.begin_log()
    else:
        logging.basicConfig(handlers=[logging.NullHandler()])
    has_failed = False
    for finding in engine(settings) if is_engine else findings(settings):
        has_failed |= finding.level == FAIL
        code = f"  [{finding.code}]" if finding.code else ""
        text = f"{finding.about}: {finding.text}{code}"
        call.output.verdict(finding.data, finding.level, text)
    return Exit.FAILED if has_failed else Exit.DONE


@click.group(cls=Group)
def alarm() -> None:
    """Whether Redis came back older, empty or without keys."""


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
