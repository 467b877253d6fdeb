"""The pump, and rows whose ids are being delivered: they stay, and hold up nobody."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from pathlib import Path
from threading import Event
from typing import Any

import pytest
from sqlalchemy import text

from delaybridge import Client, Message
from delaybridge.backoff import Backoff
from delaybridge.outbox import pump as pump_module
from delaybridge.outbox.pump import Pump
from delaybridge.outbox.table import MOST_ROWS
from delaybridge.store.protocol import verbs
from tests.rigs.bucket import Owner
from tests.rigs.delivering import Delivering
from tests.rigs.flavours import TO
from tests.rigs.outbox_site import KEY, NEVER_S, Site, site_of, small_pages
from tests.rigs.waiting import until

OwnerOf = Callable[[str], Owner]
BUCKETS = 16


@pytest.fixture
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A database of the test's own: SQLite, or the one it names."""
    kind = getattr(request, "param", None)
    return request.getfixturevalue(kind) if kind else f"sqlite:///{tmp_path / 'app.db'}"


@pytest.fixture
def site(redis_url: str, namespace: str, url: str) -> Iterator[Site]:
    with Client(redis_url, namespace=namespace) as client, site_of(url, client, namespace) as found:
        yield found


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


def test_a_cancel_that_is_too_late_is_said_and_holds_up_nobody(
    site: Site, owner_of: OwnerOf
) -> None:
    old = delivering(site, owner_of, "x")
    site.cancel("x")
    site.schedule("x")
    with site.pumping():
        until(lambda: site.rows == 1, "the cancel is gone")
        assert site.fields("outbox_cancel_too_late") == [{"n": 1, "ids": "x"}]
        old.settle()
        until(lambda: site.rows == 0, "so is what follows it")
    assert site.body("x") == b"new"


def test_a_cancel_with_a_key_is_of_no_other(site: Site) -> None:
    site.schedule("first", "x")
    number, count = verbs.bucket_of(KEY.encode(), BUCKETS), range(BUCKETS)
    other = next(f"k{n}" for n in count if verbs.bucket_of(f"k{n}".encode(), BUCKETS) != number)
    site.put(Message(TO, b"other", delay="1h", id="y", key=other))
    with site.pumping() as pump:
        until(lambda: site.rows == 0, "all are there")
        site.cancel("x")
        site.cancel("y")
        pump.wake()
        until(lambda: site.rows == 0, "both calls are made")
    assert site.body("first") and not site.body("x")
    assert site.client.get("y", key=other) is not None


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
        until(lambda: pump._seen, "it stays")
        site.schedule("later")
        until(lambda: site.body("later") is not None, "a new one goes")
        old.settle()
        pump.wake()
        until(lambda: site.rows == 0, "all go")


def test_a_new_row_that_stays_does_not_wait_as_long_as_an_old_one(
    site: Site, owner_of: OwnerOf
) -> None:
    delivering(site, owner_of, "x")
    site.schedule("x")
    site.client.schedule_message(Message(TO, b"old", delay=0, id="y", key="other"))
    other = Delivering(owner_of("other"))
    with site.pumping(poll_s=0.01) as pump:
        until(lambda: pump._seen, "it stays")
        pump._late = Backoff(NEVER_S, NEVER_S)
        site.put(Message(TO, b"new", delay="1h", id="y", key="other"))
        until(lambda: pump._last == 2, "the new one stays, too")
        other.settle()
        until(lambda: site.rows == 1, "it goes")


def test_a_pump_does_not_wait_for_a_row_that_went_another_way(
    site: Site, owner_of: OwnerOf
) -> None:
    delivering(site, owner_of, "x")
    site.schedule("x")
    with site.pumping() as pump:
        until(lambda: pump._seen, "it stays")
        with site.engine.begin() as connection:
            connection.execute(text("DELETE FROM delaybridge_outbox"))
        until(lambda: pump._due_s == math.inf, "it waits for no row")


SERVERS = ["postgres_url", pytest.param("mariadb_url", marks=pytest.mark.slow)]


@pytest.mark.parametrize("url", SERVERS, indirect=True)  # SQLite has one writer
def test_what_is_committed_between_two_pages_waits_for_the_next_transaction(
    site: Site, owner_of: OwnerOf, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A cancel on the second page would come before the call that the first page did not have."""
    kind, plain, committed = site.table.dialect, Pump._move, Event()
    small_pages(monkeypatch, kind, 4)
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
