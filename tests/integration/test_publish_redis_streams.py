"""The Redis Streams publisher alone: an entry's fields, trimming, refused writes, logins, TLS."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import redis

from delaybridge import Client, Message
from delaybridge.accept.accept import accept
from delaybridge.errors import ConfigError, MessageError, PublishUnavailable
from delaybridge.message import Destination, Limits
from delaybridge.publish import CONFIRMED, Fault, PublishOptions, Verdict
from delaybridge.settings.urls import check_broker_url
from tests.rigs.broker import connect_to
from tests.rigs.broker_redis import RedisRig, redis_with_tls
from tests.rigs.fleet import is_settled, running_worker
from tests.rigs.waiting import until, until_async
from tests.servers.process import LOOPBACK
from tests.servers.redis import RedisServer

QUICK = PublishOptions(confirm_timeout_s=1.0, heartbeat_s=1)


@pytest.fixture(scope="module")
def broker() -> Iterator[RedisRig]:
    """A private Redis with small stream nodes, so that trimming shows soon."""
    made = RedisRig(["--appendfsync", "always", "--stream-node-max-entries", "10"])
    yield made
    made.close()


@pytest.fixture
async def rig(broker: RedisRig) -> AsyncIterator[RedisRig]:
    """The broker, running and reachable."""
    async with broker:
        yield broker


def entries(rig: RedisRig, stream: str) -> list[list[bytes]]:
    """Names and values of each entry, in order; redis-py would make a dict of them."""
    with rig.client() as client:
        client.response_callbacks.pop("XRANGE")
        return [fields for _, fields in client.execute_command("XRANGE", stream, "-", "+")]


class TestEntries:
    async def test_fields_bytes_order_and_duplicates_are_kept(self, rig: RedisRig) -> None:
        to = await rig.new_destination()
        pairs = (("b", b"1"), ("body", b"\xff\x00"), ("b", b""), ("é", "€".encode()))
        async with rig.connected() as (publisher, sink):
            one = rig.delivery(to, b"\x00body\r\n\xff", headers=pairs, key=b"\xffkey")
            one.given_id, one.attempt = "é-id", 3
            await sink.publish([one])
        fields = [
            (b"body", b"\x00body\r\n\xff"),
            (b"delaybridge-id", "é-id".encode()),
            (b"delaybridge-due-ms", b"1800000000000"),
            (b"delaybridge-attempt", b"3"),
            (b"key", b"\xffkey"),
            (b"header:b", b"1"),
            (b"header:body", b"\xff\x00"),
            (b"header:b", b""),
            ("header:é".encode(), "€".encode()),
        ]
        assert entries(rig, to.address) == [[part for field in fields for part in field]]

    async def test_nothing_is_trimmed_unless_asked_for(self, rig: RedisRig) -> None:
        to = await rig.new_destination()
        async with rig.connected() as (publisher, sink):
            await sink.publish(rig.deliveries(to, 500))
            assert len(entries(rig, to.address)) == 500
        async with rig.connected(url=f"{rig.url()}?maxlen=100") as (publisher, sink):
            await sink.publish(rig.deliveries(to, 500))
            kept = entries(rig, to.address)
            assert 100 <= len(kept) < 200
            assert kept[-1][1] == b"499"
            assert "about 100 entries" in publisher.describe()

    @pytest.mark.parametrize(
        ("url", "says"),
        [
            ("redis://h?maxlen=0", "maxlen: how many"),
            ("redis://h?maxlen=many", "maxlen: how many"),
            ("redis://h?max_len=5", "did you mean maxlen"),
            ("redis://h/x", "redis://HOST"),
            ("unix://", "redis://HOST"),
        ],
    )
    def test_invalid_urls_are_refused(self, url: str, says: str) -> None:
        with pytest.raises(ValueError, match=says):
            check_broker_url(url)

    def test_an_option_that_redis_py_refuses_is_refused(self) -> None:
        with pytest.raises(ConfigError, match=r"brokers\.redis"):
            connect_to("redis", "redis://localhost?socket_timeout=abc")

    def test_a_null_header_is_refused_before_it_is_stored(self) -> None:
        message = Message("redis:s", b"", delay=1, headers={"a": None})
        with pytest.raises(MessageError, match="a: unsupported_header_type"):
            accept(message, {"redis": "redis"}, Limits())


class TestRefusals:
    async def test_messages_for_a_full_redis_are_refused_until_it_has_room(
        self, rig: RedisRig
    ) -> None:
        to = await rig.new_destination()
        with rig.client() as client:
            async with rig.connected() as (publisher, sink):
                await sink.publish(rig.deliveries(to, 5))
                client.config_set("maxmemory", 1)
                refused = rig.deliveries(to, 50)
                await sink.publish(refused)
                assert sink.verdicts(refused) == {Verdict.REFUSED}
                assert {sink.outcomes[one].fault for one in refused} == {Fault.BROKER}
                assert sink.reasons(refused) == {"full"}
                assert "OOM" in publisher.unavailable
                with pytest.raises(PublishUnavailable, match="full"):
                    async with rig.connected():
                        pass
                client.config_set("maxmemory", 0)
                await until_async(lambda: publisher.unavailable is None, "it is back")
                after = rig.deliveries(to, 5)
                await sink.publish(after)
                assert sink.verdicts(after) == {Verdict.CONFIRMED}
            assert len(entries(rig, to.address)) == 10

    async def test_messages_for_a_replica_are_refused(self, rig: RedisRig) -> None:
        to = await rig.new_destination()
        with RedisServer() as master, rig.client() as client:
            async with rig.connected() as (publisher, sink):
                client.replicaof(LOOPBACK, str(master.port))
                refused = rig.deliveries(to, 5)
                await sink.publish(refused)
                assert {sink.outcomes[one].fault for one in refused} == {Fault.BROKER}
                assert sink.reasons(refused) <= {"read_only", "loading"}
                client.replicaof("NO", "ONE")
                await until_async(lambda: publisher.unavailable is None, "it is back")

    async def test_a_missing_permission_affects_only_its_stream(self, rig: RedisRig) -> None:
        with rig.client() as client:
            client.acl_setuser(
                "writer", True, passwords=["+p/w@"], commands=["+xadd"], keys=["ok:*"]
            )
        url = rig.url().replace("redis://", "redis://writer:p%2Fw%40@")
        to, forbidden = rig.destination("ok:1"), rig.destination("forbidden")
        async with rig.connected(url=url) as (publisher, sink):
            good, bad = rig.deliveries(to, 5), rig.deliveries(forbidden, 5)
            await sink.publish([d for two in zip(good, bad, strict=True) for d in two])
            assert sink.verdicts(good) == {Verdict.CONFIRMED}
            assert sink.verdicts(bad) == {Verdict.REFUSED}
            assert {sink.outcomes[one].fault for one in bad} == {Fault.DESTINATION}
            assert sink.reasons(bad) == {"access_refused"}
            assert await publisher.check(to) is None  # it has no right to ask
            assert "of unknown version" in publisher.describe()
            assert "p/w" not in publisher.describe()

    async def test_a_wrong_password_is_reported(self, rig: RedisRig) -> None:
        url = rig.url().replace("redis://", "redis://nobody:s3cret@")
        with pytest.raises(PublishUnavailable, match="access_refused") as caught:
            async with rig.connected(url=url):
                pass
        assert "s3cret" not in str(caught.value)


class TestConnections:
    async def test_an_idle_connection_that_is_lost_is_noticed_at_once(self, rig: RedisRig) -> None:
        async with rig.connected(PublishOptions(heartbeat_s=3600)) as (publisher, sink):
            rig.proxy.mode = "refuse"
            await rig.reset(publisher)
            await until_async(lambda: publisher.unavailable is not None, "it is missed")
            rig.proxy.mode = "pass"
            await until_async(lambda: publisher.unavailable is None, "it is back")
            assert sink.outcomes == {}

    async def test_an_idle_connection_that_falls_silent_is_noticed(self, rig: RedisRig) -> None:
        async with rig.connected(QUICK) as (publisher, _):
            rig.proxy.mode = "blackhole"
            await until_async(lambda: publisher.unavailable is not None, "it is missed")
            rig.proxy.mode = "pass"
            await until_async(lambda: publisher.unavailable is None, "it is back")

    async def test_messages_go_through_a_unix_socket(self, tmp_path: Path) -> None:
        path = tmp_path / "redis.sock"
        with RedisServer(["--unixsocket", str(path)]):
            publisher, sink = connect_to("redis", f"unix://{path}?db=1")
            try:
                await publisher.connect()
                one = RedisRig.delivery(_Named(), Destination("redis", "redis", "s"))
                await sink.publish([one])
                assert sink.outcomes[one] == CONFIRMED
                assert str(path) in publisher.describe()
            finally:
                await publisher.close(0.0)

    async def test_tls_verifies(self, tmp_path: Path) -> None:
        with redis_with_tls(tmp_path) as (port, authority):
            url = f"rediss://{LOOPBACK}:{port}"
            trusting, _ = connect_to("redis", f"{url}?ssl_ca_certs={authority}")
            wary, _ = connect_to("redis", url)
            try:
                await trusting.connect()
                assert ", TLS" in trusting.describe()
                with pytest.raises(PublishUnavailable, match="(?i)certificate"):
                    await wary.connect()
            finally:
                await trusting.close(0.0)
                await wary.close(0.0)


class _Named(RedisRig):
    """Only makes deliveries; it has no server."""

    def __init__(self) -> None:
        pass


class TestEndToEnd:
    def test_messages_for_another_kind_of_broker_wait_and_hold_up_no_others(
        self, redis_url: str, namespace: str, tmp_path: Path
    ) -> None:
        stream = f"s-{namespace}"
        with Client(redis_url, namespace=namespace, brokers={"eu": f"kombu+{redis_url}"}) as old:
            stale = [
                old.schedule(f"eu:{stream}", b"old", headers=headers, delay=0, at_most_once=once)
                for headers in ({}, {"a": 1})
                for once in (False, True)
            ]
        with (
            Client(redis_url, namespace=namespace, brokers={"eu": redis_url}) as client,
            running_worker(redis_url, namespace, f"eu={redis_url}", tmp_path) as worker,
            redis.Redis.from_url(redis_url) as plain,
        ):
            client.schedule(f"eu:{stream}", b"new", headers={"a": "1"}, delay=0)
            until(lambda: client.stats().parked == len(stale), "all of them wait")
            until(lambda: plain.xlen(stream), "the other one is published")
            ((_, fields),) = plain.xrange(stream)
            plain.delete(stream)
        assert fields[b"body"] == b"new"
        assert "scanner_failed" not in worker.log

    def test_on_time_byte_for_byte_and_nothing_is_lost_with_the_broker(
        self, redis_url: str, namespace: str, tmp_path: Path
    ) -> None:
        stream = "orders"
        with (
            RedisServer(["--appendonly", "yes", "--appendfsync", "always"]) as server,
            Client(redis_url, namespace=namespace, brokers={"redis": server.url}) as client,
            running_worker(redis_url, namespace, server.url, tmp_path) as worker,
        ):
            until(lambda: "lease_acquired" in worker.log, "the worker is up")
            bodies = [bytes([n % 256]) * 20 + b"\r\n\x00" for n in range(200)]
            due = [datetime.now(UTC) + timedelta(seconds=1 + n / 50) for n in range(200)]
            receipts = client.schedule_many(
                [
                    Message(f"redis:{stream}", body, at=at, headers={"h": body})
                    for body, at in zip(bodies, due, strict=True)
                ]
            )
            with redis.Redis.from_url(server.url) as plain:
                until(lambda: plain.xlen(stream) > 20, f"some arrive: {worker.log[-2000:]}")
            server.kill()
            server.start()
            with redis.Redis.from_url(server.url) as plain:
                until(lambda: is_settled(client), "all settled")
                found = plain.xrange(stream)
            by_id: dict[str, list[Any]] = {}
            for entry, fields in found:
                by_id.setdefault(fields[b"delaybridge-id"].decode(), []).append((entry, fields))
            assert by_id.keys() == {receipt.id for receipt in receipts}
            for receipt, body, at in zip(receipts, bodies, due, strict=True):
                for entry, fields in by_id[receipt.id]:
                    assert fields[b"body"] == fields[b"header:h"] == body
                    assert int(entry.split(b"-")[0]) >= int(at.timestamp() * 1000)  # never early
