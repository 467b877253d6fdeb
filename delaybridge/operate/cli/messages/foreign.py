"""`delaybridge message import --from`: what another system holds for later."""

from __future__ import annotations

import json
import signal
from contextlib import closing
from typing import Any

from delaybridge.errors import ConfigError
from delaybridge.foreign.carrying import Carrying, DestinationCount
from delaybridge.foreign.source import SYSTEMS, SourceError
from delaybridge.operate.terminal.failure import INTERRUPTED, Exit, Failure, refused
from delaybridge.operate.terminal.grammar import option, options
from delaybridge.operate.terminal.interrupts import interrupts
from delaybridge.operate.terminal.invocation import Invocation
from delaybridge.operate.terminal.progress import progress
from delaybridge.operate.views.described import moment
from delaybridge.settings.urls import check_broker_url, kind_of, redact

_NAMES = ", ".join(SYSTEMS)
_AGAIN = "import again: the ids are the same, so nothing is stored twice"
_MOST_NAMED = 20  # of the entries that stay; with --json all are
foreign_options = options(
    option("--from SYSTEM", f"The system that the URL is of: {_NAMES}.", to="system"),
    option("--to D", "Where messages go, as 'rabbitmq:{queue}/{name}'.", default=""),
    option("--queue Q", "Only this queue; repeat for more.", to="queues", multiple=True),
    option("--prefix TEXT", "Of the system's keys or queues.", default=""),
    option("--remove", "Remove there what is stored here; only of Celery.", to="removes"),
)


def import_from(
    call: Invocation, url: str, system: str, *, removes: bool, dry: bool, yes: bool, **where: Any
) -> int:
    """Import what the system at a URL holds; the exit code."""
    if system not in SYSTEMS:
        raise refused("--from", f"got {system[:40]!r}; give one of {_NAMES}")
    _check(url, system, where["to"], removes)
    if removes and not dry:
        call.confirm(f"remove from {redact(url)} what is stored here", yes=yes)
    call.begin_log()
    with call.client(remedy=_AGAIN) as client:
        try:
            given = where["to"], where["queues"], where["prefix"]
            with closing(SYSTEMS[system].open(url, *given)) as source:
                code = _run(call, Carrying(client, source, dry, removes))
        except SourceError as exc:
            raise Failure(Exit.UNREACHABLE, "failed", "URL", f"{exc} ({redact(url)})") from exc
        except ConfigError as exc:
            raise refused("URL", str(exc).partition(": ")[2], "config") from exc
    if SYSTEMS[system].clearing and not dry:
        call.note(f"look at them here, then remove them there: {SYSTEMS[system].clearing}")
    return code


def _check(url: str, system: str, to: str, removes: bool) -> None:
    clearing, kind = SYSTEMS[system].clearing, SYSTEMS[system].kind
    try:
        found = kind_of(check_broker_url(url))
    except ValueError as exc:
        raise refused("URL", f"give {exc}") from None
    if found != kind:
        raise refused("URL", f"of a {found}; {system} is read from a {kind}")
    if clearing and not to:
        raise refused("--to", "missing; say where messages go, as --to 'rabbitmq:/{queue}'")
    if clearing and removes:
        raise refused("--remove", f"only of Celery; {system} has a way of its own: {clearing}")


def _run(call: Invocation, carrying: Carrying) -> int:
    named, answers, output = 0, carrying.answers, call.output
    with interrupts(signal.SIGINT) as check:
        try:
            with progress(None, wanted=output.is_watched, label="reading") as advance:
                for stays in carrying.run():
                    for each in stays if output.json else stays[: _MOST_NAMED - named]:
                        named += 1
                        as_json = json.dumps({"left": each._asdict()})
                        output.error_line(as_json if output.json else f"left: {each}")
                    advance(len(stays))
                    check()
        except KeyboardInterrupt:
            return INTERRUPTED.show(as_json=output.json)
        finally:
            output.table(sorted(carrying.groups.values()), _row, data=DestinationCount._asdict)
            if output.json:
                summary = {**+answers, "dry_run": carrying.dry}
                output.error_line(json.dumps({"summary": summary}))
            counts = [f"{n:,} {word.replace('_', ' ')}" for word, n in (+answers).items()]
            call.note(", ".join(counts) or "nothing is pending there")
    left = answers["left"]
    return Exit.DONE if not left else Exit.PARTLY if carrying.groups else Exit.REFUSED


def _row(group: DestinationCount) -> dict[str, Any]:
    return {
        "DESTINATION": group.destination,
        ">MESSAGES": group.messages,
        "FIRST DUE": moment(group.first_ms),
        "LAST DUE": moment(group.last_ms),
    }
