"""An application's database with an outbox, a client, and a pump to be started."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager, nullcontext
from typing import Any

import pytest
from sqlalchemy import Connection, Engine, create_engine

from delaybridge import Client, Message, outbox
from delaybridge.outbox import pump as pump_module
from delaybridge.outbox import table as statements
from delaybridge.outbox.database import OutboxTable
from delaybridge.outbox.pump import Pump
from tests.rigs.flavours import TO
from tests.rigs.waiting import PATIENCE_S

KEY = "k"
NEVER_S = 3600.0


class Site:
    """said: what its pumps said, each an event's name and fields."""

    def __init__(self, engine: Engine, table: OutboxTable, client: Client, namespace: str) -> None:
        self.engine, self.table, self.client = engine, table, client
        self.said = list[tuple[str, dict[str, Any]]]()
        self._box = outbox.Outbox(namespace=namespace)

    def schedule(self, *ids: str, on: Connection | None = None) -> None:
        self.put(*(Message(TO, b"new", delay="1h", id=id, key=KEY) for id in ids), on=on)

    def put(self, *messages: Message, on: Connection | None = None) -> None:
        with nullcontext(on) if on is not None else self.engine.begin() as connection:
            for message in messages:
                self._box.schedule(connection, message)

    def cancel(self, id: str, key: str | None = KEY) -> None:
        with self.engine.begin() as connection:
            self._box.cancel(connection, id, key=key)

    @contextmanager
    def pumping(self, poll_s: float = NEVER_S) -> Iterator[Pump]:
        def say(level: int, event: str, **fields: Any) -> None:
            self.said.append((event, fields))

        pump = Pump(self.table, self.client, say, poll_s=poll_s)
        with ThreadPoolExecutor(1) as thread:
            running = thread.submit(pump.run)
            try:
                yield pump
            finally:
                pump.stop()
                running.result()

    def fields(self, event: str) -> list[dict[str, Any]]:
        """The fields of each of these events that were said."""
        return [fields for name, fields in self.said if name == event]

    @property
    def rows(self) -> int:
        return self.table.counted().rows

    def body(self, id: str) -> bytes | None:
        found = self.client.get(id, key=KEY)
        return found.body if found is not None else None


@contextmanager
def site_of(url: str, client: Client, namespace: str) -> Iterator[Site]:
    engine = create_engine(url)
    with closing(OutboxTable(url, namespace, timeout_s=PATIENCE_S)) as table:
        table.create()
        yield Site(engine, table, client, namespace)
    engine.dispose()


def small_pages(monkeypatch: pytest.MonkeyPatch, kind: str, rows: int) -> None:
    """A pump takes so many rows at once."""
    limit = f"LIMIT {statements.MOST_ROWS}"
    monkeypatch.setattr(pump_module, "MOST_ROWS", rows)
    monkeypatch.setitem(
        statements.TAKE, kind, statements.TAKE[kind].replace(limit, f"LIMIT {rows}")
    )
