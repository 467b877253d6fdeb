"""Messages on their way to the store: their ids, their stamps, and the script calls they go in."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import repeat
from typing import Any, NamedTuple, cast

import msgspec

from delaybridge.accept.accept import PLAIN_BYTES, Accepted, Draft
from delaybridge.store.protocol.ids import MOST_CLASSES, Ids
from delaybridge.store.protocol.keys import bucket_of
from delaybridge.store.protocol.verbs import new_stamp

Stamped = tuple[bytes, Accepted]

# Of one script call: Redis serves no other client while it runs.
_CALL_MESSAGES = 1000
_CALL_BYTES = 4 * 2**20
# New messages, whose ids are drawn for one bucket: Redis works on a call while the next is made.
_NEW_MESSAGES = _CALL_BYTES // PLAIN_BYTES
_FIRST_NEW = 40  # in the first call, for which Redis waits
_FEW_NEW = 20  # fewer are not worth a bucket of their own


class ScriptCall(NamedTuple):
    """A call of `schedule`: its bucket, the places of its messages, ids for those that have none.

    The ids are drawn when the messages are stamped.
    """

    bucket: int
    places: Sequence[int]
    ids: Iterable[str] = repeat("")


class Outgoing:
    """The messages of a client's call, in order. Each is encoded and stamped once, to be sent.

    late: the places of those whose id was in flight when they were sent last.
    """

    def __init__(self, messages: Sequence[Draft | Accepted | Stamped], ids: Ids) -> None:
        self._messages, self._ids = list(messages), ids
        self.late: list[int] = []

    def __len__(self) -> int:
        return len(self._messages)

    def __getitem__(self, place: int) -> Draft | Accepted | Stamped:
        return self._messages[place]

    def stamped(self, call: ScriptCall) -> list[Stamped]:
        """The messages of a script call, ready to be sent; the same each time."""
        messages, ids = self._messages, self._ids
        ready = [
            stamped(messages[i], ids, id) for i, id in zip(call.places, call.ids, strict=False)
        ]
        for i, one in zip(call.places, ready, strict=True):
            messages[i] = one
        return ready

    def calls(self, places: Sequence[int], buckets: int) -> Iterator[ScriptCall]:
        """The script calls for the messages at these places, of bounded size.

        Most drafts without an id go in calls of their own, with ids drawn for one bucket. All other
        messages of a bucket go in order.
        """
        messages = self._messages
        new = [i for i in places if isinstance(one := messages[i], Draft) and one.id is None]
        if buckets > MOST_CLASSES or len(new) < _FEW_NEW:
            for i in new:
                messages[i] = msgspec.structs.replace(cast(Draft, messages[i]), id=self._ids.draw())
            new = []
        begin, size = 0, _FIRST_NEW if len(new) > _NEW_MESSAGES else _NEW_MESSAGES
        while begin < len(new):
            number, ids = self._ids.for_bucket(buckets)
            yield ScriptCall(number, new[begin : begin + size], ids)
            begin, size = begin + size, _NEW_MESSAGES
        if len(new) == len(places):
            return
        by_bucket: dict[Any, list[int]] = {}
        for i in sorted({*places}.difference(new)) if new else places:
            by_bucket.setdefault(bucket_for(messages[i], buckets), []).append(i)
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


def stamped(message: Draft | Accepted | Stamped, ids: Ids, id: str = "") -> Stamped:
    """The message ready to be sent. id: for a draft that has none; by default one is drawn."""
    if isinstance(message, Draft):
        return new_stamp(), message.accepted(message.id or id or ids.draw())
    return message if isinstance(message, tuple) else (new_stamp(), message)


def bucket_for(message: Draft | Accepted | Stamped, buckets: int) -> int | None:
    """The bucket of a message; None if it has no id yet."""
    if isinstance(message, Draft):
        return None if message.id is None else bucket_of(message.id.encode(), buckets)
    return bucket_of(_accepted(message).shard_key, buckets)


def _size(message: Draft | Accepted | Stamped) -> int:
    return len(message.body if isinstance(message, Draft) else _accepted(message).payload)


def _accepted(message: Accepted | Stamped) -> Accepted:
    return message[1] if isinstance(message, tuple) else message
