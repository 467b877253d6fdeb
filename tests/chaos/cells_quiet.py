"""Cells of failures that others call green: something answers, or is connected, and nothing moves.

Each is from a public report about a peer.
"""

from __future__ import annotations

import hashlib
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from functools import partial
from typing import Any

import redis
from sqlalchemy import create_engine

from delaybridge import Message, outbox
from tests.chaos.cell import Cell, Setup
from tests.chaos.cells_front import FrontSite, with_fronts
from tests.chaos.cells_redis import cannot_write, fill
from tests.chaos.site import WINDOW, Site
from tests.rigs.bridge import rabbitmq_channel
from tests.rigs.waiting import DeadlineExceeded, until

ROWS_S = 0.2  # between two rows of the outbox
RETRYING = 100_000
SILENT_S = 20.0  # longer than each time-out of a call
ALL = "worker, ingest, front, outbox and recurring messages"


class Application:
    """Commits a row of the outbox each moment, and has a definition with a run each second."""

    def __init__(self, site: Site) -> None:
        self._site, self._ended = site, threading.Event()
        self._box = outbox.Outbox(namespace=site.namespace)
        url = f"sqlite:///{site.folder / 'application.db'}"
        self._engine = create_engine(url, connect_args={"timeout": 30})
        with self._engine.begin() as connection:
            outbox.create_table(connection)
        site.bridge.start("outbox", "run", DELAYBRIDGE_OUTBOX__URL=url)
        self._queue = f"{site.namespace}-runs"
        to = site.bridge.rabbitmq_queue(self._queue, consume=False)
        site.bridge.client.recurring.add("tick", to, "${due_ms}", every=1, missed="all")
        self._thread = threading.Thread(target=self._commit)
        self._thread.start()

    def _commit(self) -> None:
        number = 0
        while not self._ended.wait(ROWS_S):
            id, number, due_ms = f"row-{number}", number + 1, int(time.time() * 1000) + 1000
            message = Message(
                self._site.main, id, at=datetime.fromtimestamp(due_ms / 1000, UTC), id=id
            )
            self._site.accepted(id, hashlib.sha1(id.encode()).hexdigest(), due_ms)
            with self._engine.begin() as connection:
                self._box.schedule(connection, message)

    def finish(self) -> None:
        """All goes on, and no run is missing; rows are counted by the checker."""
        before = self._waiting()
        until(lambda: self._waiting() > before + 3, "runs come")
        self._ended.set()
        self._thread.join()
        site = self._site
        with self._engine.connect() as on:
            left = lambda: on.exec_driver_sql("SELECT count(*) FROM delaybridge_outbox").scalar()  # noqa: E731
            until(lambda: not left(), "all rows have moved")
        site.bridge.client.recurring.remove("tick")
        until(lambda: site.bridge.client.recurring.get("tick") is None, "it has ended")
        runs = sorted(self._received())
        site.notes.append(f"{len(runs)} runs, {len(set(runs))} different ones")
        first, last = runs[0], runs[-1]
        missing = {*range(first, last + 1, 1000)} - {*runs}
        site.expect("I1", f"no run is missing: {sorted(missing)[:5]}", not missing)

    def _waiting(self) -> int:
        with rabbitmq_channel(self._site.bridge.brokers["rabbitmq"]) as channel:
            return int(channel.queue_declare(self._queue, passive=True).method.message_count)

    def _received(self) -> Iterator[int]:
        with rabbitmq_channel(self._site.bridge.brokers["rabbitmq"]) as channel:
            while (found := channel.basic_get(self._queue))[0] is not None:
                yield int(found[2])
                channel.basic_ack(found[0].delivery_tag)


def with_everyone(fault: Callable[[Site], None]) -> Any:
    """Do this to a site that has processes of each kind."""

    def run(site: Site, fronts: FrontSite) -> None:
        application = Application(site)
        until(lambda: site.bridge.client.stats().delayed > 0, "messages wait")
        site.wait(2)
        fault(site)
        site.wait(2)
        application.finish()

    return with_fronts(run)


def refuse_all_writes(site: Site) -> None:
    """For three different reasons, one after the other."""
    with site.fault(after_s=site.lease_s):
        site.direct.config_set("min-replicas-to-write", 1)
        until(lambda: site.bridge.client.stats().refused, "it is said")
        site.wait(4)
        site.direct.config_set("min-replicas-to-write", 0)
    site.wait(2)
    fill(site)
    site.wait(2)
    cannot_write(site)


def swallow_all(site: Site) -> None:
    """Nothing passes to Redis and the broker; then all that were connected stay dead."""
    with site.fault(after_s=site.lease_s):
        for each in (site.redis_proxy, site.broker_proxy):
            each.mode = "blackhole"
        site.wait(SILENT_S)
        for each in (site.redis_proxy, site.broker_proxy):
            each.swallow_connections()
            each.mode = "pass"


def kill_subscriptions(site: Site) -> None:
    """Those that wake the workers, each half second; then Redis starts again without them."""

    def listening() -> int:
        return len(site.direct.client_list(_type="pubsub"))

    before = listening()
    with site.fault(after_s=3):
        for _ in range(8):
            site.direct.execute_command("CLIENT", "KILL", "TYPE", "pubsub")
            site.wait(0.5)
        site.redis.restart()
        with suppress(DeadlineExceeded):
            until(partial(is_back, listening, before), deadline_s=20)
    site.expect("I14", "all have subscribed again", is_back(listening, before))


def is_back(listening: Callable[[], int], before: int) -> bool:
    try:
        return listening() >= before
    except redis.RedisError:
        return False


@contextmanager
def many_retry(site: Site) -> Iterator[None]:
    """As long as this lasts, 100,000 messages fail again and again: their exchange is missing."""
    name = f"{site.namespace}-missing"
    messages = [Message(f"rabbitmq:{name}/k", b"x", delay=1)] * 1000
    for _ in range(RETRYING // len(messages)):
        site.bridge.client.schedule_many(messages)
    until(lambda: site.bridge.client.stats().retrying, "they fail")
    yield
    site.bridge.rabbitmq_queue(name, consume=False)


def retry_beside(site: Site) -> None:
    site.wait(5)
    with site.fault(), many_retry(site):
        site.wait(15)


def cell(id: str, component: str, fault: str, expects: str, run: Any, **more: Any) -> Cell:
    about = {"id": id, "component": component, "fault": fault, "expects": expects, "run": run}
    return Cell(**{"duplicates": 4 * WINDOW, "back_off_ms": 15_000, **about, **more})


CELLS = [
    cell(
        "F83",
        "Redis",
        "refuses writes for some seconds: NOREPLICAS, then OOM, then MISCONF",
        f"{ALL} go on; stats and probes say it meanwhile; no run is missing",
        with_everyone(refuse_all_writes),
        setup=Setup(redis="own", load={"rate": 20.0}),
        seconds=45.0,
    ),
    cell(
        "F84",
        "way to Redis and RabbitMQ",
        "every packet is dropped for 20 s, and what was connected stays dead without a sign",
        f"{ALL} go on by themselves; no run is missing",
        with_everyone(swallow_all),
        setup=Setup(redis="own", through=("redis", "broker"), load={"rate": 20.0}),
        seconds=30.0,
    ),
    cell(
        "F85",
        "Redis",
        "the wake-up connections are killed each half second for 4 s; then it is started again",
        "all workers subscribe again; nothing is lost",
        kill_subscriptions,
        setup=Setup(redis="own", load={"delay_s": 1.0}),
    ),
    cell(
        "F86",
        "RabbitMQ",
        "100,000 messages to an exchange that is missing fail again and again",
        "other destinations are on time",
        retry_beside,
        setup=Setup(
            other=True,
            lease_ms=10_000,
            load={"rate": 40.0},
            settings={"RETRY__MAX_MS": "10000", "RETRY__MAX_ATTEMPTS": "500"},
        ),
        seconds=60.0,
    ),
]
