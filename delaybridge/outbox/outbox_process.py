"""The process of `delaybridge outbox run`: the pump in a thread, and a listener on PostgreSQL."""

from __future__ import annotations

import asyncio
from contextlib import ExitStack, closing
from typing import TYPE_CHECKING

from delaybridge.client.client import Client
from delaybridge.dedup.sql_connection import POSTGRESQL
from delaybridge.errors import ConfigError
from delaybridge.settings.durability import Keeping
from delaybridge.settings.extras import remedy_of
from delaybridge.settings.settings import Settings
from delaybridge.worker.eventlog import say
from delaybridge.worker.service import Service, run

if TYPE_CHECKING:
    from delaybridge.outbox.database import OutboxTable


class Pumping(Service):
    """One pump, from start to the end of its last batch."""

    left_behind = "rows stay in the outbox until a pump moves them"

    def __init__(self, settings: Settings) -> None:
        super().__init__()
        self._settings = settings

    async def work(self) -> None:
        """Move rows until stopped. Raises only errors that need a restart."""
        from delaybridge.outbox.pump import Pump

        s, timeout_s = self._settings, self._settings.redis.timeout_s
        with ExitStack() as stack:
            rows = stack.enter_context(closing(open_table(s)))
            refuse_one_file(s)
            client = stack.enter_context(Client.from_settings(s))
            pump = Pump(
                rows, client, say, poll_s=s.outbox.poll_ms / 1000,
                is_told=lambda: listener is not None and listener.is_listening,
            )  # fmt: skip
            listener = None
            if rows.dialect == POSTGRESQL:
                from delaybridge.outbox.listener import CommitListener

                listener = CommitListener(s.outbox.url, pump.wake, timeout_s=timeout_s)
                stack.enter_context(closing(listener)).start()
            moving = asyncio.create_task(asyncio.to_thread(pump.run))
            stopped = asyncio.create_task(self.stopping.wait())
            await asyncio.wait([moving, stopped], return_when=asyncio.FIRST_COMPLETED)
            pump.stop()
            stopped.cancel()
            await moving


def open_table(settings: Settings) -> OutboxTable:
    """The table of the outbox; nothing is connected yet.

    ConfigError: `outbox.url` is not set, or SQLAlchemy or the driver is not installed.
    """
    url = settings.outbox.url
    if not url:
        what = "no database is configured; set it, as postgresql+psycopg://HOST/DATABASE"
        raise ConfigError(f"outbox.url: {what}")
    try:
        from delaybridge.outbox.database import OutboxTable

        return OutboxTable(url, settings.namespace, timeout_s=settings.redis.timeout_s)
    except ModuleNotFoundError as exc:
        raise ConfigError(f"outbox.url: {remedy_of(exc) or exc}") from None


def refuse_one_file(settings: Settings) -> None:
    """ConfigError if the ledger is in the outbox's file of SQLite: the pump would wait for itself.

    A batch of the outbox is a transaction, in which the ledger gets rows by another one, and SQLite
    has one at a time.
    """
    from delaybridge.ledger.sql.engines import is_one_file

    if settings.kept.mode is not Keeping.LEDGER:
        return
    if is_one_file(settings.outbox.url, settings.ledger.url):
        what = "one file of SQLite for both, in which the pump would wait for itself for ever"
        raise ConfigError(f"outbox.url, ledger.url: {what}; give the ledger a file of its own")


def run_outbox(settings: Settings) -> None:
    """Pump in this process until SIGTERM or Ctrl-C; a second one ends it at once."""
    run(Pumping(settings))
