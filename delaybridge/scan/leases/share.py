"""Share: which worker should hold which bucket."""

from __future__ import annotations

import hashlib
from collections.abc import Collection


def fair_share(workers: Collection[str], buckets: int) -> dict[int, str]:
    """Bucket -> worker: even to within one, and few move when a worker joins or leaves.

    Rendezvous (highest random weight, Thaler & Ravishankar 1998) with bounded load: pairs of
    worker and bucket by descending weight, each worker up to its share. All that see the same
    workers compute the same answer.
    """
    if not workers:
        return {}
    weights = sorted(((_weight(w, b), w, b) for w in workers for b in range(buckets)), reverse=True)
    floor, extra = divmod(buckets, len(workers))
    share: dict[int, str] = {}
    load = dict.fromkeys(workers, 0)
    for _, worker, bucket in weights:
        full = load[worker] > floor or (load[worker] == floor and extra == 0)
        if bucket not in share and not full:
            extra -= load[worker] == floor
            load[worker] += 1
            share[bucket] = worker
    return share


def _weight(worker: str, bucket: int) -> bytes:
    return hashlib.blake2b(f"{bucket}:{worker}".encode(), digest_size=8).digest()
