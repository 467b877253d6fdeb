"""With a ledger Redis may be wiped, or get an older past, under load: nothing accepted is lost."""

from __future__ import annotations

import hashlib
import random
import shutil
import threading
import time
from collections.abc import Callable, Iterator

import pytest
import redis

from delaybridge.errors import StoreError
from delaybridge.message import Answer
from tests.rigs.bridge import Bridge, MakeBridge
from tests.rigs.history import Promise
from tests.rigs.ledgers import LedgerProbe, made
from tests.rigs.waiting import until
from tests.servers.postgres import PostgresServer
from tests.servers.redis import RedisServer

STEP = 300  # messages are accepted before the fault, and after it
LONGEST_S = 8  # until a message is due


class Load:
    """One caller who schedules all the time, and cancels some of what was accepted."""

    def __init__(self, bridge: Bridge, to: str) -> None:
        self._bridge, self._to = bridge, to
        self._random = random.Random(5)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self.cancelled: dict[str, float] = {}  # id -> when that was answered, epoch seconds
        self.unanswered = 0

    def __enter__(self) -> Load:
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._stop.set()
        self._thread.join()

    def wait_for(self, count: int) -> None:
        """Wait until so many further messages were accepted."""
        before = len(self._bridge.promises)
        until(lambda: len(self._bridge.promises) >= before + count, f"{count} more")

    def _run(self) -> None:
        far: list[str] = []
        while not self._stop.is_set():
            try:
                self._schedule(far)
                if len(far) > 20:
                    self._cancel(far.pop(self._random.randrange(len(far))))
            except StoreError:
                self.unanswered += 1

    def _schedule(self, far: list[str]) -> None:
        delay_s = self._random.uniform(0.3, LONGEST_S)
        body = self._random.randbytes(50)
        receipt = self._bridge.client.schedule(self._to, body, delay=delay_s)
        sha = hashlib.sha1(body).hexdigest()
        self._bridge.promises[receipt.id] = Promise(receipt.id, self._to, receipt.due_ms, sha)
        if delay_s > LONGEST_S / 2:
            far.append(receipt.id)

    def _cancel(self, id: str) -> None:
        # Without an answer it may be delivered or not.
        promise = self._bridge.promises.pop(id)
        answer = self._bridge.client.cancel(id)
        if answer is Answer.CANCELLED:
            self.cancelled[id] = time.time()
        elif answer is not Answer.CANCELLED_MAYBE_DELIVERED:
            self._bridge.promises[id] = promise


def wiped(server: RedisServer) -> None:
    redis.Redis.from_url(server.url).flushall()


def rolled_back(server: RedisServer) -> None:
    """It comes back as it was when the load began."""
    server.kill()
    shutil.copy(server.folder / "kept.rdb", server.folder / "dump.rdb")
    server.start()


@pytest.fixture
def database() -> Iterator[PostgresServer]:
    with PostgresServer() as server:
        yield server


@pytest.mark.slow
@pytest.mark.parametrize("fault", [wiped, rolled_back])
def test_nothing_is_lost_and_nothing_cancelled_arrives(
    fault: Callable[[RedisServer], None],
    make_bridge: MakeBridge,
    rabbitmq_url: str,
    namespace: str,
    database: PostgresServer,
) -> None:
    with RedisServer() as server:
        bridge = make_bridge(
            {"rabbitmq": rabbitmq_url}, redis_url=server.url, ledger=made(database.url)
        )
        to = f"rabbitmq:/{namespace}"
        bridge.rabbitmq_queue(namespace)
        names = bridge.start_workers(2)
        with Load(bridge, to) as load:
            load.wait_for(100)
            redis.Redis.from_url(server.url).save()
            shutil.copy(server.folder / "dump.rdb", server.folder / "kept.rdb")
            load.wait_for(STEP)
            fault(server)
            bridge.kill_worker(names[0])
            began_s = time.monotonic()
            load.wait_for(STEP)
            bridge.start_workers(1)
        bridge.wait_delivered()
        took_s = time.monotonic() - began_s
        probe = LedgerProbe(database.url)
        until(lambda: not probe.states()["delayed"], lambda: str(probe.states()))
        probe.close()
        verdict = bridge.verdict()
        print(
            f"cancelled {len(load.cancelled)}, without an answer {load.unanswered}, "
            f"everything delivered {took_s:.1f} s after the fault"
        )
        assert (verdict.lost, verdict.early, verdict.changed) == ([], [], [])
        assert len(load.cancelled) > STEP / 4
        after = [
            each.id
            for each in bridge.deliveries()
            if each.at_us / 1e6 > load.cancelled.get(each.id, 9e9)
        ]
        assert after == []
