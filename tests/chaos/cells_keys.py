"""Cells in which buckets lose some of their keys, each bucket others; see `lost_keys.py`."""

from __future__ import annotations

import random
import shlex
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from itertools import combinations

import redis

from delaybridge.store import keys
from tests.chaos.cell import Cell, Setup
from tests.chaos.lost_keys import ALONE, excused
from tests.chaos.site import WINDOW, Site
from tests.rigs.bridge import rabbitmq_channel
from tests.rigs.waiting import until

LOOK_S = 2  # between two looks of a worker at a bucket; 60 s without the change
SETS = ("due", "mirror", "parked", "dead")
SPARED = 2  # buckets that lose nothing, or more up to a power of two
Lost = Mapping[int, Collection[str]]  # bucket -> keys


def each_in_a_bucket(losses: Sequence[Collection[str]]) -> Lost:
    return dict(enumerate(losses, start=SPARED))


def random_halves(count: int) -> list[list[str]]:
    return [random.sample([*ALONE], len(ALONE) // 2) for _ in range(count)]


SINGLES = each_in_a_bucket([[key] for key in ALONE])
PAIRS = each_in_a_bucket([*combinations(ALONE, 2)])
HALVES = each_in_a_bucket(random_halves(30))


def lose(lost: Lost) -> Callable[[Site], None]:
    """Delete these keys of each bucket at once, when all states are there; then see it mended."""

    def run(site: Site) -> None:
        paused, hopeless = also_load(site)
        place = paused.partition("/")[0]
        until(lambda: has_all_states(site), "some are parked, some are dead", interval_s=0.1)
        with site.fault(after_s=2 * LOOK_S + site.lease_s):
            for bucket, names in lost.items():
                site.direct.delete(*(key_of(site, bucket, name) for name in names))
            site.notes.append(f"{len(lost)} buckets lost keys: {dict(lost)}"[:2000])
            remedied = follow_remedies(site)
            until(lambda: not site.misplaced(), lambda: str(site.misplaced()), interval_s=0.2)
            site.finish_load()
            until(lambda: not site.misplaced(), lambda: str(site.misplaced()), interval_s=0.2)
            site.bridge.client.resume(place)
        said_in(site, lost, remedied)

    return run


def also_load(site: Site) -> tuple[str, str]:
    """Messages for a paused destination, and for one that takes none: they end in the dead set."""
    name, client = site.namespace, site.bridge.client
    paused = site.bridge.rabbitmq_queue(f"{name}-paused")
    client.pause(paused.partition("/")[0])
    with rabbitmq_channel(site.bridge.brokers["rabbitmq"]) as channel:
        channel.exchange_declare(f"{name}-hopeless", "topic", durable=False, auto_delete=False)
    hopeless = f"rabbitmq:{name}-hopeless/key"
    client.retry_plan(hopeless.partition("/")[0], {"max_attempts": 1})
    site.start_load(destinations=[paused, hopeless], seed=8, delay_s=2.0)
    return paused, hopeless


def has_all_states(site: Site) -> bool:
    buckets = site.bridge.client.stats().buckets
    counts = [[getattr(b, state) for b in buckets] for state in ("delayed", "parked", "dead")]
    return all(sum(map(bool, each)) > 0.7 * len(buckets) for each in counts)


def key_of(site: Site, bucket: int, name: str) -> str:
    return keys.bucket_key(site.namespace, bucket, name)


def follow_remedies(site: Site) -> set[int]:
    """Run the commands that stats show, until none is shown; the buckets that they were of."""
    done: set[int] = set()

    def is_mended() -> bool:
        found = [(b.bucket, one) for b in site.bridge.client.stats().buckets for one in b.damage]
        for bucket, one in found:
            done.add(bucket)
            command = shlex.split(one.remedy.partition("redis-cli ")[2])
            with suppress(redis.ResponseError):
                site.direct.execute_command(*command)
        return not found

    site.wait(site.lease_s)  # a worker whose lease is gone takes it again
    until(is_mended, "no damage is shown", interval_s=0.5)
    return done


def said_in(site: Site, lost: Lost, remedied: Collection[int]) -> None:
    """What was to be told."""
    marks = {bucket for bucket, names in lost.items() if "marks" in names}
    untold = sorted(b for b in marks - remedied if "lease" not in lost[b])
    site.expect("I1", f"marks were missed in {sorted(marks)}, not in {untold}", not untold)


def cell(id: str, fault: str, expects: str, lost: Lost, **more: object) -> Cell:
    buckets = 2 ** max(lost).bit_length()

    def excuses(message: str) -> frozenset[str]:
        return excused(lost.get(keys.bucket_of(message.encode(), buckets), ()))

    return Cell(
        id=id, component="Redis", fault=fault, expects=expects, run=lose(lost), excuses=excuses,
        setup=Setup(
            redis="own", buckets=buckets, change=f"look:{LOOK_S}",
            settings={"PUBLISH__DEDUP_WINDOW_S": "600"}, load={"rate": 250.0, "first_s": 1.0},
        ),
        duplicates=4 * WINDOW, back_off_ms=10_000, **more,
    )  # type: ignore[arg-type]  # fmt: skip


ROWS = "in each what the table of lost keys says; all other buckets go on"
CELLS = [
    cell(
        "F75", f"{len(SINGLES)} buckets lose one key each, each another one, under load",
        ROWS, SINGLES, is_test=True,
    ),
    cell(
        "F75b", f"{len(PAIRS)} buckets lose two keys each, each another pair, under load",
        ROWS, PAIRS, seconds=10.0,
    ),
    cell(
        "F75c", f"{len(HALVES)} buckets lose a random half of their keys, under load",
        ROWS, HALVES,
    ),
]  # fmt: skip
