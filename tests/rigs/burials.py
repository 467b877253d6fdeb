"""Messages in flight and dead ones without a worker: claimed, fired, buried by the test itself."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

from delaybridge import Client
from delaybridge.store.redis.store import Store
from tests.rigs.bucket import TTL_MS, Copy, Owner, World


@contextmanager
def buried(
    store: Store,
    redis_url: str,
    namespace: str,
    brokers: Mapping[str, str],
    messages: Sequence[tuple[str, str, str]],
) -> Iterator[None]:
    """Messages as (id, destination, reason), buried after one failure, all in one bucket."""
    with Client(redis_url, namespace=namespace, brokers=dict(brokers)) as client:
        for id, destination, _ in messages:
            client.schedule(destination, b"x", id=id, key="x", delay=0, headers={"h": id})
        with World.of_key(store, redis_url, namespace, b"x") as world:
            owner = world.owner()
            why = {id: reason for id, _, reason in messages}
            items = [(copy.item, True, False, why[copy.id]) for copy in owner.claim()]
            assert world.run(owner.bucket.bury(owner.token, 60_000, items)) is not None
            yield


def hand_over(owner: Owner, id: str) -> Copy:
    """Claim the message, however far off its time is, and fire it."""
    copy = next(each for each in owner.claim(ahead_ms=10**12) if each.id == id)
    owner.fire(copy.score)
    return copy


def bury(owner: Owner, id: str, reason: str) -> None:
    """Give up a message after one failure; the bucket has no owner then."""
    item = hand_over(owner, id).item
    buried = owner.bucket.bury(owner.token, TTL_MS, [(item, True, False, reason)])
    assert owner.world.run(buried) is not None
    owner.world.end_lease()
