"""What a load needs, computed from the figures of `figures.toml`: about, at least and at most."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from importlib.resources import files
from math import ceil, exp, log2
from typing import TYPE_CHECKING, Any, NamedTuple

from delaybridge.message import Record, encode_record
from delaybridge.store.protocol.record import HEAD_SIZE

if TYPE_CHECKING:
    from delaybridge.settings.settings import Settings

HEADER_BYTES = 34  # of a header in a record: a name of 12 bytes with a text of 16
BUSY, FULL = 0.6, 0.8  # of a core, and of maxmemory, as planned; at 0.8 `doctor` warns
MASTER_BYTES = 25 * 10**9  # used by a master, at most: beyond, a save takes minutes
SHARES, LEAST_BUCKETS, MOST_BUCKETS = 8, 16, 1024  # buckets for each worker process and master
_LEAST_MASTERS = 3  # of a Cluster
_OBJECT_BYTES = 1024  # of Python's objects for a message that a worker holds
_EMPTY_BYTES = len(encode_record(Record("rabbitmq:orders/created", b"", b""))) + HEAD_SIZE
_ID_BYTES = 32  # of an id that is drawn, as allocated
_OTHERS = ("client", "rabbitmq", "kafka")
_PAGE, _DAY_S = 4096, 86_400
Costs = Mapping[str, float]


class Demand(NamedTuple):
    """What is asked for. rate: messages that are scheduled, and delivered, a second.

    burst: messages due at one instant. retention_s: of rows in the database; 0: for ever.
    """

    pending: float
    rate: float
    body: int
    headers: int = 0
    id_bytes: int = 26
    burst: int = 0
    is_cluster: bool = False
    has_ledger: bool = False
    retention_s: float = 604_800


SIDES = ("about", "low", "high")
_TEXT = files("delaybridge.operate.sizing").joinpath("figures.toml").read_text()
TABLES: dict[str, dict[str, Any]] = tomllib.loads(_TEXT)
"""`figures`: measured costs. `needs`: what may be needed -> what it is, in the order of a list."""


def needs(load: Demand, settings: Settings) -> dict[str, dict[str, float]]:
    """What the load needs under these settings: name -> about how much, and between what.

    What is said of each master and process is that of the layout which is needed about.
    """
    found: list[Costs] = []
    for side in SIDES:
        cost = {name: each[side] for name, each in TABLES["figures"].items()}
        over = found[0] if found else {}
        redis, workers = _redis(load, settings, cost, over), _workers(load, settings, cost, over)
        shares = SHARES * max(redis["redis_masters"], workers["worker_processes"])
        buckets = min(max(1 << ceil(log2(shares)), LEAST_BUCKETS), MOST_BUCKETS)
        found.append({**redis, "buckets": buckets, **workers, **_others(load, cost)})
    names = [name for name in TABLES["needs"] if name in found[0]]
    return {name: dict(zip(SIDES, [each[name] for each in found], strict=True)) for name in names}


def record_bytes(load: Demand) -> int:
    """Bytes of a stored message: its head, and its record."""
    return _EMPTY_BYTES + load.body + load.headers * HEADER_BYTES


def message_bytes(load: Demand, cost: Costs) -> float:
    """Bytes of Redis for a pending message, with its share of the hash tables, which double."""
    each = max(load.pending / LEAST_BUCKETS, 4)
    tables = 16 * (1 << ceil(log2(each))) / each
    ids = 2 * max(_allocated(load.id_bytes + 4, cost) - _ID_BYTES, 0)
    return cost["redis_entry_bytes"] + tables + ids + _allocated(record_bytes(load) + 5, cost)


def _allocated(size: float, cost: Costs) -> float:
    """What an allocator with such size classes gives for this size."""
    step = max((1 << ceil(log2(size)) - 1) * cost["redis_rounding"], 16)
    return ceil(size / step) * step


def _redis(load: Demand, settings: Settings, cost: Costs, over: Costs) -> dict[str, float]:
    hot_s = settings.ledger.hot_window_s if load.has_ledger else 0
    stored = min(load.pending, load.rate * hot_s) if hot_s else load.pending
    each = message_bytes(load._replace(pending=stored), cost)
    used, cores = cost["redis_base_bytes"] + stored * each, load.rate * cost["redis_us"] / 1e6
    masters = max(ceil(cores / BUSY), ceil(used / FULL / MASTER_BYTES), 1)
    if masters > 1 or load.is_cluster:
        masters = max(masters, _LEAST_MASTERS)
    of = over.get("redis_masters", masters)
    # Messages meet pages at random, some twice; a save takes the longer the more pages there are.
    met = cost["fork_pages"] * _PAGE * load.rate / of * cost["save_s_per_gb"] / 1e9
    host = used / FULL * cost["redis_fragmentation"] + used * (1 - exp(-met))
    return {
        "redis_messages": stored,
        "redis_message_bytes": each,
        "redis_used_bytes": used,
        "redis_masters": masters,
        "redis_maxmemory_bytes": used / FULL / of,
        "redis_host_bytes": host / of,
        "redis_cores": cores / of,
    }


def _workers(load: Demand, settings: Settings, cost: Costs, over: Costs) -> dict[str, float]:
    scan, size = settings.scan, record_bytes(load)
    more_us = load.body / 1024 * cost["worker_kib_us"] + load.headers * cost["worker_header_us"]
    gap_s = (cost["worker_gap_us"] + more_us) / 1e6
    processes = max(ceil(load.rate * gap_s / BUSY), 2)
    of = over.get("worker_processes", processes)
    rate = load.rate / of
    backlog = cost["worker_backlog"] * scan.wheel_messages
    held = max(rate * scan.claim_ahead_ms / 1000, load.burst / of, backlog)
    held = min(held, scan.wheel_messages)
    wheel = min(held * size, scan.wheel_bytes)
    windows = wheel + 2 * min(wheel, settings.publish.window_bytes)
    busy = cost["worker_wakes_cores"] * min(rate / 250, 1)
    return {
        "worker_processes": processes,
        "worker_cores": busy + rate * (cost["worker_us"] + more_us) / 1e6,
        "worker_bytes": cost["worker_idle_bytes"] + windows + held * _OBJECT_BYTES,
        **({"burst_s": load.burst * gap_s / of} if load.burst else {}),
    }


def _others(load: Demand, cost: Costs) -> dict[str, float]:
    queues = ceil(load.rate * cost["rabbitmq_queue_us"] / 1e6 / BUSY)
    cores = {f"{kind}_cores": load.rate * cost[f"{kind}_us"] / 1e6 for kind in _OTHERS}
    row, day = cost["row_bytes"] + record_bytes(load), load.rate * _DAY_S
    gone = row + cost["transition_bytes"]
    kept = load.rate * load.retention_s if load.retention_s else day
    database = {
        "database_rows_a_day": 2 * day,
        "database_day_bytes": day * gone,
        "database_bytes": load.pending * row + kept * gone,
    }
    return {**cores, "rabbitmq_queues": queues, **(database if load.has_ledger else {})}
