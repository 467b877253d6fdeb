"""A process is killed between two steps: nothing is lost, and both sides agree afterwards."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from delaybridge import Client
from tests.rigs.crew import SELDOM
from tests.rigs.fleet import Fleet
from tests.rigs.ledgers import LedgerProbe
from tests.rigs.waiting import until
from tests.servers.redis import RedisServer

# SQLite alone: the steps are the same in every database.
pytestmark = pytest.mark.parametrize("ledger_url", ["sqlite"], indirect=True)
TO = "file:q"
ROOT = Path(__file__).parents[2]
# Schedules and cancels until it dies; prints each answer.
PROGRAM = """
import sys
from delaybridge import Client
url, namespace, ledger = sys.argv[1:]
client = Client(url, namespace=namespace, brokers={"file": "memory://"}, durability="ledger",
                ledger=ledger)
for n in range(6):
    print(client.schedule("file:q", b"x", delay=2, id=f"m{n}").answer, f"m{n}", flush=True)
    if n % 3 == 2:
        print(client.cancel(f"m{n}").value, f"m{n}", flush=True)
"""


def fleet(
    tmp_path: Path, server: RedisServer, namespace: str, url: str, ttl_ms: int = 1000
) -> Fleet:
    return Fleet(
        tmp_path, server.url, namespace, ttl_ms=ttl_ms, DURABILITY="ledger", LEDGER__URL=url,
        LEDGER__RECONCILE_S="1", LEDGER__HOT_WINDOW_S="0",
    )  # fmt: skip


def ages(probe: LedgerProbe) -> None:
    """Calls of half a minute ago are not under way any more."""
    probe.ask("UPDATE message SET created_ms = created_ms - 60000")


@pytest.mark.parametrize("place", ["ledger.added", "ledger.answered"])
@pytest.mark.parametrize("time", [1, *(pytest.param(n, marks=pytest.mark.slow) for n in (4, 7))])
@pytest.mark.slow_with("*answered*")
def test_a_caller_dies(
    place: str, time: int, tmp_path: Path, server: RedisServer, namespace: str, ledger_url: str,
    ledger: LedgerProbe,
) -> None:  # fmt: skip
    program = [sys.executable, "-c", PROGRAM, server.url, namespace, ledger_url]
    points = {"DELAYBRIDGE_FAILPOINTS": f"{place}=exit:{time}"}
    done = subprocess.run(
        program, env={**os.environ, **points}, capture_output=True, text=True, cwd=ROOT
    )
    said = [line.split() for line in done.stdout.splitlines()]
    cancelled = {id for answer, id in said if answer == "cancelled"}
    accepted = {id for answer, id in said if answer == "created"} - cancelled
    unanswered = {row.id for row in ledger.ask("SELECT id FROM message")} - accepted - cancelled
    ages(ledger)
    with fleet(tmp_path, server, namespace, ledger_url, SELDOM["ttl_ms"]) as workers:
        workers.start("w")
        until(lambda: not ledger.states()["delayed"], lambda: f"{ledger.states()}")
        published = [record.id for record in workers.published()]
        assert len(published) == len(set(published))
        assert accepted - unanswered <= set(published)
        assert not cancelled & set(published)


@pytest.mark.parametrize(
    "place", ["ledger.sealed", "ledger.told", "ledger.restored", "ledger.promoted"]
)
@pytest.mark.parametrize("time", [pytest.param(1, marks=pytest.mark.slow), 20])
@pytest.mark.slow_with("*restored*", "*sealed*")
def test_a_worker_dies(
    place: str, time: int, tmp_path: Path, server: RedisServer, namespace: str, ledger_url: str,
    ledger: LedgerProbe,
) -> None:  # fmt: skip
    with Client(
        server.url, namespace=namespace, brokers={"file": "memory://"}, durability="ledger",
        ledger=ledger_url, hot_window_s=10,
    ) as client:  # fmt: skip
        delay_s = 11 if place == "ledger.promoted" else 3  # cold, or not
        ids = [client.schedule(TO, b"x", delay=delay_s, id=f"m{n}").id for n in range(40)]
        if place == "ledger.restored":
            import redis

            redis.Redis.from_url(server.url).flushall()
        assert client.cancel(ids[0]) == "cancelled"
    with fleet(tmp_path, server, namespace, ledger_url) as workers:
        dying = workers.start("dies", settled=False, FAILPOINTS=f"{place}=exit:{time}")
        until(lambda: not dying.running or not ledger.states()["delayed"])
        workers.start("w")
        until(
            lambda: ledger.states() == {"published": 39, "cancelled": 1},
            lambda: f"{ledger.states()}",
        )  # fmt: skip
        published = [record.id for record in workers.published()]
        assert set(published) == set(ids[1:])  # what was in flight then comes again
    steps = ledger.ask("SELECT id FROM transition WHERE \"to\" = 'published'")
    assert len(steps) == 39
