"""A namespace: its record, its buckets, and the error to raise when one of them is damaged."""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from typing import Any

from delaybridge.errors import ConfigError, StoreDamaged, StoreError, StoreFull, StoreWiped
from delaybridge.message import Limits
from delaybridge.settings.namespace import check_buckets, check_namespace
from delaybridge.settings.urls import DEFAULT_KINDS, kinds_of
from delaybridge.store import damage, registry
from delaybridge.store.command import Each, Steps, store_wide_error
from delaybridge.store.ids import Ids
from delaybridge.store.quota import Quota
from delaybridge.store.verbs import Bucket

DEFAULT_BUCKETS = 16
_EVICTION = "noeviction"


class Namespace:
    """The buckets of a namespace, and the checks that every call shares."""

    def __init__(
        self,
        namespace: str,
        brokers: Mapping[str, str] | None,
        buckets: int | None,
        limits: Limits,
    ) -> None:
        self.namespace = check_namespace(namespace)
        self.limits = limits
        self.kinds = kinds_of(brokers) if brokers else DEFAULT_KINDS
        self._asked = None if buckets is None else check_buckets(buckets)
        self.quota = Quota(limits, self.kinds)
        self._buckets: list[Bucket] = []
        self.ids = Ids(lambda: len(self._buckets) or 1)
        self.birth = ""

    @property
    def buckets(self) -> list[Bucket]:
        """Every bucket, once `open` has run."""
        return self._buckets

    def now_ms(self) -> Steps[int]:
        """Redis' clock."""
        now_us: int = (yield [registry.store_time()])[0]
        return now_us // 1000

    def open(self, *, again: bool = False) -> Steps[list[Bucket]]:
        """The buckets. The first call checks Redis and reads the namespace's record, or writes it.

        again: read the record even if it is known. Raises ConfigError if the settings have another
        bucket count or if Redis evicts keys, and StoreDamaged if the record cannot be read.
        """
        if self._buckets and not again:
            return self._buckets
        record, memory = yield Each([registry.read_birth(self.namespace), registry.info("memory")])
        if (error := store_wide_error([record, memory])) is not None:
            raise error
        if isinstance(memory, StoreError):
            raise memory
        if isinstance(record, StoreError):
            found = damage.of_birth(self.namespace)
            raise StoreDamaged(f"redis: {found}; write it again: {found.remedy}") from record
        if memory.get("maxmemory_policy", _EVICTION) != _EVICTION:
            raise ConfigError(
                f"redis: maxmemory-policy is {memory['maxmemory_policy']}: Redis would drop "
                f"messages when full; set: maxmemory-policy {_EVICTION}"
            )
        if record is None:  # otherwise nothing is written: a full Redis would refuse it
            count = self._asked or DEFAULT_BUCKETS
            _, record = yield registry.birth(self.namespace, count, secrets.token_hex(8))
        if record is None:
            raise StoreWiped
        found, self.birth = record
        if self._asked not in (None, found):
            raise ConfigError(
                f"buckets: the settings say {self._asked}, namespace {self.namespace!r} was "
                f"created with {found}; this cannot be changed: set buckets = {found}"
            )
        self._buckets = [Bucket(self.namespace, number, self.birth) for number in range(found)]
        return self._buckets

    def explained(self, bucket: Bucket, error: StoreError) -> Steps[StoreError]:
        """The error itself, or StoreDamaged with the key's name if a damaged key is the cause."""
        if isinstance(error, StoreFull) or store_wide_error([error]):
            return error
        found = damage.found(bucket, (yield Each(damage.look(bucket))))
        if not found:
            return error
        return StoreDamaged(f"redis: {found[0]}; see: delaybridge doctor")

    def check(self, asked: Sequence[Bucket], replies: Sequence[Any]) -> Steps[None]:
        """Raise the first error among the replies, explained."""
        for bucket, reply in zip(asked, replies, strict=True):
            if isinstance(reply, StoreError):
                raise (yield from self.explained(bucket, reply))
