"""`delaybridge ledger`: the database of `durability = ledger`."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click

import delaybridge
from delaybridge.operate.cli.messages.targets import check_confirmed, purge_options
from delaybridge.operate.terminal import grammar
from delaybridge.operate.terminal.failure import Exit, Failure
from delaybridge.operate.terminal.grammar import Group, option, pass_call
from delaybridge.operate.terminal.invocation import Invocation
from delaybridge.operate.terminal.progress import progress
from delaybridge.settings.durability import Keeping

if TYPE_CHECKING:
    from delaybridge.ledger.comparing.agreement import Looked
    from delaybridge.ledger.sql.records import Records


@click.group(cls=Group)
def ledger() -> None:
    """The ledger's database: make its tables, restore or purge by it."""


@ledger.command("upgrade")
@pass_call
def upgrade(call: Invocation) -> None:
    """Make the ledger's tables, or bring them to the version of this program.

    Safe to repeat. Needs the right to make tables, which nothing else needs.
    """
    from delaybridge.ledger.sql.database import upgrade as run

    before, after = run(_url(call), call.settings.redis.timeout_s)
    what = f"version {after}" if before != after else f"version {after} already"
    call.output.result({"before": before, "version": after}, f"the ledger's tables have {what}")


@ledger.command("restore")
@option("--id ID", "Only this message. Repeat for several.", to="ids", multiple=True)
@option("--since", "Only messages due at this time or later.", to="from_ms", type=grammar.TIME)
@option("--until", "Only messages due at this time or earlier.", to="to_ms", type=grammar.TIME)
@click.option(
    "--expired/--no-expired", default=True, show_default=True,
    help="Also messages that are due already.",
)  # fmt: skip
@option("--dry-run", "Only count them.")
@pass_call
def restore(
    call: Invocation,
    ids: tuple[str, ...],
    from_ms: int | None,
    to_ms: int | None,
    expired: bool,
    dry_run: bool,
) -> None:
    """Bring messages of the ledger back that Redis lacks.

    Workers do it by themselves. It is safe at any time: while messages are accepted and workers
    run. What was published, cancelled or moved meanwhile is not brought back.
    """
    from delaybridge.ledger.comparing.agreement import WantedRows
    from delaybridge.ledger.comparing.restoring import restore_all

    began_s, now_ms = time.monotonic(), time.time_ns() // 1_000_000
    first_ms = max(from_ms or 0, 0 if expired else now_ms)
    last_ms = 2**53 if to_ms is None else to_ms
    wanted = WantedRows(first_ms, last_ms, frozenset(ids) or None, dry=dry_run)
    with (
        _recording(call) as client,
        progress(None, wanted=not call.output.json, label="restore") as advance,
    ):

        def on_page(looked: Looked) -> None:
            advance(looked.rows)

        records = _records(call)
        found = client.run(lambda calls: restore_all(calls, records, wanted, on_page))  # type: ignore[arg-type,return-value]
        unlisted = sum(each.unlisted for each in client.stats().buckets)
    seconds = round(time.monotonic() - began_s, 1)
    data = {"rows": found.rows, "restored": found.absent, "unlisted": unlisted, "dry_run": dry_run}
    verb = "to be restored" if dry_run else "restored"
    text = f"{found.absent:,} of {found.rows:,} messages {verb} in {seconds} s"
    if unlisted:
        text += f"; {unlisted:,} are in Redis, but in no set: workers find them within a minute"
    call.output.result({**data, "seconds": seconds}, text)


@ledger.command("purge")
@option("--destination D", "A broker, an exchange or topic, or a whole destination.", required=True)
@purge_options
@pass_call
def purge(call: Invocation, destination: str, confirm: str | None, dry_run: bool) -> int:
    """Cancel all unfinished messages of a destination, by the ledger's record.

    Also those that Redis lacks, and dead ones. Messages already handed to the broker are too
    late: `in_flight`. None of the others is delivered. It is recorded in the audit.
    """
    flag = check_confirmed(destination, confirm)
    from delaybridge.client.destinations import Purge

    with _recording(call) as client:
        count = sum(map(len, client.select(Purge(destination).selection)))
        if dry_run:
            call.output.result({"messages": count, "dry_run": True}, f"{count:,} messages")
            return Exit.DONE
        call.confirm(f"purge {count:,} messages", yes=confirm is not None, flag=flag)
        act = _audit(call, client, {"what": "purge", "asked": json.dumps([destination, count])})
        answers = client.destinations.purge(destination)
        _audit(call, client, {"what": "purge", "act": act, "answer": json.dumps(answers)})
    said = ", ".join(f"{n:,} {word}" for word, n in answers.items()) or "no messages"
    call.output.result({"destination": destination, "answers": answers}, said)
    return Exit.PARTLY if answers.get(delaybridge.Answer.IN_FLIGHT) else Exit.DONE


def _audit(call: Invocation, client: delaybridge.Client, record: dict[str, str]) -> str:
    from delaybridge.operate.views import audit

    said = {"who": "command line", **record}

    def ask() -> Any:
        return (yield [audit.write(call.settings.namespace, said, of_admin=True)])[0]

    return str(client.run(lambda calls: ask()))


@contextmanager
def _recording(call: Invocation) -> Iterator[delaybridge.Client]:
    """A client that records in the ledger, also if `durability` asks for less."""
    _url(call)
    settings = call.settings.model_copy(update={"durability": Keeping.LEDGER.value})
    with call.client_of(settings) as client:
        yield client


def _records(call: Invocation) -> Records:
    from delaybridge.ledger.sql.records import Records

    return Records(call.settings.namespace)


def _url(call: Invocation) -> str:
    if not (url := call.settings.ledger.url):
        what = "no database is configured: set ledger.url, as postgresql+psycopg://HOST/DATABASE"
        raise Failure(Exit.REFUSED, "config", "ledger", what)
    return url
