"""A namespace: its record, its buckets, and the error to raise when one of them is damaged."""

from __future__ import annotations

import secrets
import weakref
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from delaybridge.errors import (
    ConfigError,
    StoreDamaged,
    StoreError,
    StoreFull,
    StoreMisnamed,
    StoreUnavailable,
    StoreWiped,
)
from delaybridge.message import Limits
from delaybridge.settings.durability import MEMORY, Durability, Keeping
from delaybridge.settings.namespace import check_buckets, check_namespace
from delaybridge.settings.urls import DEFAULT_KINDS, kinds_of
from delaybridge.store.namespace import damage, gate, registry
from delaybridge.store.namespace.following import BucketsFollowed
from delaybridge.store.namespace.placement import ONE_SERVER, Placement, at
from delaybridge.store.namespace.quota import Quota
from delaybridge.store.protocol import keys
from delaybridge.store.protocol.bucket import Bucket
from delaybridge.store.protocol.ids import Ids
from delaybridge.store.protocol.layout import Epoch, Layout
from delaybridge.store.protocol.recorder import IN_DOUBT, of_ledger
from delaybridge.store.protocol.verbs import Each, RedisCommand, Steps, store_wide_error

if TYPE_CHECKING:
    from delaybridge.store.redis.store import AsyncStore, Store

DEFAULT_BUCKETS = 16
EVICTION = "noeviction"
_SHARDED = 7  # the first version of Redis with sharded channels


class Namespace:
    """The buckets of a namespace, and the checks that every call shares.

    placement: the servers of the store that runs the calls.
    """

    placement: Placement = ONE_SERVER

    def __init__(
        self,
        namespace: str,
        brokers: Mapping[str, str] | None,
        buckets: int | None,
        limits: Limits,
        durability: Durability = MEMORY,
    ) -> None:
        self.namespace = check_namespace(namespace)
        self.limits, self.durability = limits, durability
        self.kinds = kinds_of(brokers) if brokers else DEFAULT_KINDS
        self._asked = None if buckets is None else check_buckets(buckets)
        self.quota = Quota(limits, self.kinds)
        self.following = BucketsFollowed(self.namespace)
        here = weakref.proxy(self)  # no cycle: an abandoned client closes its connections
        self.ids = Ids(lambda: len(here._buckets) or 1, lambda bucket: here._is_away(bucket))

    @property
    def birth(self) -> str:
        """The namespace's birth id, once it is open."""
        return self.following.birth

    @property
    def _buckets(self) -> list[Bucket]:
        return self.following.here

    def use(self, store: Store | AsyncStore) -> None:
        """Run the calls on this store, which finds what has gone to other buckets."""
        self.placement, store.follower = store, self.following
        if store.recorder is not None:
            store.recorder.follow(self.following)

    def brokers_changed(self, brokers: Mapping[str, str]) -> None:
        """These brokers are configured from now on."""
        self.kinds = kinds_of(brokers)

    def _is_away(self, bucket: int) -> bool:
        """Whether a bucket's server does not answer, or did not lately."""
        return bool(self._buckets) and self.placement.misses(self._buckets[bucket].key("due"))

    def servers(self) -> Steps[int]:
        """How many servers there are, as far as is known."""
        yield from ()
        return len(self.placement.nodes())

    @property
    def buckets(self) -> list[Bucket]:
        """The buckets that calls ask, once `open` has run: by `bucket_of`, of a key or an id."""
        return self.following.here

    def every_bucket(self) -> Steps[list[Bucket]]:
        """All buckets that may have messages, by the namespace's record as it is now."""
        yield from self.open()
        return (yield from self.following.every_bucket())

    def bucket(self, number: int) -> Bucket:
        """A bucket by its number."""
        return self.following.bucket(number)

    def now_ms(self) -> Steps[int]:
        """Redis' clock, in epoch milliseconds."""
        now_us: int = (yield [self.clock()])[0]
        return now_us // 1000

    def clock(self) -> RedisCommand[int]:
        """Redis' clock in microseconds; on a Cluster that of the namespace's own keys."""
        return registry.store_time(keys.birth(self.namespace))

    def open(self, *, again: bool = False) -> Steps[list[Bucket]]:
        """The buckets. The first call checks Redis and reads the namespace's record, or writes it.

        again: read the record even if it is known. Raises ConfigError if the settings have another
        bucket count, or if Redis evicts keys or is set up for less than `durability`; StoreDamaged
        if the record cannot be read.
        """
        if self._buckets and not again:
            return self._buckets
        memory_asked = registry.info("memory", keys.birth(self.namespace))
        learnt = self.following.learnt
        record, memory = yield Each([registry.read_layout(self.namespace), memory_asked])
        if (error := store_wide_error([record, memory])) is not None:
            raise self._without_record(error)
        if isinstance(memory, StoreError):
            raise memory
        if isinstance(record, StoreError):
            yield from refuse_sentinel()
            found = damage.of_birth(self.namespace)
            raise StoreDamaged(f"redis: {found}; write it again: {found.remedy}") from record
        refuse_eviction(memory)
        if record is None:  # otherwise nothing is written: a full Redis would refuse it
            record = yield from self._create()
        if record is None:
            raise self.wiped()
        layout, birth = record
        if self._asked is not None and self._asked not in layout.counts:
            raise ConfigError(
                f"buckets: the settings say {self._asked}, namespace {self.namespace!r} has "
                f"{layout.here.size}: set buckets = {layout.here.size}, or give it more or fewer: "
                f"delaybridge bucket resize {self._asked}"
            )
        yield from gate.require(self.durability, self.placement)
        if self.following.learnt not in (learnt, (layout, birth)):  # by another, perhaps later
            return (yield from self.open(again=True))
        self.following.learn(layout, birth)
        return self._buckets

    def wiped(self) -> StoreError:
        """The error of a call that lacks the namespace, although it was just made again."""
        error = StoreWiped()
        return of_ledger(error) if self.durability.mode is Keeping.LEDGER else error

    def as_known(self) -> list[RedisCommand[Any]]:
        """Write the record as `open` has read it, if there is none now."""
        if (layout := self.following.layout) is None:
            return []
        return registry.born(self.namespace, layout.collapsed(), self.birth)

    def _without_record(self, error: StoreError) -> StoreError:
        """The error, on a Cluster with the server that has the namespace's record."""
        node = self.placement.node_of(keys.birth(self.namespace))
        if not node or not isinstance(error, StoreUnavailable):
            return error
        found = StoreUnavailable(f"{error}; {node} has the record of namespace {self.namespace}")
        found.__cause__ = error.__cause__
        return found

    def _create(self) -> Steps[tuple[Layout, str] | None]:
        """Write the namespace's record, once every server is known to be fit for its buckets."""
        count = self._asked or DEFAULT_BUCKETS
        server, lacking = yield [registry.info("server"), registry.probe_home(self.namespace)]
        if lacking.startswith("ENGINE "):
            remedy = "choose another that runs Redis' scripts; delaybridge doctor --engine tries it"
            raise ConfigError(f"redis: this server {lacking.removeprefix('ENGINE ')}: {remedy}")
        birth = _new_birth(count, server)
        if server.get("redis_mode") == "cluster":
            buckets = [Bucket(self.namespace, number, birth) for number in range(count)]
            found = yield Each(bucket.holder() for bucket in buckets)
            yield from refuse_eviction_anywhere(self.placement)
            if misnamed := next((each for each in found if isinstance(each, StoreMisnamed)), None):
                raise misnamed
        _, record = yield registry.born(self.namespace, Layout((Epoch(0, count),)), birth)
        return record  # type: ignore[no-any-return]

    def explained(self, bucket: Bucket, error: StoreError) -> Steps[StoreError]:
        """The error itself, or StoreDamaged with the key's name if a damaged key is the cause."""
        if isinstance(error, StoreFull) or store_wide_error([error]):
            return error
        found = damage.found(bucket, (yield Each(damage.commands(bucket))))
        if not found:
            return error
        doubt = f"; {IN_DOUBT}" if str(error).endswith(IN_DOUBT) else ""
        return StoreDamaged(f"redis: {found[0]}; see: delaybridge doctor{doubt}")

    def check(self, asked: Sequence[Bucket], replies: Sequence[Any]) -> Steps[None]:
        """Raise the first error among the replies, explained."""
        for bucket, reply in zip(asked, replies, strict=True):
            if isinstance(reply, StoreError):
                raise (yield from self.explained(bucket, reply))


def refuse_eviction(memory: Mapping[str, str], node: str = "") -> None:
    """Raise ConfigError if a server would drop messages when it is full. memory: INFO memory."""
    if (policy := memory.get("maxmemory_policy", EVICTION)) != EVICTION:
        where = f" on {node}" if node else ""
        raise ConfigError(
            f"redis: maxmemory-policy is {policy}{where}: Redis would drop messages when full; "
            f"set: maxmemory-policy {EVICTION}"
        )


def refuse_eviction_anywhere(placement: Placement) -> Steps[None]:
    """The same for every master that answers."""
    nodes = placement.nodes()
    found = yield Each(registry.info("memory", at(node)) for node in nodes)
    for node, memory in zip(nodes, found, strict=True):
        if not isinstance(memory, StoreError):
            refuse_eviction(memory, node)


def refuse_sentinel() -> Steps[None]:
    """Raise StoreMisnamed if the server is a Sentinel."""
    (server,) = yield Each([registry.info("server")])
    if not isinstance(server, StoreError) and server.get("redis_mode") == "sentinel":
        remedy = "give its URL as redis+sentinel://HOST:26379/SERVICE"
        raise StoreMisnamed(f"redis: this server is a Sentinel; {remedy}")


def _new_birth(buckets: int, server: Mapping[str, str]) -> str:
    """A birth id. server: INFO of the server that will have the namespace's record."""
    birth = secrets.token_hex(8)
    if server.get("redis_mode") != "cluster":
        return birth
    sharded = int(server.get("redis_version", "0").partition(".")[0]) >= _SHARDED
    return keys.spread(birth, buckets, sharded=sharded)
