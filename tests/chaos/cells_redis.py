"""Cells whose fault is in one Redis, or on the way to it."""

from __future__ import annotations

import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any

import redis

from tests.chaos.cell import Cell, Setup
from tests.chaos.site import AOF, WINDOW, Site
from tests.rigs.redis_troubles import endless_script, refuse_writes
from tests.rigs.waiting import DEADLINE_S, until
from tests.servers.power import PoweredRedis
from tests.servers.redis import RedisServer

OWN = Setup(redis="own")
PROXIED = Setup(redis="own", through=("redis",))


def kill_and_restart(times: int) -> Callable[[Site], None]:
    def run(site: Site) -> None:
        for _ in range(times):
            with site.fault():
                site.redis.kill()
                site.redis.start()
            site.wait(1.5)

    return run


def pause_redis(*seconds: float) -> Callable[[Site], None]:
    def run(site: Site) -> None:
        for each_s in seconds:
            with site.fault():
                site.redis.pause()
                site.wait(each_s)
                site.redis.resume()
            site.wait(2)

    return run


def fill(site: Site) -> None:
    """Redis is full for 3 s: it refuses what would need memory."""
    with site.fault():
        used = site.direct.info("memory")["used_memory"]
        site.direct.config_set("maxmemory", used // 2)
        site.wait(3)
        refused = [line for line in site.history.read_text().splitlines() if "StoreFull" in line]
        site.expect("I1", "schedule was refused with StoreFull", refused)
        site.direct.config_set("maxmemory", 0)


def cannot_write(site: Site) -> None:
    with site.fault():
        refuse_writes(site.redis, site.direct)
        site.wait(3)
        (site.redis.folder / "dump.rdb").rmdir()
        site.direct.config_set("save", "")
        site.direct.bgsave()


def flush_scripts_and_be_busy(site: Site) -> None:
    with site.fault():
        for _ in range(5):
            site.direct.script_flush()
            site.wait(0.3)
        site.direct.config_set("busy-reply-threshold", 100)
        busy = redis.Redis(port=site.redis.port)
        thread = threading.Thread(target=endless_script, args=[busy])
        thread.start()
        site.wait(3)
        site.direct.script_kill()
        thread.join()
        busy.close()


def reset_all_the_time(site: Site) -> None:
    with site.fault():
        for _ in range(int(site.seconds * 3)):
            site.wait(0.3)
            site.proxies.reset(site.redis_proxy)


def swallow_replies(site: Site) -> None:
    """Of every twentieth call no reply comes."""
    with site.fault(after_s=2):
        for name in site.bridge.workers:
            site.bridge.kill_worker(name)
        for _ in range(2):
            site.start_victim(change="lose:=0.05")
        site.wait(site.seconds - 2)


def be_slow(site: Site) -> None:
    with site.fault():
        site.redis_proxy.delay_s = 0.1  # in each direction
        site.wait(site.seconds - 2)
        site.redis_proxy.delay_s = 0


def be_demoted(site: Site) -> None:
    """Redis moves behind its address; connections to the old master stay open."""
    new = site.enter(RedisServer([*AOF]))
    with redis.Redis(port=new.port) as replica, site.fault():
        replica.replicaof("127.0.0.1", site.redis.port)
        online = lambda: site.direct.info("replication").get("slave0", {})  # noqa: E731
        until(lambda: online().get("state") == "online", "the replica is in sync")
        site.direct.execute_command("FAILOVER", "TO", "127.0.0.1", new.port)
        until(lambda: replica.info("replication")["role"] == "master")
        site.redis_proxy.target = new.port
    site.lead_to(new)


def swallow_wake_ups(site: Site) -> None:
    with site.fault(after_s=4):
        count = site.redis_proxy.swallow_subscriptions()
        site.expect("I14", "workers had subscribed", count)
        site.wait(4)


def refuses_to_start(site: Site, *phrases: str, url: str = "") -> None:
    """`delaybridge scan` ends at once, and says why."""
    command = [sys.executable, "-m", "delaybridge", "--redis", url or site.redis.url]
    command += ["--namespace", site.namespace, "--broker", site.bridge.brokers["rabbitmq"], "scan"]
    ended = subprocess.run(
        command, capture_output=True, text=True, env=site.bridge.environment, timeout=DEADLINE_S
    )
    said = ended.stdout + ended.stderr
    site.notes.append(said.strip().splitlines()[-1][:160] if said.strip() else "said nothing")
    site.expect("I14", f"it refuses to start: {said[-300:]}", ended.returncode in (2, 5))
    for phrase in phrases:
        site.expect("I14", f"it says {phrase}: {said[-300:]}", phrase in said)


def evict_keys(site: Site) -> None:
    with RedisServer(["--maxmemory", "100mb", "--maxmemory-policy", "allkeys-lru"]) as other:
        refuses_to_start(site, "allkeys-lru", url=other.url)


def lack_a_right(site: Site) -> None:
    with RedisServer() as other:
        with redis.Redis(port=other.port) as admin:
            rights = ("on", ">s3cret", "~*", "&*", "+@all", "-zadd")
            admin.execute_command("ACL", "SETUSER", "bridge", *rights)
        refuses_to_start(site, "zadd", url=f"redis://bridge:s3cret@127.0.0.1:{other.port}/0")


def vanish(site: Site) -> None:
    """Redis restarts empty. Whatever was stored is gone: that must be said."""
    site.finish_load()
    said_before = len(telling(site, WIPED))
    with site.fault():
        site.redis.kill()
        site.redis.start()
        must_say(site, said_before)


def be_flushed(site: Site) -> None:
    site.finish_load()
    with site.fault():
        site.direct.flushall()
        must_say(site, 0)


WIPED = ("wiped", "went back", "was deleted, or created again")
WENT_BACK = ("went back", "went_back", "older state", "store_set_back", "rolled back")


def telling(site: Site, words: tuple[str, ...]) -> list[str]:
    """The workers whose log has one of these."""
    return [name for name, log in site.logs().items() if any(word in log for word in words)]


def must_say(site: Site, before: int) -> None:
    began_s = time.monotonic()
    try:
        until(lambda: len(telling(site, WIPED)) > before)
        site.notes.append(f"said after {time.monotonic() - began_s:.1f} s")
        is_soon = time.monotonic() - began_s <= 5 + site.lease_s + site.slack_s
    except AssertionError:
        is_soon = False
    site.expect("I14", "a worker says within 5 s and a lease that data is gone", is_soon)
    for name in site.bridge.workers:  # they ended, or wait; none may work on
        site.bridge.kill_worker(name)


def lose_power(site: Site) -> None:
    assert isinstance(site.redis, PoweredRedis)
    with site.fault():
        site.notes.append(f"{site.redis.lose_power()} bytes of the AOF were not on disk")
        site.redis.start()


def roll_back(site: Site) -> None:
    """Somebody restores the files of two seconds ago."""
    folder, saved = site.redis.folder, site.folder / "saved"
    shutil.copytree(folder / "appendonlydir", saved)
    site.wait(2)
    with site.fault():
        site.redis.kill()
        shutil.rmtree(folder / "appendonlydir")
        shutil.copytree(saved, folder / "appendonlydir")
        site.redis.start()
        began_s = time.monotonic()
        with suppress(AssertionError):
            until(lambda: telling(site, WENT_BACK))
        took_s = time.monotonic() - began_s
        site.notes.append(f"said after {took_s:.1f} s: {telling(site, WENT_BACK)}")
        is_soon = took_s <= 5 + site.slack_s
        site.expect("I14", "a worker says within 5 s that the store went back", is_soon)


def connect_again_and_again(site: Site) -> None:
    """Connections of the workers are cut a thousand times; their number stays bounded."""
    with site.fault():
        for _ in range(100):
            for client in site.direct.client_list(_type="normal"):
                if client["cmd"] != "client|list":
                    site.direct.client_kill_filter(_id=client["id"])
            site.wait(0.05)
    count = len(site.direct.client_list())
    site.notes.append(f"{count} connections")
    site.expect("I14", f"connections are bounded: {count}", count < 60)


def cell(
    id: str, fault: str, expects: str, run: Callable[[Site], None], setup: Setup = OWN, **more: Any
) -> Cell:
    about = {"component": "Redis", **more}
    return Cell(id=id, fault=fault, expects=expects, run=run, setup=setup, **about)


way = partial(cell, component="way to Redis")
CELLS = [
    cell(
        "F09",
        "killed (SIGKILL) and started again three times, append-only file on",
        "nothing is lost; what was in flight may come twice",
        kill_and_restart(3),
        is_test=True,
        duplicates=3 * 2 * WINDOW,
    ),
    cell(
        "F10",
        "killed and started again, nothing on disk",
        "what was stored is lost; workers say so within 5 s and a lease, and stop",
        vanish,
        setup=Setup(redis="own", redis_args=("--save", ""), load={"first_s": 20.0}),
        may_lose_s=60,
    ),
    cell(
        "F12",
        "its machine loses power; append-only file synced every second",
        "only what was answered up to 2 s before is lost",
        lose_power,
        setup=Setup(redis="powered"),
        may_lose_s=2.2,
        duplicates=4 * WINDOW,
    ),
    cell(
        "F12b",
        "its machine loses power; synced always, durability aof-fsync",
        "nothing is lost",
        lose_power,
        setup=Setup(
            redis="powered",
            redis_args=("--appendfsync", "always"),
            load={"settings": {"durability": "aof-fsync"}},
        ),
        duplicates=2 * WINDOW,
    ),
    cell(
        "F74",
        "restored from files that are two seconds older, under load",
        "what was answered meanwhile is lost; workers say so within 5 s",
        roll_back,
        may_lose_s=4,
        duplicates=8 * WINDOW,
    ),
    cell(
        "F13",
        "stopped for 3 s, and for 8 s: longer than the time-out of a call",
        "nothing is lost, nothing is claimed by two",
        pause_redis(3, 8),
        is_test=True,
        duplicates=2 * WINDOW,
    ),
    cell(
        "F22",
        "full for 3 s (maxmemory)",
        "schedule is refused with StoreFull; what is stored goes out meanwhile",
        fill,
    ),
    cell(
        "F23",
        "may evict keys (allkeys-lru)",
        "workers refuse to start, and name the setting",
        evict_keys,
    ),
    cell(
        "F24",
        "cannot write to its disk for 3 s, and refuses writes (MISCONF)",
        "nothing is lost; what is due waits until writes are possible",
        cannot_write,
    ),
    cell(
        "F25",
        "scripts flushed five times; busy with a script for 3 s",
        "nothing is lost or repeated",
        flush_scripts_and_be_busy,
        duplicates=2 * WINDOW,
    ),
    cell(
        "F26",
        "FLUSHALL",
        "what was stored is lost; workers say so within 5 s and a lease, and stop",
        be_flushed,
        setup=Setup(redis="own", load={"first_s": 20.0}),
        may_lose_s=60,
    ),
    way(
        "F27",
        "all connections reset every 0.3 s",
        "nothing is lost or repeated",
        reset_all_the_time,
        setup=PROXIED,
        duplicates=WINDOW,
    ),
    way(
        "F27b",
        "every twentieth reply is lost",
        "nothing is lost; each call takes effect once",
        swallow_replies,
        duplicates=2 * WINDOW,  # of the two workers that are killed first
    ),
    way(
        "F28",
        "200 ms for each round trip",
        "nothing is lost or repeated; messages are late by a round trip",
        be_slow,
        setup=PROXIED,
    ),
    cell(
        "F29",
        "the user may not call one command (ACL)",
        "workers refuse to start, and name the command",
        lack_a_right,
    ),
    cell(
        "F67",
        "a failover behind the same address; connections to the old master stay open",
        "nothing is lost; work goes on within 5 s",
        be_demoted,
        is_test=True,
        setup=PROXIED,
        back_off_ms=0,
        duplicates=2 * WINDOW,
    ),
    way(
        "F68",
        "all connections are cut a hundred times",
        "clients and workers go on; the number of connections stays bounded",
        connect_again_and_again,
        duplicates=2 * WINDOW,
    ),
    way(
        "F69",
        "the wake-up connections go dead without a sign",
        "noticed within 4 s; short delays are on time again",
        swallow_wake_ups,
        setup=Setup(redis="own", through=("redis",), load={"delay_s": 1.0}),
    ),
]
