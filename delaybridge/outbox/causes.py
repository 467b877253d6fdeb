"""Why a row stays in the outbox while others go on."""

from __future__ import annotations

from collections.abc import Sequence

from delaybridge.errors import (
    LedgerUnavailable,
    NotDurable,
    StoreDamaged,
    StoreFull,
    StoreUnavailable,
)
from delaybridge.store.calls import Calls
from delaybridge.store.protocol.verbs import Steps
from delaybridge.store.redis import durability


def is_of_server(error: Exception) -> bool:
    """Whether it may concern one server of several."""
    return isinstance(error, StoreUnavailable) and not isinstance(error, LedgerUnavailable)


def cause_of(error: Exception) -> str:
    """What keeps rows of one destination, bucket or server, always in the same words; else empty.

    Whether there are several servers is not looked at.
    """
    if isinstance(error, StoreFull):
        return error.limit
    if is_of_server(error):
        how = "confirm what it stores" if isinstance(error, NotDurable) else "answer"
        return f"a server that does not {how}"
    return str(error) if isinstance(error, StoreDamaged) else ""


def unconfirmed(on: Calls) -> Steps[Sequence[Exception | None]]:
    """The error of each bucket whose server does not answer or confirms nothing. Stores nothing.

    If there is one server, its error is raised.
    """
    buckets = yield from on.open()
    errors = yield from durability.unconfirmed(buckets)
    if len(on.placement.nodes()) == 1 and (error := next(filter(None, errors), None)):
        raise error
    return [one if one is not None and is_of_server(one) else None for one in errors]
