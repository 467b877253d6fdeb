"""`delaybridge message import --from`: what another system holds for later."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

from delaybridge.errors import ConfigError
from delaybridge.foreign.source import SYSTEMS, PendingLine, Source, SourceError, opened
from delaybridge.operate.terminal.failure import Exit, Failure, refused
from delaybridge.operate.terminal.grammar import option, options
from delaybridge.operate.terminal.invocation import Invocation
from delaybridge.operate.terminal.progress import progress
from delaybridge.settings.urls import check_broker_url, kind_of, redact

if TYPE_CHECKING:
    from delaybridge.carry.importing import Ready

_NAMES = ", ".join(SYSTEMS)
_FORMS = {"redis": "redis[s]://HOST[:PORT][/DB]", "rabbitmq": "amqp[s]://HOST[:PORT][/VHOST]"}
_AGAIN = "import again: the ids are the same, so nothing is stored twice"
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
    """Import what the system at a URL holds for later; the exit code."""
    from delaybridge.carry.importing import Import
    from delaybridge.operate.cli.messages.carrying import import_lines, tell

    _check(url, system, where["to"], removes)
    if removes and not dry:
        call.confirm(f"remove from {redact(url)} what is stored here", yes=yes)
    call.begin_log()
    with (
        call.client(remedy=_AGAIN) as client,
        _opened(url, system, where["to"], where["queues"], where["prefix"]) as source,
        progress(None, wanted=not call.output.json, label="import") as advance,
    ):
        limits = call.settings.limits.as_limits()
        told = partial(tell, call)
        run = Import(client.kinds, limits, tell=told, dry=dry, noun="entry")

        def stored(ready: Sequence[Ready]) -> None:
            if removes and not dry:
                lines = (each.line for each in ready)
                source.remove([line.mark for line in lines if isinstance(line, PendingLine)])
                run.counts["removed"] += len(ready)
            advance(len(ready))

        return import_lines(call, client, run, enumerate(source.lines(), 1), stored)


@contextmanager
def _opened(url: str, system: str, *given: Any) -> Iterator[Source]:
    try:
        try:
            source = opened(system, url, *given)
        except ConfigError as exc:
            raise refused("URL", str(exc).partition(": ")[2], "config") from exc
        with closing(source):
            yield source
    except SourceError as exc:
        raise Failure(Exit.UNREACHABLE, "failed", "URL", f"{exc} ({redact(url)})") from exc


def _check(url: str, system: str, to: str, removes: bool) -> None:
    if system not in SYSTEMS:
        raise refused("--from", f"got {system[:80]!r}; give one of {_NAMES}")
    kind, is_celery = SYSTEMS[system][0], system.startswith("celery")
    try:
        found = kind_of(check_broker_url(url))
    except ValueError as exc:
        found = str(exc)
    if found != kind:
        raise refused("URL", f"{system} is read from a {kind}; give {_FORMS[kind]}")
    if unknown := set(re.findall(r"{([^{}]*)}", to)) - {"queue", "name"}:
        raise refused("--to", f"{{{unknown.pop()}}} is unknown; there are {{queue}} and {{name}}")
    if not is_celery and not to:
        raise refused("--to", "missing; say where messages go, as --to 'rabbitmq:/{queue}'")
    if not is_celery and removes:
        raise refused("--remove", "only of Celery; the system has a way of its own (the docs)")
