"""Several threads, or calls, that learn at once of a namespace that was made again."""

from __future__ import annotations

import inspect
from typing import Any

import pytest

from delaybridge.message import Limits
from delaybridge.store.calls import Calls
from delaybridge.store.namespace import following
from delaybridge.store.namespace.following import BucketsFollowed
from delaybridge.store.protocol.bucket import Bucket
from delaybridge.store.protocol.layout import Epoch, Layout

LAYOUT = Layout((Epoch(0, 4),))
OLD, NEW = (LAYOUT, "old"), (LAYOUT, "new")


def test_who_finds_a_record_known_finds_its_buckets(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another thread comes while the first makes them, or while what it knows is thrown away."""
    follower, made = BucketsFollowed("ns"), list[Any]()

    def make(*given: Any) -> Bucket:
        if not made and given[-1] == "new":
            made.append(given)
            follower.learn(*NEW)
            assert {each.birth for each in follower.here} == {"new"}
        return Bucket(*given)

    follower.learn(*OLD)
    monkeypatch.setattr(following, "Bucket", make)
    follower.learn(*NEW)
    assert made and {each.birth for each in follower.here} == {"new"}
    follower._made[0] = Bucket("ns", 0, "old")  # by a thread that was about to keep it
    assert follower.bucket(0).birth == "new"


def test_a_record_read_before_another_was_learnt_is_read_again() -> None:
    calls = Calls("ns", {}, None, Limits())
    slow, quick = calls.open(), calls.open()
    next(slow), next(quick)
    with pytest.raises(StopIteration):
        quick.send([NEW, {}])
    slow.send([OLD, {}])
    assert inspect.getgeneratorstate(slow) == inspect.GEN_SUSPENDED and calls.birth == "new"
    with pytest.raises(StopIteration):
        slow.send([NEW, {}])
    assert calls.birth == "new"
