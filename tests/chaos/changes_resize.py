"""Mistakes in a live resize; see `changes.py`."""

from __future__ import annotations

from typing import Any

from tests.chaos.mutation import Mutation, in_script


def forget_what_landed() -> None:
    """A page that is sent again lands again."""
    in_script("land", "elseif marks[3] == ARGV[3] then", "elseif false then")()
    in_script("land", "elseif redis.call('ZSCORE', KEYS[8], 'land' .. ARGV[3])", "elseif false")()


def ask_only_the_target() -> None:
    """A call goes on to the next buckets while a page is on its way there."""
    from delaybridge.store.namespace.following import BucketsFollowed

    def passed_by(self: Any, bucket: Any) -> Any:
        return {}
        yield

    BucketsFollowed.land_page = passed_by  # type: ignore[method-assign]


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
        in_script("claim", "'claimed', 'gate'", "'claimed', 'no_gate'"),
        ("F96",),
    ),
}
