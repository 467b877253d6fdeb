"""`delaybridge outbox`: the table of an application's own transactions, and its pump."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING

import click

from delaybridge import __version__
from delaybridge.operate.terminal.failure import Exit, Failure
from delaybridge.operate.terminal.grammar import PAGE_LIMIT, Group, option, pass_call
from delaybridge.operate.terminal.invocation import Invocation
from delaybridge.operate.views.described import moment

if TYPE_CHECKING:
    from delaybridge.outbox.database import OutboxTable

_COUNT = click.IntRange(1, PAGE_LIMIT)


@click.group(cls=Group)
def outbox() -> None:
    """Move messages of an application's own transactions into Redis.

    An application inserts them with delaybridge.outbox; outbox.url names its database.
    """


@outbox.command("run")
@pass_call
def run(call: Invocation) -> None:
    """Move committed rows into Redis, until stopped.

    One works at a time; others that you start take over when it ends. On SIGTERM or Ctrl-C it ends
    after the batch under way.
    """
    from delaybridge.outbox.outbox_process import run_outbox

    settings = call.settings
    with _table(call) as table:
        waiting = table.counted().rows
    call.note(f"delaybridge {__version__} outbox  (Ctrl-C ends it after the current batch)")
    call.note(f" outbox   {settings.outbox.url}  {waiting:,} rows")
    call.note(f" store    {settings.redis.url}  namespace {settings.namespace}")
    call.begin_log(settings)
    run_outbox(settings)


@outbox.command("create-table")
@pass_call
def create_table(call: Invocation) -> None:
    """Make the table `delaybridge_outbox`, unless it exists. Needs the right to make tables."""
    with _table(call) as table:
        table.create()
    call.output.result({"table": "delaybridge_outbox"}, "the table delaybridge_outbox is there")


@outbox.command("ls")
@option("--limit N", "How many to list.", type=_COUNT, default=50)
@pass_call
def ls(call: Invocation, limit: int) -> None:
    """List rows that wait for the pump, and those that Redis refused, the oldest on top."""
    with _table(call) as table:
        rows, found = table.listed(limit), table.counted()
    now_ms = time.time_ns() // 1_000_000
    call.output.table(
        rows,
        lambda row: {
            ">NUMBER": row.number,
            "CALL": row.verb,
            "ID": row.id,
            "DUE": moment(row.due_ms),
            ">AGE": _age(now_ms, row.created_ms),
            "ERROR": row.error,
        },
        spare=("DUE",),
        data=lambda row: row._asdict() | {"age_ms": now_ms - row.created_ms},
    )
    oldest = "" if found.oldest_ms is None else f", the oldest for {_age(now_ms, found.oldest_ms)}"
    waiting = found.rows - found.refused
    call.note(f"{waiting:,} wait for the pump{oldest}; {found.refused:,} refused")


def _age(now_ms: int, at_ms: int) -> str:
    from delaybridge.times import format_duration

    return format_duration(max(0, now_ms - at_ms))


@contextmanager
def _table(call: Invocation) -> Iterator[OutboxTable]:
    """The table of `outbox.url`. Failure if its database fails."""
    from delaybridge.outbox.outbox_process import open_table

    with closing(open_table(call.settings)) as table:
        from sqlalchemy.exc import DBAPIError, SQLAlchemyError

        try:
            yield table
        except SQLAlchemyError as exc:
            own = exc.orig if isinstance(exc, DBAPIError) and exc.orig is not None else exc
            what = " ".join(str(own).split())[:300] or type(own).__name__
            raise Failure(Exit.UNREACHABLE, "outbox_unavailable", "outbox.url", what) from None
