"""The pump, and rows that Redis does not take: they stay, hold up nobody, and repeat nobody."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import redis
from sqlalchemy import text

from delaybridge import Client, Limits, Message
from delaybridge.errors import NotDurable, StoreUnavailable
from delaybridge.outbox import pump as pump_module
from delaybridge.outbox.database import OutboxCall
from delaybridge.outbox.pump import Pump
from delaybridge.store.protocol import keys, verbs
from delaybridge.store.redis.store import Store
from tests.rigs.bucket import Owner, World
from tests.rigs.flaky import Flaky
from tests.rigs.flavours import TO
from tests.rigs.outbox_site import KEY, Site, site_of, small_pages
from tests.rigs.waiting import until
from tests.servers.process import LOOPBACK
from tests.servers.redis import RedisServer

REFUSED = "evalsha", "failed_calls"
OwnerOf = Callable[[str], Owner]
BUCKETS = 16
FULL, OTHER, MOST = "kafka:full", "kafka:other", 10
SICK = next(n for n in range(BUCKETS) if n != verbs.bucket_of(KEY.encode(), BUCKETS))
IN_SICK = [f"s{n}" for n in range(200) if verbs.bucket_of(f"s{n}".encode(), BUCKETS) == SICK]


class Arrivals:
    """Counts how often the messages of KEY's bucket are delivered."""

    def __init__(self, owner: Owner) -> None:
        self._owner, self.count = owner, 0

    def look(self) -> int:
        for copy in self._owner.claim(limit=100) or ():
            self._owner.fire(copy.score)
            self._owner.settle(copy)
            self.count += 1
        return self.count


@pytest.fixture
def site(redis_url: str, namespace: str, tmp_path: Path) -> Iterator[Site]:
    with (
        Client(redis_url, namespace=namespace, limits=Limits(destination_messages=MOST)) as client,
        site_of(f"sqlite:///{tmp_path / 'app.db'}", client, namespace) as found,
    ):
        yield found


def due_now(id: str) -> Message:
    return Message(TO, b"new", delay=0, id=id, key=KEY)


def later(to: str, id: str) -> Message:
    return Message(to, b"new", delay="1h", id=id)


def refuse_deletes(site: Site) -> None:
    refuses = "BEFORE DELETE ON delaybridge_outbox BEGIN SELECT raise(ABORT, 'no'); END"
    with site.engine.begin() as connection:
        connection.execute(text(f"CREATE TRIGGER guard {refuses}"))


def calls(raw: redis.Redis, command: str, counted: str = "calls") -> int:
    return int(raw.info("commandstats").get(f"cmdstat_{command}", {}).get(counted, 0))


@pytest.mark.parametrize("key", [None, IN_SICK[0]])
def test_a_cancel_that_a_damaged_bucket_cannot_answer_repeats_no_other_row(
    site: Site, raw: redis.Redis, namespace: str, owner_of: OwnerOf, key: str | None
) -> None:
    site.client.schedule_message(Message(TO, b"x", delay="1h", key=KEY))  # the namespace is there
    arrivals = Arrivals(owner_of(KEY))
    damaged, before = keys.bucket_key(namespace, SICK, "messages"), calls(raw, *REFUSED)
    raw.set(damaged, "x")
    site.put(due_now("good"))
    site.cancel("gone", key=key)
    with site.pumping():
        until(lambda: arrivals.look() and calls(raw, *REFUSED) > before + 2, "it is tried again")
        until(lambda: site.rows == 1 and site.fields("outbox_held"), "the good one is gone")
        assert arrivals.look() == 1
        (held,) = site.fields("outbox_held")
        assert held["id"] == "gone"
        assert damaged in held["reason"]
        raw.delete(damaged)
        until(lambda: site.rows == 0, "it goes")
    assert arrivals.look() == 1
    assert not site.fields("store_silent")


def test_rows_of_one_full_destination_hold_up_nobody(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are more than a page. A cancel of one of them does not overtake it."""
    small_pages(monkeypatch, site.table.dialect, 4)
    filled = [f"f{n}" for n in range(MOST)]
    site.client.schedule_many([later(FULL, id) for id in filled])
    site.put(*(later(FULL, f"x{n}") for n in range(9)))
    site.cancel("x8", key=None)
    site.put(later(OTHER, "other"))
    with site.pumping(poll_s=0.01):
        until(lambda: site.client.get("other"), "the one behind them goes")
        site.put(later(OTHER, "new"))
        until(lambda: site.client.get("new") and site.rows == 10, "a new one goes")
        (held,) = site.fields("outbox_held")
        assert (held["id"], held["destination"]) == ("x0", FULL)
        assert "limits.destination_messages" in held["reason"]
        site.client.cancel_many(filled)
        until(lambda: site.fields("outbox_goes_on"), "all go")
    assert site.rows == 0
    assert site.client.get("x8") is None
    assert not site.fields("store_silent")


def test_a_new_row_makes_the_pump_look_at_no_row_that_stays(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor does one that follows another of its id. A transaction has a few pages only."""
    small_pages(monkeypatch, site.table.dialect, 4)
    monkeypatch.setattr(pump_module, "_PAUSE", 1e9)
    monkeypatch.setattr(pump_module, "_RETRY_S", (0.001, 0.001))
    pages, sent = list[int](), Counter[str]()
    batch, move = site.table.batch, Pump._move

    def moves(pump: Pump, some: Sequence[OutboxCall], moved: Any) -> None:
        pages[-1] += 1
        sent.update(call.id for call in some)
        move(pump, some, moved)

    monkeypatch.setattr(Pump, "_move", moves)
    monkeypatch.setattr(site.table, "batch", lambda newest: pages.append(0) or batch(newest))
    site.client.schedule_many([later(FULL, f"f{n}") for n in range(MOST)])
    held = [f"x{n}" for n in range(20)]
    site.put(*(later(FULL, id) for id in [*held, "x0", "x0"]))
    site.put(later(OTHER, "twice"), later(OTHER, "twice"))
    with site.pumping(poll_s=0.01):
        until(lambda: site.rows == len(held) + 2, "those behind them go")
        for id in ("new", "newer"):
            site.put(later(OTHER, id), later(FULL, f"{id} to a full one"))
            site.cancel("x1", key=None)  # stays behind its row
            until(lambda id=id: sent[id], "a new one goes")
        until(lambda: site.rows == len(held) + 6, "they have gone")
    assert {id: times for id, times in sent.items() if times != 1} == {"twice": 2}
    assert 1 < max(pages) <= 4


def test_rows_of_one_damaged_bucket_hold_up_nobody(
    site: Site, raw: redis.Redis, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor do they count against a limit: nothing of them was written."""
    small_pages(monkeypatch, site.table.dialect, 4)
    damaged = keys.bucket_key(namespace, SICK, "messages")
    raw.set(damaged, "x")
    site.put(*(Message(TO, b"new", delay="1h", id=id) for id in IN_SICK[:MOST]))
    site.schedule("other")
    with site.pumping():
        until(lambda: site.body("other"), "the one behind them goes")
        until(lambda: site.fields("outbox_held"), "it is said")
        site.client.cancel("other", key=KEY)  # there is no room for all
        raw.delete(damaged)
        until(lambda: site.rows == 0, "all go")
    assert len([each for each in site.fields("outbox_held") if damaged in each["reason"]]) == 1


@pytest.mark.parametrize("error", [StoreUnavailable(), NotDurable()])
def test_rows_of_one_server_of_several_hold_up_nobody(
    site: Site, namespace: str, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    """Only the first page is sent to it: what it has would be published each time."""
    small_pages(monkeypatch, site.table.dialect, 4)
    site.client.schedule_message(later(OTHER, "x"))  # the buckets are there
    monkeypatch.setattr(site.client._store, "nodes", lambda: ["a", "b"])
    flaky = Flaky(site.client, namespace, SICK, monkeypatch)
    flaky.fail(error)
    site.put(*(later(OTHER, id) for id in IN_SICK[:6]))
    site.cancel(IN_SICK[5], key=IN_SICK[5])
    site.schedule("other")
    with site.pumping(poll_s=0.01):
        until(lambda: site.body("other"), "the one behind them goes")
        site.schedule("new")
        until(lambda: site.body("new") and site.rows == 7, "a new one goes")
        until(lambda: flaky.asked.count("SET") > 2, "it is asked again")
        assert flaky.asked.count("schedule") == 1
        (held,) = site.fields("outbox_held")
        assert held["id"] == IN_SICK[0]
        flaky.error = None
        until(lambda: site.rows == 0 and site.fields("outbox_goes_on"), "all go")
    assert site.client.get(IN_SICK[4])
    assert site.client.get(IN_SICK[5]) is None
    assert not site.fields("store_silent")


def test_a_row_is_sent_again_only_once_writes_are_confirmed(namespace: str, tmp_path: Path) -> None:
    """Each time it is sent, a message that is due is published."""
    fast = ["--repl-diskless-sync-delay", "0"]
    with (
        RedisServer(fast) as server,
        redis.Redis(host=LOOPBACK, port=server.port) as raw,
        Client(server.url, namespace=namespace) as plain,
        Client(server.url, namespace=namespace, durability="replicated:1", timeout_s=1) as client,
        closing(Store(server.url)) as store,
        site_of(f"sqlite:///{tmp_path / 'app.db'}", client, namespace) as site,
    ):
        plain.schedule(TO, b"x", delay="1h", key=KEY)
        with World.of_key(store, server.url, namespace, KEY.encode()) as world:
            arrivals = Arrivals(world.owner("test"))
            site.put(due_now("one"))
            with site.pumping():
                until(lambda: arrivals.look() and calls(raw, "wait") > 2, "no replica confirms it")
                assert (site.rows, arrivals.look()) == (1, 1)
                with RedisServer([*fast, "--replicaof", LOOPBACK, str(server.port)]):
                    until(lambda: site.rows == 0, "it is confirmed")
            assert arrivals.look() <= 2


@pytest.mark.parametrize("held", [0, 20])
def test_rows_that_redis_has_are_not_sent_again_while_the_database_refuses(
    site: Site, owner_of: OwnerOf, monkeypatch: pytest.MonkeyPatch, held: int
) -> None:
    """Also if transactions before theirs succeed, of rows that stay."""
    small_pages(monkeypatch, site.table.dialect, 4)
    site.client.schedule_many([later(FULL, f"f{n}") for n in range(MOST if held else 0)])
    site.put(*(later(FULL, f"x{n}") for n in range(held)))
    site.client.schedule_message(Message(TO, b"x", delay="1h", key=KEY))
    arrivals = Arrivals(owner_of(KEY))
    refuse_deletes(site)
    site.put(due_now("one"))
    began, plain = list[object](), site.table.batch
    monkeypatch.setattr(site.table, "batch", lambda newest: began.append(0) or plain(newest))
    with site.pumping():
        until(lambda: arrivals.look() and len(began) > 4 + held // 4, "it tries again")
        assert (site.rows, arrivals.look()) == (held + 1, 1)
        with site.engine.begin() as connection:
            connection.execute(text("DROP TRIGGER guard"))
        until(lambda: site.rows == held, "it goes")
    assert arrivals.look() == 1


def test_a_number_that_is_given_a_second_time_is_another_row(site: Site) -> None:
    """As by a replica that was promoted, and had not the first one yet."""
    refuse_deletes(site)
    site.put(later(OTHER, "lost with the primary"))
    with site.pumping(poll_s=0.01):
        until(lambda: site.fields("outbox_silent"), "the commit fails")
        with site.engine.begin() as connection:
            for statement in (
                "DROP TRIGGER guard",
                "DELETE FROM delaybridge_outbox",
                "DELETE FROM sqlite_sequence",
            ):
                connection.execute(text(statement))
            site.put(later(OTHER, "new"), on=connection)
        until(lambda: site.rows == 0, "it goes")
    assert site.client.get("new")
