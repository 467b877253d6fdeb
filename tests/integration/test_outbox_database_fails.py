"""The outbox's PostgreSQL fails without a sign, or fails over: rows move again by themselves."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import ExitStack, closing

import pytest
from sqlalchemy import create_engine, text

from delaybridge import Client, Message, outbox
from delaybridge.ledger.sql import patient
from delaybridge.outbox import listener as listener_module
from delaybridge.outbox.database import OutboxTable
from delaybridge.outbox.listener import CommitListener
from delaybridge.outbox.pump import Pump
from tests.rigs.flavours import TO
from tests.rigs.lossy_proxy import LossyProxy
from tests.rigs.waiting import PATIENCE_S, until
from tests.servers.postgres import PostgresServer

HURRY_S = 0.5
READ_ONLY = "default_transaction_read_only"


class Site:
    """A pump that reaches its database through a proxy, and an application that needs none."""

    def __init__(self, database: PostgresServer, client: Client, namespace: str) -> None:
        self._client, self._namespace = client, namespace
        self._box = outbox.Outbox(namespace=namespace)
        self.said = list[str]()
        self._stack = ExitStack()
        self.proxy = self._stack.enter_context(LossyProxy(database.port))
        self.make_table(database)
        url = database.url.replace(f":{database.port}/", f":{self.proxy.port}/")
        table = OutboxTable(url, namespace, timeout_s=HURRY_S)
        pump = Pump(
            self._stack.enter_context(closing(table)), client,
            lambda level, event, **_: self.said.append(event), poll_s=0.1,
        )  # fmt: skip
        self.listener = CommitListener(url, pump.wake, timeout_s=HURRY_S)
        thread = threading.Thread(target=pump.run)
        for each in (thread.join, pump.stop, self.listener.close):
            self._stack.callback(each)
        self.listener.start()
        thread.start()
        until(lambda: self.listener.is_listening, "it listens")

    def make_table(self, database: PostgresServer) -> None:
        self.engine = create_engine(
            database.url, connect_args={"options": f"-c {READ_ONLY}=off"}, pool_pre_ping=True
        )
        self._stack.callback(self.engine.dispose)
        with self.engine.begin() as connection:
            outbox.create_table(connection)

    def put(self, id: str) -> None:
        with self.engine.begin() as connection:
            self._box.schedule(connection, Message(TO, b"x", delay="1h", id=id))

    def moves(self, id: str) -> None:
        """A row that is committed now reaches Redis."""
        self.put(id)
        until(lambda: self._client.get(id) is not None, f"{id} is in Redis")

    def close(self) -> None:
        self._stack.close()


@pytest.fixture
def client(redis_url: str, namespace: str) -> Iterator[Client]:
    with Client(redis_url, namespace=namespace, timeout_s=PATIENCE_S) as client:
        yield client


@pytest.fixture(autouse=True)
def hurried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(patient, "GRACE_S", HURRY_S)
    monkeypatch.setattr(listener_module, "_SILENCE_S", 0.1)


def test_connections_that_went_dead_without_a_sign_hold_up_no_row(
    client: Client, namespace: str
) -> None:
    """Whatever the pump and its listener have asked, no answer ever comes, and no end."""
    with PostgresServer() as database, closing(Site(database, client, namespace)) as site:
        site.moves("before")
        site.proxy.swallowing = True
        until(lambda: not site.listener.is_listening, "the listener notices")
        until(lambda: "outbox_silent" in site.said, "the pump says so")
        site.proxy.swallowing = False
        site.moves("after")
        until(lambda: site.listener.is_listening, "it listens again")


def test_a_listener_whose_backend_is_terminated_listens_again(
    client: Client, namespace: str
) -> None:
    with PostgresServer() as database, closing(Site(database, client, namespace)) as site:
        ended = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE query ~ '^LISTEN'"
        with site.engine.begin() as connection:
            assert connection.execute(text(ended)).scalars().all() == [True]
        site.moves("x")
        database.restart()
        site.moves("y")
        until(lambda: site.listener.is_listening, "it listens again")


def test_a_standby_that_answered_is_left_for_the_new_primary(
    client: Client, namespace: str
) -> None:
    """As after a fail-over whose address led to the wrong server for a moment."""
    with PostgresServer(["-c", f"{READ_ONLY}=on"]) as standby, PostgresServer() as primary:
        with closing(Site(standby, client, namespace)) as site:
            site.put("old")
            until(lambda: "outbox_silent" in site.said, "it refuses to lock a row")
            site.proxy.target = primary.port  # open connections still lead to the standby
            site.make_table(primary)
            site.moves("x")
