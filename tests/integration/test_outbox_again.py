"""The pump, and rows whose ids are being delivered: they stay, and hold up nobody."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager, nullcontext
from pathlib import Path
from threading import Event
from typing import Any

import pytest
from sqlalchemy import Connection, Engine, create_engine, text

from delaybridge import Client, Limits, Message, outbox
from delaybridge.backoff import Backoff
from delaybridge.outbox import pump as pump_module
from delaybridge.outbox import table as statements
from delaybridge.outbox.database import OutboxTable
from delaybridge.outbox.pump import Pump
from delaybridge.outbox.table import MOST_ROWS
from tests.rigs.bucket import Owner
from tests.rigs.delivering import Delivering
from tests.rigs.flavours import TO
from tests.rigs.waiting import PATIENCE_S, until

OwnerOf = Callable[[str], Owner]
KEY = "k"
NEVER_S = 3600.0


class Site:
    """An application's database with an outbox, a client, and a pump to be started."""

    def __init__(self, engine: Engine, table: OutboxTable, client: Client, namespace: str) -> None:
        self.engine, self.table, self.client = engine, table, client
        self._box = outbox.Outbox(namespace=namespace)

    def schedule(self, *ids: str, on: Connection | None = None) -> None:
        with nullcontext(on) if on is not None else self.engine.begin() as connection:
            for id in ids:
                self._box.schedule(connection, Message(TO, b"new", delay="1h", id=id, key=KEY))

    def cancel(self, id: str) -> None:
        with self.engine.begin() as connection:
            self._box.cancel(connection, id, key=KEY)

    @contextmanager
    def pumping(self, poll_s: float = NEVER_S) -> Iterator[Pump]:
        pump = Pump(self.table, self.client, lambda *_, **__: None, poll_s=poll_s)
        with ThreadPoolExecutor(1) as thread:
            running = thread.submit(pump.run)
            try:
                yield pump
            finally:
                pump.stop()
                running.result()

    @property
    def rows(self) -> int:
        return self.table.counted().rows

    def body(self, id: str) -> bytes | None:
        found = self.client.get(id, key=KEY)
        return found.body if found is not None else None


@pytest.fixture
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A database of the test's own: SQLite, or the one it names."""
    kind = getattr(request, "param", None)
    return request.getfixturevalue(kind) if kind else f"sqlite:///{tmp_path / 'app.db'}"


@pytest.fixture
def limits() -> Limits:
    return Limits()


@pytest.fixture
def site(redis_url: str, namespace: str, url: str, limits: Limits) -> Iterator[Site]:
    engine = create_engine(url)
    with (
        closing(OutboxTable(url, namespace, timeout_s=PATIENCE_S)) as table,
        Client(redis_url, namespace=namespace, limits=limits) as client,
    ):
        table.create()
        yield Site(engine, table, client, namespace)
    engine.dispose()


def delivering(site: Site, owner_of: OwnerOf, *ids: str) -> Delivering:
    site.client.schedule_many([Message(TO, b"old", delay=0, id=id, key=KEY) for id in ids])
    return Delivering(owner_of(KEY))


def test_a_row_stays_while_its_id_is_being_delivered(site: Site, owner_of: OwnerOf) -> None:
    old = delivering(site, owner_of, "x")
    site.schedule("x", "other")
    with site.pumping():
        until(lambda: site.rows == 1, "one is left")
        assert site.body("other") == b"new"
        old.settle()
        until(lambda: site.rows == 0, "it goes, without a poll")
    assert site.body("x") == b"new"


def test_a_page_of_rows_that_stay_holds_up_nobody(site: Site, owner_of: OwnerOf) -> None:
    late = [f"x{n}" for n in range(MOST_ROWS)]
    old = delivering(site, owner_of, *late)
    site.schedule(*late)
    site.cancel("x3")  # behind the row of its id
    site.schedule(*(f"y{n}" for n in range(MOST_ROWS)))
    with site.pumping():
        until(lambda: site.rows == MOST_ROWS + 1, "those behind them go")
        assert site.body("x3") == b"old"
        site.schedule("later")
        until(lambda: site.body("later") is not None, "a new one goes at once")
        old.settle()
        until(lambda: site.rows == 0, "all go")
    assert site.body("x2") == b"new"
    assert site.body("x3") is None


def test_a_new_row_does_not_wait_for_those_that_stay(
    site: Site, owner_of: OwnerOf, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pump_module, "_LATE_S", (NEVER_S, NEVER_S))
    old = delivering(site, owner_of, "x")
    site.schedule("x")
    with site.pumping(poll_s=0.01) as pump:
        until(lambda: pump._is_late, "it stays")
        site.schedule("later")
        until(lambda: site.body("later") is not None, "a new one goes")
        old.settle()
        pump.look()
        until(lambda: site.rows == 0, "all go")


def test_a_new_row_that_stays_does_not_wait_as_long_as_an_old_one(
    site: Site, owner_of: OwnerOf
) -> None:
    delivering(site, owner_of, "x")
    site.schedule("x")
    site.client.schedule_message(Message(TO, b"old", delay=0, id="y", key="other"))
    other = Delivering(owner_of("other"))
    with site.pumping(poll_s=0.01) as pump:
        until(lambda: pump._is_late, "it stays")
        pump._late = Backoff(NEVER_S, NEVER_S)
        with site.engine.begin() as connection:
            site._box.schedule(connection, Message(TO, b"new", delay="1h", id="y", key="other"))
        until(lambda: pump._last == 2, "the new one stays, too")
        other.settle()
        until(lambda: site.rows == 1, "it goes")


def test_a_pump_does_not_wait_for_a_row_that_went_another_way(
    site: Site, owner_of: OwnerOf
) -> None:
    delivering(site, owner_of, "x")
    site.schedule("x")
    with site.pumping() as pump:
        until(lambda: pump._is_late, "it stays")
        with site.engine.begin() as connection:
            connection.execute(text("DELETE FROM delaybridge_outbox"))
        until(lambda: not pump._is_late, "it waits for no row")


SERVERS = ["postgres_url", pytest.param("mariadb_url", marks=pytest.mark.slow)]


@pytest.mark.parametrize("url", SERVERS, indirect=True)  # SQLite has one writer
def test_what_is_committed_between_two_pages_waits_for_the_next_transaction(
    site: Site, owner_of: OwnerOf, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A cancel on the second page would come before the call that the first page did not have."""
    kind, plain, committed = site.table.dialect, Pump._move, Event()
    monkeypatch.setattr(pump_module, "MOST_ROWS", 4)
    limited = statements.TAKE[kind].replace(f"LIMIT {MOST_ROWS}", "LIMIT 4")
    monkeypatch.setitem(statements.TAKE, kind, limited)
    late = [f"x{n}" for n in range(4)]
    old = delivering(site, owner_of, *late)
    with site.engine.connect() as open:
        site.schedule(late[0])
        site.schedule("a", on=open)
        site.schedule(*late[1:])

        def move(pump: Pump, *page: Any) -> None:
            plain(pump, *page)
            if not committed.is_set():
                open.commit()
                site.cancel("a")
                committed.set()

        monkeypatch.setattr(Pump, "_move", move)
        with site.pumping(poll_s=0.01):
            until(lambda: committed.is_set() and site.rows == 4, lambda: f"{site.rows} rows")
            assert site.body("a") is None
            old.settle()
            until(lambda: site.rows == 0, "all go")
