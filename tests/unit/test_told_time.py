"""Scripts that are told the time, where servers refuse TIME in them: never ahead or early."""

from __future__ import annotations

import pytest

from delaybridge.errors import StoreUnavailable
from delaybridge.settings.urls import check_redis_url
from delaybridge.store.protocol.bucket import Bucket
from delaybridge.store.protocol.scripts import now_places, scripts
from delaybridge.store.protocol.verbs import plain
from delaybridge.store.redis import clocks
from delaybridge.store.redis.clocks import Clocks
from delaybridge.store.redis.store import Store

BUCKET = Bucket("ns", 0, "birth")
CLAIM = BUCKET.claim("w:1:1", 1000, 0, ahead_ms=0, limit=1, max_bytes=1)
KICK = BUCKET.kick(b"1234", "id")


class Steady:
    """The machine's steady clock."""

    now_s = 100.0

    def monotonic(self) -> float:
        return self.now_s


@pytest.fixture
def steady(monkeypatch: pytest.MonkeyPatch) -> Steady:
    steady = Steady()
    monkeypatch.setattr(clocks, "time", steady)
    return steady


def told(clocks: Clocks) -> tuple[object, object]:
    (claim, kick), errors = clocks.with_times([CLAIM, KICK], {})
    assert errors == {}
    return claim.args[now_places()["claim"]], kick.args[now_places()["kick"]]


def test_each_script_that_reads_the_clock_can_be_told_the_time() -> None:
    reads = {verb for verb, (source, _) in scripts().items() if "'TIME'" in source}
    assert reads == now_places().keys()


def test_a_claim_is_told_no_later_time_and_a_delay_no_earlier_one(steady: Steady) -> None:
    known = Clocks(lambda key: "")
    (asked,) = known.asked([CLAIM, KICK, plain("GET", "x")]).values()
    steady.now_s += 0.040  # its clock may have been read at any time since
    asked.parse([b"1000", b"5400"])
    assert told(known) == (1_000_005, 1_000_046)
    steady.now_s += 0.5
    assert told(known) == (1_000_505, 1_000_546)
    assert known.asked([CLAIM]) == {}
    steady.now_s += 0.5
    assert [*known.asked([CLAIM])] == [""], "asked again after a second"


def test_a_time_that_the_caller_gives_stays() -> None:
    command = BUCKET.kick(b"1234", "id", now_ms=7)
    assert Clocks(lambda key: "").asked([command]) == {}


def test_scripts_of_a_server_that_does_not_tell_the_time_fail_as_it_does() -> None:
    known, down = Clocks(lambda key: "down" if ":0" in key else "up"), StoreUnavailable("down")
    other = Bucket("ns", 1, "birth").kick(b"1234", "id")
    asked = known.asked([KICK, other])
    asked["up"].parse([b"1000", b"0"])
    commands, errors = known.with_times([KICK, other], {"down": down})
    assert errors == {0: down} and commands[1].args[0] != ""


def test_the_store_sends_nothing_to_it(monkeypatch: pytest.MonkeyPatch) -> None:
    with_option = Store("redis://127.0.0.1:1/0?time_in_scripts=no", timeout_s=0.1)
    (answer,) = with_option.run_each([KICK])
    assert isinstance(answer, StoreUnavailable)
    with_option.close()


def test_the_option_is_yes_or_no() -> None:
    assert "time_in_scripts=no" in str(check_redis_url("redis://127.0.0.1?time_in_scripts=no"))
    with pytest.raises(ValueError, match="time_in_scripts: yes or no"):
        check_redis_url("redis://127.0.0.1?time_in_scripts=maybe")
