"""Where the demo stores its messages: a private Redis, or a namespace of its own in a given one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from secrets import token_hex
from typing import NamedTuple

from delaybridge.operate.demo.servers import private_redis
from delaybridge.settings.urls import redact
from delaybridge.store.namespace import registry
from delaybridge.store.protocol import keys
from delaybridge.store.protocol.command import plain
from delaybridge.store.redis.store import Store

_OF_NAMESPACE: tuple[Callable[[str], str], ...] = (
    keys.birth, keys.workers, keys.worker_info, keys.destinations, keys.allowances, keys.alarms,
    keys.recurring, keys.recurring_due, keys.recurring_state, keys.series, keys.waits,
    keys.controls, keys.unrecorded,
)  # fmt: skip


class DemoStore(NamedTuple):
    """A store for one demo. about: for people."""

    url: str
    namespace: str
    about: str


@contextmanager
def place_at(url: str | None) -> Iterator[DemoStore]:
    """The store at this URL, or a private one; what the demo stored there is removed at the end.

    ConfigError or StoreError if there is none.
    """
    if url is None:
        with private_redis() as (private, about):
            yield DemoStore(private, "demo", f"{about}  {private}  nothing on disk")
        return
    namespace = f"demo-{token_hex(4)}"
    with closing(Store(url)) as store:
        store.run([registry.read_birth(namespace)])  # says at once what is wrong with the URL
        about = f"{redact(url)}\n          namespace {namespace}, deleted at the end"
        try:
            yield DemoStore(url, namespace, about)
        finally:
            _delete(store, namespace)


def _delete(store: Store, namespace: str) -> None:
    (born,) = store.run([registry.read_birth(namespace)])
    buckets, birth = born or (0, "")
    names = [of(namespace) for of in _OF_NAMESPACE]
    for number in range(buckets):
        of_bucket = (*keys.BUCKET_KEYS, "waits")
        names += [keys.bucket_key(namespace, number, name, birth) for name in of_bucket]
    store.run([plain("DEL", name) for name in names])
