"""Entries: ingest asks the store to schedule, change or quarantine one message."""

from __future__ import annotations

from time import time_ns
from typing import Self

import msgspec

from delaybridge.accept.accept import Accepted, check_delay
from delaybridge.errors import MessageError
from delaybridge.ingest.instructions import Instructions
from delaybridge.message import Answer, ConflictPolicy, Limits, id_in_store, new_id, tenant_text
from delaybridge.store.protocol.ids import quarantine_ids

INGRESS = "ingress:"


class Schedule(msgspec.Struct, frozen=True, gc=False):
    """Accept this message. stamp: the same whenever the same message is read again.

    payload: kept if the message has to be quarantined. source, offset: where it was read (Kafka).
    reach: as `Bucket.schedule` takes it. maybe: a copy may have been delivered already. is_loose:
    its program knows nothing of delaybridge, so that another message may have the same id.
    """

    accepted: Accepted
    stamp: bytes
    policy: ConflictPolicy
    payload: bytes
    source: str = ""
    offset: int = -1
    reach: str = ""
    maybe: bool = False
    is_loose: bool = False


class Change(msgspec.Struct, frozen=True, gc=False):
    """Cancel the pending message of an id or, if `when` is given, reschedule it.

    shard_key: chooses its bucket; None: look in all buckets. otherwise: schedule this instead if
    there is no message to cancel.
    """

    id: str
    shard_key: bytes | None
    stamp: bytes
    source: str = ""
    offset: int = -1
    otherwise: Schedule | None = None
    when: str = ""
    reach: str = ""


class Quarantine(msgspec.Struct, frozen=True, gc=False):
    """Keep this in the dead set under `id`, which is derived from the message's own_id."""

    id: str
    stamp: bytes
    payload: bytes
    reason: str
    own_id: str = ""

    @classmethod
    def with_own_id(cls, own_id: str | None, stamp: bytes, payload: bytes, reason: str) -> Self:
        """Keep a message whose own id is this; None if it has none."""
        if own_id is None:
            return cls(_new_id(payload), stamp, payload, reason)
        return cls(quarantine_ids(own_id)[0], stamp, payload, reason, own_id)

    def elsewhere(self) -> Self:
        """The same under the next id, because this one is taken."""
        random = _new_id(self.payload)
        names = [*quarantine_ids(self.own_id), random] if self.own_id else [random]
        place = names.index(self.id) + 1 if self.id in names else 0
        return msgspec.structs.replace(self, id=names[place])


def _new_id(payload: bytes) -> str:
    """A random id, of the tenant whose record it is."""
    return id_in_store(new_id(), tenant_text(payload))


Entry = Schedule | Change | Quarantine

_BLOCKED_BY = {
    Answer.CONFLICT: "is pending, and differs",
    Answer.IN_FLIGHT: "is with the broker",
    Answer.FOREIGN: "is pending for a destination this source may not send to (ingest.trust)",
}


def instead(entry: Entry, answer: Answer | None) -> Quarantine | None:
    """The quarantine for an entry that another message blocks; None if none does."""
    if isinstance(entry, Quarantine):
        return entry.elsewhere() if answer is Answer.CONFLICT else None
    if not isinstance(entry, Schedule) or answer not in _BLOCKED_BY:
        return None
    id = entry.accepted.id
    reason = f"{INGRESS}{answer} delaybridge-id: {id!r} {_BLOCKED_BY[answer]}"
    return Quarantine.with_own_id(id, entry.stamp, entry.payload, reason)


def reason_of(error: MessageError) -> str:
    """Why a message was quarantined, as users see it: `ingress:CODE FIELD: DETAIL`."""
    return f"{INGRESS}{error.code} {error.field}: {error.detail}"


def when_of(asked: Instructions, limits: Limits) -> str:
    """The due time as the scripts take it, by default now; DelayOutOfRange if it is too far."""
    if asked.gathering is not None:
        return asked.gathering.word(limits.delay_ms)
    if asked.due_ms is not None:
        check_delay(asked.due_ms - time_ns() // 1_000_000, limits, "due time")
        return str(asked.due_ms)
    check_delay(asked.delay_ms or 0, limits, "delay")
    return f"+{asked.delay_ms or 0}"
