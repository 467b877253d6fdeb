"""A message's life, by the ledger: what `message show` prints below the message."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import delaybridge
from delaybridge.operate.terminal.invocation import Invocation
from delaybridge.operate.terminal.output import Output
from delaybridge.operate.views.described import moment

if TYPE_CHECKING:
    from delaybridge.ledger.sql.rows import Life, Step


def life_of(call: Invocation, id: str) -> Life | None:
    """The life of an id, by the ledger; None if there is no ledger, or it does not answer."""
    settings = call.settings
    if not settings.ledger.url:
        return None
    from delaybridge.ledger import open_ledger
    from delaybridge.store.protocol.command import Work

    ledger = open_ledger(settings.ledger.url, timeout_s=settings.redis.timeout_s)
    try:
        from delaybridge.ledger.sql.records import Records

        records = Records(settings.namespace)
        return ledger.run(Work(lambda on: records.life(on, id)))
    except delaybridge.StoreUnavailable as exc:
        call.note(f"warning: {exc}")
        return None
    finally:
        ledger.close()


def show_life(output: Output, life: Life) -> None:
    """Print the calls of a life and how each ended, a line for each."""
    output.line("\nlife, by the ledger:")
    events: list[tuple[int, str]] = []
    for row in life.rows:
        events.append((row.created_ms, f"scheduled, due {moment(row.due_ms)}"))
        if row.state not in {step.after for step in life.steps} | {"delayed"}:
            events.append((row.updated_ms, _because(row.state, row.error)))
    events += ((step.at_ms, _told(step)) for step in life.steps)
    for at_ms, what in sorted(events, key=lambda event: event[0]):
        output.line(f"  {moment(at_ms)}  {what}")


def described_life(life: Life) -> dict[str, Any]:
    """A life as JSON, as over HTTP."""
    import msgspec

    from delaybridge.ledger.recording.life_of_id import recorded_life

    found: dict[str, Any] = msgspec.to_builtins(recorded_life(life))
    return found


def _told(step: Step) -> str:
    return _because(f"{step.before} -> {step.after}  {step.worker}", step.error)


def _because(text: str, error: str) -> str:
    return f"{text}: {error}" if error else text
