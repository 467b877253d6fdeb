"""Workers and Buckets: who runs, what they say is wrong, and who holds what."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any, NamedTuple

from delaybridge.operate.notices.announcements import WorkerInfo
from delaybridge.resize import resizing
from delaybridge.serve.console.page import Pages
from delaybridge.serve.console.snapshot import snapshots_of
from delaybridge.serve.shared.call import Call

pages = Pages()


class Wrong(NamedTuple):
    """What a worker says is wrong. kind: a word for it; of: what it is about; why: in its words."""

    kind: str
    of: str
    why: str


def wrongs(worker: WorkerInfo) -> Iterator[Wrong]:
    """All that it says, the worst first."""
    for bucket, why in worker.damaged.items():
        yield Wrong("damaged bucket", bucket, why or "")
    for part, why in worker.failing.items():
        yield Wrong("cannot report", part, why or "")
    for broker, why in (worker.said.brokers or {}).items():
        if why:
            yield Wrong("broker unavailable", broker, why)
    for place, why in worker.said.parked.items():
        yield Wrong("waiting for its broker", place, why or "")
    for place, why in worker.said.refused.items():
        yield Wrong("refused", place, why or "")
    for place in worker.said.paused or ():
        yield Wrong("paused", place, "")
    if worker.ledger is not None and worker.ledger.silent:
        yield Wrong("ledger silent", "", worker.ledger.silent)
    if not worker.obeys_rules:
        yield Wrong("knows no rules of destinations", worker.version, "")


@pages("/workers", "Workers")
async def workers(call: Call) -> dict[str, Any]:
    """The living processes, and those that vanished."""
    stats = await snapshots_of(call.site).stats()
    held: Counter[str | None] = Counter()
    for bucket in stats.buckets:
        held[bucket.owner] += bucket.in_flight
    return {
        "api": "/v1/workers",
        "held": held,
        "workers": [(each, list(wrongs(each))) for each in stats.workers],
        "ingests": stats.ingests,
        "line": snapshots_of(call.site).sparks.line,
        "gone": stats.gone,
        "has_ledger": stats.ledger is not None,
    }


@pages("/connections", "Connections")
async def connections(call: Call) -> dict[str, Any]:
    """The fronts, and the clients that are connected to them."""
    stats = await snapshots_of(call.site).stats()
    return {"api": "/v1/workers", "fronts": stats.fronts}


@pages("/buckets", "Buckets")
async def buckets(call: Call) -> dict[str, Any]:
    """Every bucket, and how even they are."""
    stats = await snapshots_of(call.site).stats()
    sizes = [each.delayed + each.in_flight + each.parked for each in stats.buckets]
    mean = sum(sizes) / len(sizes)
    return {
        "api": "/v1/buckets",
        "buckets": list(zip(stats.buckets, sizes, strict=True)),
        "skew": f"{max(sizes) / mean:.2f}" if mean else "–",
        "largest": max(sizes),
        "mean": mean,
        "has_nodes": any(each.node for each in stats.buckets),
        "resize": await call.site.client.run(resizing.progress),
    }
