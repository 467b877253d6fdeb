"""A resize as an operator asks for it: the command line, HTTP, and who is refused."""

from __future__ import annotations

from contextlib import closing
from unittest.mock import MagicMock

import pytest
import redis as redis_py

from delaybridge.client import Client
from delaybridge.errors import ConfigError, StoreError
from delaybridge.operate.doctor import namespace as doctor
from delaybridge.operate.doctor import selftest
from delaybridge.operate.parts import rights
from delaybridge.resize import resizing
from delaybridge.resize.mover import Mover
from delaybridge.settings.settings import Settings
from delaybridge.store.namespace import registry
from delaybridge.store.protocol.layout import UNUSED
from delaybridge.store.redis.store import Store
from tests.rigs.command_line import Run


def test_without_workers_it_is_asked_for_and_waits(
    run: Run, redis_url: str, namespace: str
) -> None:
    with Client(redis_url, namespace=namespace, buckets=4) as client:
        client.schedule("rabbitmq:/q", b"x", delay="1h", id="a")
        assert (
            "would move 1 messages from 4 buckets to 8"
            in run("bucket", "resize", "8", "--dry-run").out
        )
        assert "4 buckets; none is being moved" in run("bucket", "resize").out
        assert (
            "4 to 8: 0 of 4 buckets have moved, 1 messages left" in run("bucket", "resize", "8").out
        )
        assert "paused" in run("bucket", "resize", "--pause").out
        assert "paused" not in run("bucket", "resize", "--resume").out
        assert "4 to 8, then 4" in run("bucket", "resize", "4").out
        assert run("bucket", "resize", "16").code == 2
        assert client.get("a") is not None


@pytest.fixture(autouse=True)
def _buckets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DELAYBRIDGE_BUCKETS", "4")


@pytest.mark.parametrize("count", ["0", "3", "2048", "-4"])
def test_a_number_that_is_not_allowed_is_named(run: Run, count: str) -> None:
    said = run("bucket", "resize", "--", count)
    assert said.code == 2
    assert count in said.err


def test_a_process_that_would_not_find_what_has_moved_is_named(
    run: Run, redis_url: str, namespace: str, raw: redis_py.Redis
) -> None:
    store = Store(redis_url)
    with Client(redis_url, namespace=namespace, buckets=4) as client:
        client.schedule("rabbitmq:/q", b"x", delay="1h", id="a")
        store.run([registry.announce(namespace, "old:1", "i", 60_000, b'{"version": "0.0.9"}')])
        with pytest.raises(ConfigError, match="worker old:1 would not find"):
            client.run(lambda calls: resizing.begin(calls, 8))
        assert run("bucket", "resize", "8").code == 2
    store.close()


def test_the_settings_may_say_any_number_that_there_was_or_is_to_be(
    run: Run, redis_url: str, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Client(redis_url, namespace=namespace, buckets=4) as client:
        assert client.get("a") is None
        monkeypatch.setenv("DELAYBRIDGE_BUCKETS", "8")
        assert _doctor(redis_url, namespace, 8) == ["bucket_count_differs"]
        asked = run("bucket", "resize", "8")
        assert asked.code == 0
        assert "no worker runs" in asked.err
        assert run("bucket", "resize", "--pause", "--resume").code == 2
        before = client.run(lambda calls: resizing.begin(calls, 8))
        following = client._calls.following
        moved = registry.relayout(namespace, before, before.moved(), following.birth)
        with closing(Store(redis_url)) as store:
            assert store.run([moved]) == [True]
            for bucket in map(following.bucket, before.moved().here.numbers):
                store.run([bucket.acquire("w:1", 60_000)])
        for count in (4, 8):
            assert _doctor(redis_url, namespace, count) == []


def _doctor(redis_url: str, namespace: str, count: int) -> list[str]:
    flags = {"redis": {"url": redis_url}, "namespace": namespace, "buckets": count}
    with closing(Store(redis_url)) as store:
        found = doctor.namespace(store, Settings.load(None, flags))
        return [each.trouble.code for each in found if each.trouble]


def test_why_messages_wait_is_told_after_some_seconds_until_they_move() -> None:
    mover, run = Mover(), MagicMock()
    mover.begin(run)
    assert mover.commands() == ()
    mover._wait("no answer", is_told=False)
    mover._since_s -= 10.0
    mover.take_replies([])
    mover._wait("a key is damaged")
    mover.begin(run)
    mover._wait("a key is damaged")
    mover.take_replies([])
    mover._since_s -= 10.0
    with pytest.raises(StoreError, match="a key is damaged"):
        mover.take_replies([])
    mover._until_s -= 30.0
    assert mover.commands()  # one that is answered, so that the pulse is well again
    mover.take_replies([])


def test_what_is_tried_on_keys_of_a_bucket_that_is_not_used_leaves_large_numbers_alone(
    redis_url: str, namespace: str, raw: redis_py.Redis
) -> None:
    """Each resize has numbers above all before, so there may be many."""
    raw.set(f"{{{namespace}}}:birth", "16@16385:00112233aabbccdd")
    with Client(redis_url, namespace=namespace) as client:
        for n in range(64):
            client.schedule("rabbitmq:/q", b"x", delay="1h", id=f"m{n}")
        for role in rights.ROLES:
            client.run(lambda calls, role=role: rights.lacking_for(namespace, role))
        with closing(Store(redis_url)) as store:
            assert selftest.unused(store, namespace) >= UNUSED
        assert client.stats().delayed == 64
