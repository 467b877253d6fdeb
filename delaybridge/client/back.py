"""What a client says about now and the time before."""

from __future__ import annotations

from typing import Literal

from delaybridge.client.requests import Requests
from delaybridge.errors import MessageError, shown
from delaybridge.store.command import Steps
from delaybridge.store.store import AsyncStore, Store
from delaybridge.store.tally import DestinationCounts


class LooksBack:
    """What there is and what there was, for `Client`."""

    _requests: Requests
    _store: Store

    def counts(self, by: Literal["destination"] = "destination") -> list[DestinationCounts]:
        """How many messages each destination has in each state, the one with the most first.

        Up to 4000 messages of each state are read, some milliseconds of Redis' time. If there are
        more, they are drawn at random: each number is an estimate and says by how much it may be
        wrong, and a destination with very few messages may be missing.

        Raises:
            MessageError: `by` is anything else than "destination".
            StoreDamaged: a key is damaged.
        """
        return self._store.complete(_counts(self._requests, by))


class AsyncLooksBack:
    """The same for `AsyncClient`."""

    _requests: Requests
    _store: AsyncStore

    async def counts(self, by: Literal["destination"] = "destination") -> list[DestinationCounts]:
        """How many messages each destination has in each state; as `Client.counts`."""
        return await self._store.complete(_counts(self._requests, by))


def _counts(requests: Requests, by: str) -> Steps[list[DestinationCounts]]:
    if by != "destination":
        raise MessageError("bad_count", "by", f"got {shown(by)}; write destination")
    return requests.calls.counts_by_destination()
