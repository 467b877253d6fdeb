"""Cells in which buckets lose some of their keys, each bucket others; see `lost_keys.py`."""

from __future__ import annotations

import random
import shlex
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from itertools import combinations
from typing import Any

import redis

from delaybridge.store.protocol import keys, verbs
from tests.chaos.cell import Cell, Setup
from tests.chaos.cells_ledger import YOUNG_S, wait_restored
from tests.chaos.lost_keys import ALONE, TOGETHER, excused
from tests.chaos.site import WINDOW, Site
from tests.rigs.bridge import rabbitmq_channel
from tests.rigs.waiting import until

LOOK_S = 2  # between two looks of a worker at a bucket; 60 s without the change
SPARED = 2  # buckets that lose nothing, or more up to a power of two
HALF = "half of "
HALVED = """
local names = redis.call('TYPE', KEYS[1]).ok == 'zset' and redis.call('ZRANGE', KEYS[1], 0, -1)
  or redis.call('TYPE', KEYS[1]).ok == 'hash' and redis.call('HKEYS', KEYS[1]) or {}
for i = 1, #names, 2 do
  redis.call(redis.call('TYPE', KEYS[1]).ok == 'zset' and 'ZREM' or 'HDEL', KEYS[1], names[i])
end"""
ENOUGH = 5  # messages: of a few, all may be cancelled before a worker finds them
Lost = Mapping[int, Collection[str]]  # bucket -> keys


def each_in_a_bucket(losses: Sequence[Collection[str]]) -> Lost:
    return dict(enumerate(losses, start=SPARED))


def random_halves(count: int) -> list[list[str]]:
    return [random.sample([*ALONE], len(ALONE) // 2) for _ in range(count)]


SINGLES = each_in_a_bucket([[key] for key in ALONE])
PAIRS = each_in_a_bucket([*combinations(ALONE, 2)])
OF_MESSAGES = ("due", "messages", "mirror", "attempts", "parked", "dead", "dead_reason", "marks")
PAIRS_WITH_LEDGER = each_in_a_bucket(
    sorted({*(tuple(sorted(pair)) for pair in combinations(OF_MESSAGES, 2)), *TOGETHER})
)
HALVES = each_in_a_bucket(random_halves(30))
ENTRIES = each_in_a_bucket([[f"{HALF}{key}"] for key in (*ALONE, *ALONE)])


def lose(lost: Lost, *, kills: bool, ledger: bool) -> Callable[[Site], None]:
    """Delete these keys of each bucket at once, when all states are there; then see it mended.

    kills: a worker is killed as soon as the first bucket is mended. ledger: nobody mends by hand.
    """

    def run(site: Site) -> None:
        paused, _ = also_load(site)
        site.load_until(lambda: has_all_states(site), "most buckets have some of each state")
        with site.fault(after_s=2 * LOOK_S + site.lease_s):
            to_find = {bucket for bucket, names in lost.items() if delete(site, bucket, names)}
            site.notes.append(f"lost: {dict(lost)}")
            if kills:
                until(lambda: site.bridge.client.stats().mended, "a bucket is mended")
                site.kill_worker(site.bridge.workers[0])
            remedied: set[str] = set()
            by_hand = None if ledger else remedied
            with suppress(AssertionError):  # what is not mended breaks I8
                until(lambda: is_mended(site, by_hand), interval_s=0.3)
                site.finish_load()
                until(lambda: is_mended(site, by_hand), interval_s=0.3)
            site.bridge.client.destinations.resume(paused.partition("/")[0])
            if ledger:
                wait_restored(site)
        told = site.bridge.client.stats().mended.keys()
        site.expect("I8", f"it is told of {to_find - told}, too", to_find <= told)
        alone = {key_of(site, b, "marks") for b, names in lost.items() if [*names] == ["marks"]}
        site.expect("I8", "a command mends lost marks", alone <= remedied or ledger)

    return run


def delete(site: Site, bucket: int, names: Collection[str]) -> bool:
    """Whether that leaves several messages in no set, without their records being lost."""
    with site.direct.pipeline() as transaction:
        for name in ("due", "parked"):
            transaction.zcard(key_of(site, bucket, name))
        for name in names:
            lose_one(transaction, key_of(site, bucket, name.removeprefix(HALF)), name)
        due, parked, *_ = transaction.execute()
    gone = due * ("due" in names) + parked * ("parked" in names)
    return "messages" not in names and gone >= ENOUGH


def lose_one(redis: Any, key: str, name: str) -> None:
    """Delete a key, or every other entry of it."""
    if name.startswith(HALF):
        redis.eval(HALVED, 1, key)
    else:
        redis.delete(key)


def is_mended(site: Site, remedied: set[str] | None) -> bool:
    """Whether every message is in its place.

    remedied: runs the commands that stats show meanwhile, and adds their keys; None: it does not.
    """
    found = site.bridge.client.stats().all_damage
    for one in found if remedied is not None else ():
        command = shlex.split(one.remedy.partition("redis-cli ")[2])
        if command:
            remedied.add(command[1])
            with suppress(redis.ResponseError):
                site.direct.execute_command(*command)
    return not found and not site.misplaced()


def also_load(site: Site) -> tuple[str, str]:
    """Messages for a paused destination, and for one that takes none: they end in the dead set."""
    name, client = site.namespace, site.bridge.client
    paused = site.bridge.rabbitmq_queue(f"{name}-paused")
    client.destinations.pause(paused.partition("/")[0])
    with rabbitmq_channel(site.bridge.brokers["rabbitmq"]) as channel:
        channel.exchange_declare(f"{name}-hopeless", "topic", durable=False, auto_delete=False)
    hopeless = f"rabbitmq:{name}-hopeless/key"
    site.start_load(
        destinations=[paused, hopeless], seed=8, first_s=0.0, delay_s=2.0, retry={"max_attempts": 1}
    )
    return paused, hopeless


def has_all_states(site: Site) -> bool:
    buckets = site.bridge.client.stats().buckets
    counts = [[getattr(b, state) for b in buckets] for state in ("delayed", "parked", "dead")]
    return all(sum(map(bool, each)) > len(buckets) / 2 for each in counts)


def key_of(site: Site, bucket: int, name: str) -> str:
    return keys.bucket_key(site.namespace, bucket, name)


ROWS = "in each what the table of lost keys says; all other buckets go on"


def cell(
    id: str, fault: str, lost: Lost, *, kills: bool = False, ledger: bool = False, **more: object
) -> Cell:
    buckets = 2 ** max(lost).bit_length()

    def excuses(message: str) -> frozenset[str]:
        names = lost.get(verbs.bucket_of(message.encode(), buckets), ())
        return excused([name.removeprefix(HALF) for name in names], ledger=ledger)

    return Cell(
        id=id, component="Redis", fault=fault, expects=ROWS,
        run=lose(lost, kills=kills, ledger=ledger), excuses=excuses,
        setup=Setup(
            redis="own", buckets=buckets, change=f"look:{LOOK_S}", ledger=ledger,
            settings={"PUBLISH__DEDUP_WINDOW_S": "600", "LEDGER__RECONCILE_S": str(LOOK_S)},
            load={"rate": 250.0, "first_s": 1.0},
        ),
        duplicates=4 * WINDOW, back_off_ms=10_000 + YOUNG_S * 1000 * ledger, **more,
    )  # type: ignore[arg-type]  # fmt: skip


CELLS = [
    cell(
        "F75", f"{len(SINGLES)} buckets lose one key each, each another one, under load",
        SINGLES, is_test=True,
    ),
    cell(
        "F75b", f"{len(PAIRS)} buckets lose two keys each, each another pair, under load",
        PAIRS, seconds=10.0,
    ),
    cell(
        "F75c",
        f"{len(HALVES)} buckets lose a random half of their keys, under load; a worker is killed "
        "while they are mended",
        HALVES, kills=True,
    ),
    cell(
        "F75-ledger", f"{len(SINGLES)} buckets lose one key each, under load, with a ledger",
        SINGLES, ledger=True,
    ),
    cell(
        "F75b-ledger",
        f"{len(PAIRS_WITH_LEDGER)} buckets lose two keys each, under load, with a ledger",
        PAIRS_WITH_LEDGER, ledger=True,
    ),
    cell(
        "F75c-ledger",
        f"{len(HALVES)} buckets lose a random half of their keys, under load, with a ledger; a "
        "worker is killed while they are mended",
        HALVES, ledger=True, kills=True,
    ),
    cell(
        "F75d-ledger",
        f"{len(ENTRIES)} buckets lose half of the entries of a key each, under load, with a ledger",
        ENTRIES, ledger=True,
    ),
]  # fmt: skip
