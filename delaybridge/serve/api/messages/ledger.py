"""The ledger over HTTP: a message's life, and restoring what Redis lacks."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

import msgspec

from delaybridge.client.verbs import Scope
from delaybridge.errors import MessageError, StoreUnavailable
from delaybridge.ledger.comparing.agreement import Looked, OnPage, WantedRows
from delaybridge.ledger.comparing.restoring import restore_all
from delaybridge.ledger.recording.life_of_id import as_recorded, life, recorded_life
from delaybridge.serve.api.messages.shapes import StoredMessage, shape_of
from delaybridge.serve.http.endpoint import Reply, Routes
from delaybridge.serve.http.problems import Problem
from delaybridge.serve.shared import jobs
from delaybridge.serve.shared.call import Call
from delaybridge.serve.shared.jobs import Progress
from delaybridge.serve.shared.site import Site
from delaybridge.serve.shared.tenancy import Tenancy
from delaybridge.serve.stored.jobs import Job
from delaybridge.settings.durability import Keeping
from delaybridge.store.protocol.stored import Stored

if TYPE_CHECKING:
    from delaybridge.ledger.sql.records import Records
    from delaybridge.ledger.sql.rows import Life

_MOST_IDS = 1000
routes = Routes()


class Restore(msgspec.Struct, forbid_unknown_fields=True):
    """Which messages of the ledger; by default all that Redis lacks.

    ids: at most 1000. due_from_ms, due_to_ms: included. expired: also those that are due already.
    dry_run: only count them.
    """

    ids: list[str] | None = None
    due_from_ms: int | None = None
    due_to_ms: int | None = None
    expired: bool = True
    dry_run: bool = False


class MissingMessages(msgspec.Struct):
    """rows: messages of the ledger that were looked at. missing: those that Redis lacks."""

    rows: int
    missing: int


async def message_with_life(call: Call, id: str, found: Stored | None) -> StoredMessage | None:
    """The message and, if there is a ledger, its life; None if neither knows it.

    found: what Redis has. If the ledger does not answer, that is shown alone.
    """
    told: Life | None = None
    own = Tenancy(call.tenant)
    if (records := records_of(call.site)) is not None:
        try:
            told = await call.site.client.run(lambda calls: life(records, own.in_store(id)))  # type: ignore[arg-type,return-value]
        except StoreUnavailable:
            if found is None:
                raise
    if found is not None:
        made = shape_of(found, with_body=call.may_read_bodies)
    elif told is not None and told.rows:
        last = told.rows[-1]
        recorded = own.as_given(as_recorded(last, told))
        made = shape_of(recorded, with_body=call.may_read_bodies)
        made.state = last.state
    else:
        return None
    made.life = None if told is None else own.life(recorded_life(told))
    return made


@routes(
    "POST /v1/restore", "Restore what Redis lacks", scope=Scope.ADMIN, is_audited=True,
    body=Restore, answers={202: Job, 200: MissingMessages, 409: None},
)  # fmt: skip
async def restore(call: Call) -> Reply:
    """Bring messages of the ledger back that Redis lacks.

    Workers do it by themselves. It is safe at any time, also twice: what was published, cancelled
    or moved meanwhile is not brought back. The job's `matched` are the messages that were looked
    at. 409 if this server has no ledger.
    """
    records = records_of(call.site)
    if records is None:
        what = 'set durability = "ledger" and ledger.url, and run: delaybridge ledger upgrade'
        raise Problem(409, "no_ledger", f"this server has no ledger; {what}")
    wanted = _wanted(call.body)
    if wanted.dry:
        looked = await _run(call.site, records, wanted, lambda looked: None)
        return Reply(MissingMessages(looked.rows, looked.absent))
    return Reply(await jobs.begin(call, "restore", restored(call.site, records, wanted)), 202)


def _wanted(asked: Restore) -> WantedRows:
    ids = asked.ids
    if ids is not None and not 0 < len(ids) <= _MOST_IDS:
        raise MessageError("bad_selection", "ids", f"got {len(ids)}; give 1 to {_MOST_IDS}")
    for name, value in (("due_from_ms", asked.due_from_ms), ("due_to_ms", asked.due_to_ms)):
        if value is not None and not 0 <= value <= _LAST_MS:
            raise MessageError("bad_time", name, f"got {value}; give 0 to {_LAST_MS}")
    return WantedRows(
        from_ms=max(asked.due_from_ms or 0, first_ms(expired=asked.expired)),
        to_ms=_LAST_MS if asked.due_to_ms is None else asked.due_to_ms,
        ids=None if ids is None else frozenset(ids),
        dry=asked.dry_run,
    )


_LAST_MS = 2**53


def first_ms(*, expired: bool) -> int:
    """From which due time on rows are restored. expired: also those that are due already."""
    return 0 if expired else time.time_ns() // 1_000_000


async def restored(site: Site, records: Records, wanted: WantedRows) -> Progress:
    """Restore what Redis lacks of these rows."""
    pages: asyncio.Queue[Looked | None] = asyncio.Queue()
    task = asyncio.create_task(_run(site, records, wanted, pages.put_nowait))
    task.add_done_callback(lambda _: pages.put_nowait(None))
    try:
        yield 0, {"restored": 0}
        while (looked := await pages.get()) is not None:
            yield looked.rows, {"restored": looked.absent}
        await task
    finally:
        task.cancel()


async def _run(site: Site, records: Records, wanted: WantedRows, on_page: OnPage) -> Looked:
    return await site.client.run(lambda calls: restore_all(calls, records, wanted, on_page))  # type: ignore[arg-type,return-value]


def records_of(site: Site) -> Records | None:
    """The ledger's; None if this server has no ledger."""
    if site.settings.kept.mode is not Keeping.LEDGER:
        return None
    from delaybridge.ledger.sql.records import Records  # imports SQLAlchemy

    return Records(site.settings.namespace)
