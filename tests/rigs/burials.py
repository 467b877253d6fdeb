"""Dead messages without a worker: claimed and buried by the test itself."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

from delaybridge import Client
from delaybridge.store.store import Store
from tests.rigs.bucket import World


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
