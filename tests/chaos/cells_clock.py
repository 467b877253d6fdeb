"""Cells of clocks, storms, entrances, versions and machines."""

from __future__ import annotations

import hashlib
import json
import os
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pika
from confluent_kafka import Producer

from tests.chaos.cell import Cell, Setup
from tests.chaos.checker import read_history
from tests.chaos.site import WINDOW, Site
from tests.rigs.bridge import ROOT, rabbitmq_channel
from tests.rigs.other_version import put_other_version
from tests.rigs.waiting import DEADLINE_S, until
from tests.servers.clock import SOURCE
from tests.servers.preloaded import library

HOUR_MS = 3_600_000
LONG_BACK_OFF = {"RETRY__BASE_MS": "3000", "RETRY__MAX_MS": "5000"}


def step_the_clock(site: Site) -> None:
    """An hour ahead, two hours back, then to and fro by a second; at the end all is due."""
    with site.fault(after_s=3):
        for step_ms in (HOUR_MS, -HOUR_MS, *(-HOUR_MS + s for s in (1000, 0, 1000, 0))):
            site.set_clock(step_ms)
            site.wait(1.2)
    site.finish_load()
    with site.fault(after_s=3):
        site.set_clock(3 * HOUR_MS)
    said = [name for name, log in site.logs().items() if "clock_stepped" in log]
    site.expect("I14", "the workers say that the clock was set", len(said) >= 2)


def step_back_with_a_dead_worker(site: Site) -> None:
    with site.fault(after_s=site.lease_s):
        site.bridge.kill_worker(site.bridge.workers[0])
        site.set_clock(-HOUR_MS)
        receipt = site.bridge.client.schedule(site.main, b"x", delay=1.9, id="just-after")
        site.accepted("just-after", hashlib.sha1(b"x").hexdigest(), receipt.due_ms)
        site.wait(site.lease_s + 1)
        owners = {bucket.owner for bucket in site.bridge.client.stats().buckets}
        site.expect("I9", f"all buckets have an owner: {owners}", None not in owners)
    site.expect("I9", "what was scheduled just after came", "just-after" in arrived(site))
    site.finish_load()
    with site.fault(after_s=3):
        site.set_clock(0)


def with_clock(site: Site, step_ms: int) -> dict[str, str]:
    """The environment of a process whose clock is ahead by that much."""
    path = site.folder / f"clock{step_ms}"
    path.write_bytes((step_ms * 1000).to_bytes(8, sys.byteorder, signed=True))
    return {"LD_PRELOAD": str(library(SOURCE)), "TEST_CLOCK": str(path)}


def workers_clocks_are_wrong(site: Site) -> None:
    site.start_victim(**with_clock(site, HOUR_MS))
    site.start_victim(**with_clock(site, -HOUR_MS))
    for name in site.bridge.workers[:2]:
        site.bridge.signal_worker(name, 15)
        until(lambda name=name: site.bridge.has_ended(name))


def producers_clock_is_wrong(site: Site) -> None:
    """Of a second producer; what it asks for is due 3 s after some moment of its call."""
    wall_s = time.time() - time.monotonic()
    site.start_load(
        history=str(site.folder / "wrong.jsonl"), seed=8, first_s=3.0, delay_s=0.0,
        cancels=0.0, reschedules=0.0, environment=with_clock(site, HOUR_MS),
    )  # fmt: skip
    site.finish_load()
    asked: dict[str, float] = {}
    wrong = []
    for line in read_history(site.folder / "wrong.jsonl"):
        event = json.loads(line)
        at_ms = (event["t"] + wall_s) * 1000
        if event["phase"] == "invoke":
            asked[event["id"]] = at_ms
        elif not asked[event["id"]] <= event["due"] - 3000 <= at_ms + 1:  # due is rounded
            wrong.append(event["id"])
    site.expect("I2", f"{len(asked)} are due after 3 s: {wrong[:3]}", asked and not wrong)


def storm(site: Site) -> None:
    """Changes close to the due time, while outcomes are unknown and stale owners call."""
    command = [sys.executable, "-m", "tests.chaos.stale_owner"]
    stale = subprocess.Popen(
        [*command, site.workers_redis, site.namespace, str(site.seconds)],
        env={**os.environ, **site.bridge.environment}, stdout=subprocess.PIPE, cwd=ROOT,
    )  # fmt: skip
    while site.is_loading:
        with site.fault(after_s=1):
            site.silence(site.broker_proxy, 0.8, "blackhole_down")
        site.wait(1.2)
    printed, _ = stale.communicate(timeout=site.seconds + DEADLINE_S)
    said = json.loads(printed)
    site.notes.append(f"stale owners called {said['asked']} times, with late news {said['late']}")
    site.expect("I12", "late news buried nothing", said["late"] > 20 and not site.bridge.dead())
    site.expect("I10", f"nothing took effect: {said['took_effect']}", not said["took_effect"])
    site.expect("I10", "stale owners called", said["asked"] > 100)


def poison(site: Site) -> None:
    """The message ends each worker that publishes it; others take their places."""
    with site.fault(after_s=2 * site.lease_s):
        site.bridge.client.schedule(site.main, b"poison", delay=0.5, id="poison")

        def is_dead() -> bool:
            for name in site.bridge.workers:
                if site.bridge.has_ended(name):
                    site.bridge.exit_code(name)
                    site.bridge.start_worker(site.workers_redis)
            return "poison" in site.bridge.dead()

        until(is_dead, "the message is in the dead set", interval_s=0.2)


def lack_descriptors(site: Site) -> None:
    """Workers cannot open anything for 4 s, and must: their connections are cut."""
    limits = resource.prlimit
    with site.fault(after_s=site.lease_s):
        pids = [site.bridge.pid(name) for name in site.bridge.workers]
        before = {pid: limits(pid, resource.RLIMIT_NOFILE) for pid in pids}
        for pid in pids:
            limits(pid, resource.RLIMIT_NOFILE, (3, before[pid][1]))
        used_s = {pid: cpu_s(pid) for pid in pids}
        site.proxies.reset(site.broker_proxy)
        site.wait(4)
        spun = {pid: cpu_s(pid) - used_s[pid] for pid in pids}
        for pid in pids:
            limits(pid, resource.RLIMIT_NOFILE, before[pid])
    site.expect("I14", f"no worker spins: {spun}", max(spun.values()) < 2)


def cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def cannot_log(site: Site) -> None:
    """New workers write their logs to a full disk; the others drain."""
    for name in site.bridge.workers:
        site.bridge.start_worker(site.workers_redis, log=Path("/dev/full"))
        site.bridge.signal_worker(name, 15)
        until(lambda name=name: site.bridge.has_ended(name))


def two_versions(site: Site) -> None:
    folder = site.folder / "other"
    put_other_version(folder)
    old = site.start_victim(PYTHONPATH=f"{folder}{os.pathsep}{ROOT}")
    until(
        lambda: old in {bucket.owner for bucket in site.bridge.client.stats().buckets},
        f"the old version works: {site.logs()[old][-500:]}",
    )  # fmt: skip
    site.wait(2)
    site.kill_worker(old)


def two_leases(site: Site) -> None:
    other = site.start_victim(DELAYBRIDGE_LEASE__TTL_MS="10000", DELAYBRIDGE_LEASE__RENEW_MS="2000")
    site.wait(3)
    with site.stopped(other):  # less than its own lease: nobody takes over
        site.wait(3.5)


def damage_a_bucket(site: Site) -> None:
    """The key `due` of a bucket has another type for 3 s."""
    from delaybridge.store.protocol.keys import bucket_key

    key = bucket_key(site.namespace, 0, "due")
    with site.fault(after_s=5):
        site.direct.rename(key, f"{key}.away") if site.direct.exists(key) else None
        site.direct.set(key, "x")
        site.wait(4)
        site.direct.delete(key)
        site.direct.rename(f"{key}.away", key) if site.direct.exists(f"{key}.away") else None
    named = [name for name, log in site.logs().items() if key in log]
    site.expect("I14", "a log names the key", named)


def ingest_dies(site: Site) -> None:
    """It ends between storing and acknowledging; another one reads the messages again."""
    exchange = f"{site.namespace}.delay"
    command = ("ingest", "rabbitmq", "--exchange", exchange)
    first = site.bridge.start(*command, DELAYBRIDGE_FAILPOINTS="ingest.stored=exit:3")
    with rabbitmq_channel(site.bridge.brokers["rabbitmq"]) as channel:
        until(lambda: is_read(site, exchange), "ingest reads", interval_s=0.2)
        channel.confirm_delivery()

        def publish(number: int) -> None:
            publish_delayed(site, channel, exchange, f"in-{number}")
            channel.connection.process_data_events(0.005)

        replaced_during(site, publish, first, lambda: site.bridge.start(*command))


def kafka_ingest_dies(site: Site) -> None:
    """The same, with records of a delay topic and offsets."""
    topic = site.bridge.kafka_topic(f"{site.namespace}.delay", consume=False)
    command = ("ingest", "kafka", "--topic", topic.partition(":")[2])
    group = {"DELAYBRIDGE_INGEST__GROUP": site.namespace}
    at_once = {"DELAYBRIDGE_FAILPOINTS": "ingest.stored=exit:1"}  # all so far come in one batch
    first = site.bridge.start(*command, **group, **at_once)
    producer = Producer({"bootstrap.servers": urlsplit(site.bridge.brokers["kafka"]).netloc})

    def publish(number: int) -> None:
        id, delay_ms = f"in-{number}", 10_000
        body, due_ms = id.encode() * 3, time.time_ns() // 1_000_000 + delay_ms
        headers = {"delaybridge-id": id, "delaybridge-delay": str(delay_ms)}
        producer.produce(topic.partition(":")[2], body, headers=headers)
        if producer.flush(DEADLINE_S) == 0:
            site.accepted(id, hashlib.sha1(body).hexdigest(), due_ms)
        site.wait(0.005)

    replaced_during(site, publish, first, lambda: site.bridge.start(*command, **group))


def replaced_during(
    site: Site, publish: Callable[[int], None], first: subprocess.Popen[bytes],
    start: Callable[[], object],
) -> None:  # fmt: skip
    """Publish 300 messages; after the 20th wait until the first ingest is dead, start another."""
    with site.fault(after_s=3):
        for number in range(300):
            publish(number)
            if number == 20:
                until(lambda: first.poll() is not None, "ingest ends")
                site.expect("I14", "by the failpoint", first.returncode == 137)
                start()
    with suppress(AssertionError):
        until(lambda: arrived(site) >= {f"in-{n}" for n in range(300)}, interval_s=0.3)


def arrived(site: Site) -> set[str]:
    return {delivery.id for delivery in site.bridge.deliveries()}


def publish_delayed(site: Site, channel: Any, exchange: str, id: str) -> None:
    body, delay_ms = id.encode() * 3, 10_000
    due_ms = time.time_ns() // 1_000_000 + delay_ms
    properties = pika.BasicProperties(message_id=id, headers={"x-delay": delay_ms})
    channel.basic_publish(exchange, "k", body, properties, mandatory=True)
    site.accepted(id, hashlib.sha1(body).hexdigest(), due_ms)


def is_read(site: Site, exchange: str) -> bool:
    with suppress(Exception), rabbitmq_channel(site.bridge.brokers["rabbitmq"]) as channel:
        return channel.queue_declare(exchange, passive=True).method.consumer_count > 0
    return False


CELLS = [
    Cell(
        id="F51",
        component="clock of Redis",
        fault="set an hour ahead, two hours back, then to and fro by a second",
        expects="workers say so; nothing is early by that clock; no bucket is stuck",
        run=step_the_clock,
        is_test=True,
        setup=Setup(redis="clocked", load={"reschedules": 0.0}),
        duplicates=4 * WINDOW,  # leases run out when the clock is set ahead
        back_off_ms=9 * HOUR_MS,
    ),
    Cell(
        id="F52",
        component="clock of a worker",
        fault="one is an hour ahead, one an hour behind",
        expects="no effect at all",
        run=workers_clocks_are_wrong,
        setup=Setup(lease_ms=10_000),
    ),
    Cell(
        id="F53",
        component="clock of a producer",
        fault="an hour ahead",
        expects="delays are exact all the same",
        run=producers_clock_is_wrong,
        setup=Setup(lease_ms=10_000),
    ),
    Cell(
        id="F54",
        component="all",
        fault="cancel and reschedule close to the due time, outcomes unknown, stale owners",
        expects="every answer is true; a stale owner changes nothing",
        run=storm,
        is_test=True,
        setup=Setup(
            through=("broker",),
            settings=LONG_BACK_OFF,
            load={"cancels": 0.3, "reschedules": 0.3, "close_to_due": True},
        ),
        duplicates=10 * 2 * WINDOW,
        back_off_ms=10_000,
    ),
    Cell(
        id="F56",
        fault="a message ends each worker that publishes it",
        expects="it is in the dead set after its attempts; its neighbours are delivered",
        run=poison,
        setup=Setup(change="poison:poison", settings={"RETRY__MAX_ATTEMPTS": "3"}),
        duplicates=3 * WINDOW,
    ),
    Cell(
        id="F59",
        component="ingest, RabbitMQ",
        fault="killed between storing messages and acknowledging them",
        expects="they are read again, and recognized by their ids: no duplicate",
        run=ingest_dies,
    ),
    Cell(
        id="F59-kafka",
        component="ingest, Kafka",
        fault="killed between storing records and committing their offsets",
        expects="they are read again, and skipped: no duplicate",
        run=kafka_ingest_dies,
        setup=Setup(broker="kafka"),
    ),
    Cell(
        id="F61",
        fault="no file descriptors are left for 4 s, while connections are cut",
        expects="it says so, does not spin, and connects again",
        run=lack_descriptors,
        setup=Setup(through=("broker",)),
        duplicates=2 * WINDOW,
    ),
    Cell(
        id="F62",
        fault="its log cannot be written (disk full)",
        expects="it works on",
        run=cannot_log,
        setup=Setup(lease_ms=10_000),
    ),
    Cell(
        id="F63",
        fault="workers of two versions at once; the older one is killed",
        expects="nothing is lost or early",
        run=two_versions,
        duplicates=WINDOW,
    ),
    Cell(
        id="F70",
        component="clock of Redis",
        fault="set an hour back, with a dead worker's announcement in place",
        expects="its buckets have an owner within a lease; a short delay just after is kept",
        run=step_back_with_a_dead_worker,
        setup=Setup(redis="clocked", load={"reschedules": 0.0}),
        duplicates=WINDOW,
        back_off_ms=9 * HOUR_MS,
    ),
    Cell(
        id="F71",
        fault="two values of lease.ttl_ms in one fleet; the longer one's worker stops for 3.5 s",
        expects="its lease is not shortened: no duplicate",
        run=two_leases,
    ),
    Cell(
        id="F73",
        component="Redis",
        fault="the key `due` of a bucket has a wrong type for 4 s",
        expects="a log names the key; nothing is lost once it is mended",
        run=damage_a_bucket,
        back_off_ms=10_000,
    ),
]
