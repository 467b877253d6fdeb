"""Ways through the model that random ones seldom take."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from tests.protocol.bounds import Bounds, Faults, X, cancel, schedule
from tests.protocol.owner_verbs import Reach
from tests.protocol.walk import story
from tests.protocol.world import Event

BEGINS = "takes the lease", "reclaims"
FIRES = "claims", "reads the claim", "fires up to 0", "reads the fire"
DELIVERS = *FIRES, "confirmed", "settles x"
REACH = Reach(0, 2)
_BOUNDS = Bounds(
    "stories", (schedule(X, 0), schedule(X, 0, "replace"), cancel(X)), 9, reach=REACH,
    faults=Faults(pause=2), windows=(1, 3),
)  # fmt: skip
_LEDGER = Bounds(
    "stories with a ledger", _BOUNDS.orders, 9, buries=True, reach=REACH, ledger=True,
    faults=Faults(refused=2, rollback=2, erase=1),
)  # fmt: skip
_PULLED = replace(_LEDGER, name="stories of a pull topic", pulls=True)


def a_dead_message_is_dropped() -> list[Event]:
    """It was cancelled, and Redis came back with an older past."""
    return story(
        _LEDGER, "schedule x", *BEGINS, "begins to compare", *FIRES, "refused", "buries x",
        "the replica lags", "cancel x", "seals, and tells it", "the replica takes over",
        "another node", *BEGINS, "begins to compare", "drops what has ended",
    )  # fmt: skip


def a_failed_message_is_dropped() -> list[Event]:
    return story(
        _LEDGER, "schedule x", *BEGINS, "begins to compare", *FIRES, "refused", "retries x",
        "the replica lags", "cancel x", "seals, and tells it", "the replica takes over",
        "another node", *BEGINS, "begins to compare", "drops what has ended",
    )  # fmt: skip


def a_dead_message_is_restored() -> list[Event]:
    return story(
        _LEDGER, "schedule x", *BEGINS, "begins to compare", *FIRES, "refused", "buries x",
        "is deleted by hand", "reads the ledger", "somebody restores",
    )  # fmt: skip


def a_shorter_window_follows_a_longer_one() -> list[Event]:
    return story(
        _BOUNDS, "schedule x", "window 3", "reclaims", *DELIVERS, "replace x",
        "its lease runs out", "learns that its lease is lost", "window 1", "reclaims", *DELIVERS,
    )  # fmt: skip


def what_a_consumer_has_is_taken_over() -> list[Event]:
    """`gone` says that it was delivered."""
    return story(
        _PULLED, "schedule x", *BEGINS, "begins to compare", *FIRES, "offers x",
        "a consumer receives", "schedule x", "seals, and tells it", "somebody reads",
    )  # fmt: skip


def a_shorter_window_follows_a_longer_one_of_consumers() -> list[Event]:
    taken = *FIRES, "offers x", "a consumer receives", "a consumer finishes"
    return story(
        replace(_BOUNDS, pulls=True), "schedule x", "window 3", "reclaims", *taken, "replace x",
        "its lease runs out", "learns that its lease is lost", "window 1", "reclaims", *taken,
    )  # fmt: skip


STORIES: tuple[Callable[[], list[Event]], ...] = (
    a_dead_message_is_dropped, a_failed_message_is_dropped, a_dead_message_is_restored,
    a_shorter_window_follows_a_longer_one, what_a_consumer_has_is_taken_over,
    a_shorter_window_follows_a_longer_one_of_consumers,
)  # fmt: skip
