"""Which of several Sentinels is believed, and that they are asked before anything is sent."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest
import redis

from delaybridge.settings.redis_servers import Address, RedisServers
from delaybridge.store.redis import sentinels, servers
from delaybridge.store.redis.sentinels import Sentinels

URL = "redis+sentinel://s1,s2,s3/service"
OLD, NEW = ("old", 1), ("new", 2)
Said = dict[str, tuple[int, Address]]  # Sentinel -> epoch and master; of the others, none answers


class FakeWire:
    """To one Sentinel."""

    said: Said

    def __init__(self, pool: Any, timeout_s: float) -> None:
        self._host = pool.connection_kwargs["host"]

    def call(self, requests: Sequence[bytes]) -> list[Any]:
        if self._host not in self.said:
            raise redis.ConnectionError("silent")
        epoch, (host, port) = self.said[self._host]
        return [[b"config-epoch", b"%d" % epoch], [host.encode(), b"%d" % port]]

    def close(self) -> None:
        pass


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch) -> Said:
    """What each Sentinel says; to be changed."""
    monkeypatch.setattr(sentinels, "Wire", FakeWire)
    monkeypatch.setattr(FakeWire, "said", {}, raising=False)
    return FakeWire.said


def test_of_two_masters_the_one_of_the_latest_fail_over_counts(said: Said) -> None:
    asked = Sentinels(RedisServers.parse(URL))
    said |= {"s1": (3, OLD), "s2": (12, NEW), "s3": (3, OLD)}
    assert asked.master(None) == NEW


def test_while_those_who_know_of_a_fail_over_are_silent_nobody_leads_back(said: Said) -> None:
    asked = Sentinels(RedisServers.parse(URL))
    said |= {"s1": (3, OLD), "s2": (12, NEW), "s3": (12, NEW)}
    assert asked.master(None) == NEW
    del said["s2"], said["s3"]
    assert [asked.master(NEW) for _ in "123"] == [None] * 3
    assert asked.master(None) is None


def test_most_of_them_lead_back_though_who_knew_better_is_silent(said: Said) -> None:
    asked = Sentinels(RedisServers.parse(URL))
    said |= {"s2": (12, NEW)}
    assert asked.master(None) == NEW
    said |= {"s1": (3, OLD), "s3": (3, OLD)}
    del said["s2"]
    assert asked.master(None) == OLD


def test_one_that_is_silent_is_no_reason_to_keep_a_master(said: Said) -> None:
    asked = Sentinels(RedisServers.parse(URL))
    said |= {"s1": (3, OLD), "s2": (3, OLD), "s3": (3, OLD)}
    assert asked.master(None) == OLD
    said |= {"s2": (12, NEW)}
    del said["s3"]
    found = []
    for _ in "123":  # another one is asked each time
        found.append(asked.master(OLD))
    assert found.count(NEW) == 2


def test_after_a_failed_call_none_is_sent_before_sentinels_were_asked(
    said: Said, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(servers, "Lookout", FakeLookout)
    moved: list[Address] = []
    wire = SimpleNamespace(move_to=lambda *address: moved.append(address))
    master = servers.Replicated[Any](RedisServers.parse(URL), wire)
    said |= {"s1": (3, OLD), "s2": (3, OLD), "s3": (3, OLD)}
    master.refresh()
    assert master.wire_at("") is wire
    master.failed()
    with pytest.raises(redis.RedisError, match="no Sentinel was asked"):
        master.wire_at("")
    said |= {"s2": (12, NEW)}  # the only one that has heard of the fail-over yet
    master.refresh()
    assert (master.wire_at(""), moved) == (wire, [OLD, NEW])


class FakeLookout:
    """Looks only when the test says so."""

    def __init__(self, *_: object) -> None: ...

    def wake(self) -> None: ...
