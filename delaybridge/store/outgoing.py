"""Messages on their way to the store: their ids, their stamps, and the script calls they go in."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import repeat
from math import ceil
from typing import NamedTuple

import msgspec

from delaybridge.accept.accept import Accepted
from delaybridge.accept.draft import PLAIN_BYTES, Draft
from delaybridge.store.ids import MOST_CLASSES, RUN_IDS, Ids
from delaybridge.store.keys import bucket_of
from delaybridge.store.verbs import new_stamp

Stamped = tuple[bytes, Accepted]

# Of one script call: Redis serves no other client while it runs.
_CALL_MESSAGES = 1000
_CALL_BYTES = 4 * 2**20
# Of one whose ids are drawn for it: Redis works on one while the next is made.
_NEW_MESSAGES = _CALL_BYTES // PLAIN_BYTES


class ScriptCall(NamedTuple):
    """A call of `schedule`: its bucket, the places of its messages, ids for those that have none.

    The ids are drawn when the messages are stamped.
    """

    bucket: int
    places: Sequence[int]
    ids: Iterable[str] = repeat("")


class Outgoing:
    """The messages of a client's call, in order. Each is encoded and stamped once, to be sent."""

    def __init__(self, messages: Sequence[Draft | Accepted | Stamped], ids: Ids) -> None:
        self._messages, self._ids = list(messages), ids

    def __len__(self) -> int:
        return len(self._messages)

    def stamped(self, call: ScriptCall) -> list[Stamped]:
        """The messages of a script call, ready to be sent; the same each time."""
        messages, ready = self._messages, list[Stamped]()
        for i, id in zip(call.places, call.ids, strict=False):
            one = messages[i]
            if not isinstance(one, tuple):
                if isinstance(one, Draft):
                    one = one.accepted(one.id or id or self._ids.draw())
                one = messages[i] = new_stamp(), one
            ready.append(one)
        return ready

    def calls(self, places: Sequence[int], buckets: int) -> Iterator[ScriptCall]:
        """The script calls for the messages at these places, of bounded size.

        Most drafts without an id go in calls of their own, with ids drawn for one bucket. All other
        messages of a bucket go in order.
        """
        messages = self._messages
        new = [i for i in places if isinstance(one := messages[i], Draft) and one.id is None]
        if buckets > MOST_CLASSES or len(new) < RUN_IDS:
            new = []
        most = ceil(len(new) / ceil(len(new) / _NEW_MESSAGES)) if new else 1
        for first in range(0, len(new), most):
            number, ids = self._ids.for_bucket(buckets)
            yield ScriptCall(number, new[first : first + most], ids)
        by_bucket: dict[int, list[int]] = {}
        for i in sorted({*places}.difference(new)) if new else places:
            one = messages[i]
            if isinstance(one, Draft) and one.id is None:
                messages[i] = one = msgspec.structs.replace(one, id=self._ids.draw())
            by_bucket.setdefault(bucket_of(_shard_key(one), buckets), []).append(i)
        for number, some in by_bucket.items():
            yield from self._bounded(number, some)

    def _bounded(self, number: int, places: Sequence[int]) -> Iterator[ScriptCall]:
        start = total = 0
        for end, i in enumerate(places):
            size = _size(self._messages[i])
            total += size
            if end > start and (end - start == _CALL_MESSAGES or total > _CALL_BYTES):
                yield ScriptCall(number, places[start:end])
                start, total = end, size
        yield ScriptCall(number, places[start:])


def _shard_key(message: Draft | Accepted | Stamped) -> bytes:
    if isinstance(message, Draft):
        return (message.id or "").encode()
    return _accepted(message).shard_key


def _size(message: Draft | Accepted | Stamped) -> int:
    return len(message.body if isinstance(message, Draft) else _accepted(message).payload)


def _accepted(message: Accepted | Stamped) -> Accepted:
    return message[1] if isinstance(message, tuple) else message
