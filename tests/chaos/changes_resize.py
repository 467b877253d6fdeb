"""Mistakes in a live resize; see `changes.py`."""

from __future__ import annotations

import time
from typing import Any

from tests.chaos.mutation import Mutation, in_script


def forget_what_landed() -> None:
    """A page that is sent again lands again."""
    in_script("land", "elseif marks[3] == ARGV[3] then", "elseif false then")()
    in_script("land", "elseif redis.call('ZSCORE', KEYS[8], 'land' .. ARGV[3])", "elseif false")()


def ignore_the_gate() -> None:
    """Buckets that give their messages away are slow meanwhile, and their pages."""
    in_script("claim", "'claimed', 'gate'", "'claimed', 'no_gate'")()
    slow = "local bound = math.min((string.find(KEYS[2], ':moving:') and -9000 or 0) + "
    in_script("claim", "local bound = math.min(", slow)()
    land_late(0.5)


def ask_only_the_target() -> None:
    """A call goes on to the next buckets while a page is on its way there, which takes long."""
    from delaybridge.store.namespace.following import BucketsFollowed

    def passed_by(self: Any, bucket: Any) -> Any:
        return {}
        yield

    BucketsFollowed.land_page = passed_by  # type: ignore[method-assign]
    land_late(0.5)


def land_late(seconds: float) -> None:
    """A page lands a while after it was lifted: no mistake by itself."""
    from delaybridge.store.namespace.following import BucketsFollowed

    land = BucketsFollowed.land

    def late(self: Any, bucket: Any, page: Any) -> Any:
        time.sleep(seconds)
        return (yield from land(self, bucket, page))

    BucketsFollowed.land = late  # type: ignore[method-assign]


MUTATIONS = {
    "landed-twice": Mutation(
        "a page of moved messages lands as often as it is sent", forget_what_landed, ("F97b",)
    ),
    "page-not-seen": Mutation(
        "a call does not look into the page of messages that is on its way",
        ask_only_the_target,
        ("F97b",),
    ),
    "no-gate": Mutation(
        "messages of a key go out at the new bucket before earlier ones at the old",
        ignore_the_gate,
        ("F99d",),
    ),
}
