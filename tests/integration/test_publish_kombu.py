"""The kombu publisher alone: messages equal to kombu's own, transports, a call that hangs."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import ssl
from collections.abc import AsyncIterator, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import quote

import kombu
import pytest

from delaybridge import Message
from delaybridge.accept.accept import accept
from delaybridge.amqp.encoding import PROPERTY_NAMES
from delaybridge.errors import PublishUnavailable
from delaybridge.message import OWN_HEADERS, Delivery, Limits, decode_record
from delaybridge.publish import CONFIRMED, Fault, PublishOptions, Verdict
from tests.rigs import certificates
from tests.rigs.broker import Rig, connect_to
from tests.rigs.broker_kombu import KombuAmqpRig, KombuRedisRig
from tests.rigs.broker_redis import redis_with_tls
from tests.rigs.waiting import DEADLINE_S, until_async
from tests.servers.process import LOOPBACK

QUICK = PublishOptions(confirm_timeout_s=1.0, heartbeat_s=2)

# As Celery's protocol 2 fills them.
HEADERS = {
    "lang": "py",
    "task": "orders.close",
    "eta": None,
    "retries": 0,
    "timelimit": [None, 30],
    "stamps": {"tenant": ["é"]},
    "ignore_result": False,
    "ratio": 0.5,
}
PROPERTIES = {
    "content_type": "application/json",
    "content_encoding": "utf-8",
    "correlation_id": "c-1",
    "reply_to": "replies",
    "delivery_mode": 1,
    "priority": 7,
    "expiration": "60000",
    "MessageGroupId": "g",  # not a property of AMQP; SQS reads it
}
BODY = b'[["\xc3\xa9"], {}, {"callbacks": null}]'


@pytest.fixture(scope="module")
def redis_broker() -> Iterator[KombuRedisRig]:
    """A private Redis."""
    made = KombuRedisRig()
    yield made
    made.close()


@pytest.fixture
async def on_redis(redis_broker: KombuRedisRig) -> AsyncIterator[KombuRedisRig]:
    """kombu over Redis."""
    async with redis_broker:
        yield redis_broker


@pytest.fixture
async def on_amqp() -> AsyncIterator[KombuAmqpRig]:
    """kombu over AMQP."""
    async with KombuAmqpRig() as rig:
        yield rig


def accepted(rig: Rig, queue: str, body: bytes = BODY, **described: Any) -> Delivery:
    """A delivery of the record that `schedule` would store."""
    message = Message(f"kombu:{queue}", body, delay=0, **described)
    record = decode_record(accept(message, {"kombu": "kombu"}, Limits()).payload)
    return rig.delivery(
        rig.destination(queue), body, headers=record.headers, properties=record.properties
    )


def publish_plainly(url: str, queue: str, options: dict[str, Any]) -> None:
    """The message that kombu itself sends for the same values."""
    properties = dict(PROPERTIES)
    properties["expiration"] = 60
    with kombu.Connection(url, transport_options=options) as connection:
        kombu.Producer(connection.channel()).publish(
            BODY.decode(), routing_key=queue, headers=HEADERS, **properties
        )


class TestTheMessage:
    async def test_on_redis_the_message_equals_the_one_that_kombu_would_send(
        self, on_redis: KombuRedisRig
    ) -> None:
        queue = on_redis.make()
        publish_plainly(on_redis.node.url, queue, {})
        async with on_redis.connected() as (publisher, sink):
            one = accepted(on_redis, queue, headers=HEADERS, properties=PROPERTIES)
            await sink.publish([one])
            assert sink.outcomes[one] == CONFIRMED
        with on_redis.client() as client:
            ours, plain = (json.loads(found) for found in client.lrange(f"{queue}\x06\x166", 0, -1))
        own = {name: ours["headers"].pop(name) for name in OWN_HEADERS}
        assert own == dict(zip(OWN_HEADERS, (one.id, one.due_ms, 1), strict=True))
        assert ours["properties"].pop("delivery_tag") != plain["properties"].pop("delivery_tag")
        assert ours == plain
        assert plain["properties"]["body_encoding"] == "base64"
        assert plain["properties"]["MessageGroupId"] == "g"

    async def test_text_stays_text_where_bodies_are_not_encoded(
        self, on_redis: KombuRedisRig
    ) -> None:
        queue = on_redis.make()
        url = f"{on_redis.url()}?transport.body_encoding=utf-8"
        async with on_redis.connected(url=url) as (publisher, sink):
            await sink.publish([accepted(on_redis, queue, properties=PROPERTIES)])
        with on_redis.client() as client:
            (found,) = client.lrange(f"{queue}\x06\x166", 0, -1)
        assert json.loads(found)["body"] == BODY.decode()

    async def test_bytes_without_a_type_are_raw_as_kombu_sends_bytes(
        self, on_redis: KombuRedisRig
    ) -> None:
        queue = on_redis.make()
        with kombu.Connection(on_redis.node.url) as connection:
            kombu.Producer(connection.channel()).publish(b"\xff\x00", routing_key=queue)
        async with on_redis.connected() as (publisher, sink):
            await sink.publish([accepted(on_redis, queue, b"\xff\x00")])
        with on_redis.client() as client:
            ours, plain = (json.loads(found) for found in client.lrange(queue, 0, -1))
        for found in (ours, plain):
            found.pop("headers")
            found["properties"].pop("delivery_tag")
        assert ours == plain

    async def test_on_amqp_every_type_arrives(self, on_amqp: KombuAmqpRig) -> None:
        queue = await asyncio.to_thread(on_amqp.make)
        headers = {
            **HEADERS,
            "bytes": b"\xff\x00",
            "big": 2**40,
            "at": datetime(2027, 1, 1, tzinfo=UTC),
        }
        async with on_amqp.connected() as (publisher, sink):
            one = accepted(on_amqp, queue, headers=headers, properties=PROPERTIES)
            await sink.publish([one])
            assert sink.outcomes[one] == CONFIRMED
        with kombu.Connection(on_amqp.node.url) as connection:  # pika truncates doubles
            found = connection.channel().basic_get(queue, no_ack=True)
        assert found.body.encode() == BODY
        own = {name: found.headers.pop(name) for name in OWN_HEADERS}
        assert own == dict(zip(OWN_HEADERS, (one.id, one.due_ms, 1), strict=True))
        assert found.headers.pop("at").replace(tzinfo=UTC) == headers.pop("at")
        found.headers.pop("x-delivery-count", None)  # RabbitMQ 3 adds it
        assert found.headers == headers
        wanted = {name: value for name, value in PROPERTIES.items() if name in PROPERTY_NAMES}
        assert {name: found.properties[name] for name in wanted} == wanted


class TestOnAmqp:
    async def test_a_queue_that_rejects_is_unknown(self, on_amqp: KombuAmqpRig) -> None:
        with on_amqp.channel() as channel:
            full = {"x-max-length": 1, "x-overflow": "reject-publish"}
            channel.queue_declare("full", durable=True, arguments=full)
        async with on_amqp.connected() as (publisher, sink):
            first, second = on_amqp.deliveries(on_amqp.destination("full"), 2)
            await sink.publish([first, second])
            assert sink.outcomes[first] == CONFIRMED
            assert sink.outcomes[second].verdict is Verdict.UNKNOWN
            assert sink.reasons([second]) == {"nacked"}
            assert publisher.unavailable is None

    async def test_an_idle_connection_that_is_lost_is_noticed(self, on_amqp: KombuAmqpRig) -> None:
        async with on_amqp.connected(QUICK) as (publisher, sink):
            on_amqp.proxy.mode = "refuse"
            await on_amqp.reset(publisher)
            await until_async(lambda: publisher.unavailable is not None, "it is missed")
            on_amqp.proxy.mode = "pass"
            await until_async(lambda: publisher.unavailable is None, "it is back")
            assert sink.outcomes == {}

    @pytest.mark.slow
    @pytest.mark.usefixtures("stall")
    async def test_heartbeats_keep_an_idle_connection_open(self, on_amqp: KombuAmqpRig) -> None:
        async with on_amqp.connected(QUICK) as (publisher, sink):
            with kombu.Connection(on_amqp.node.url, heartbeat=QUICK.heartbeat_s) as silent:
                await asyncio.to_thread(wait_closed, silent.connection.transport.sock)
            assert sink.changes == [None]
            one = on_amqp.delivery(await on_amqp.new_destination())
            await sink.publish([one])
            assert sink.outcomes[one] == CONFIRMED

    async def test_a_wrong_password_is_reported(self, on_amqp: KombuAmqpRig) -> None:
        url = on_amqp.url().replace("guest:guest", "guest:s3cret")
        with pytest.raises(PublishUnavailable, match="unreachable") as caught:
            async with on_amqp.connected(url=url):
                pass
        assert "s3cret" not in str(caught.value)


class TestOnRedis:
    async def test_messages_for_a_full_redis_are_refused_until_it_has_room(
        self, on_redis: KombuRedisRig
    ) -> None:
        to = await on_redis.new_destination()
        with on_redis.client() as client:
            async with on_redis.connected() as (publisher, sink):
                await sink.publish(on_redis.deliveries(to, 1))
                client.config_set("maxmemory", 1)
                refused = on_redis.deliveries(to, 5)
                await sink.publish(refused)
                assert {sink.outcomes[one].fault for one in refused} == {Fault.BROKER}
                assert sink.verdicts(refused) == {Verdict.REFUSED}
                assert sink.reasons(refused) == {"full"}
                client.config_set("maxmemory", 0)
                await sink.confirm_again(on_redis, to)
                confirmed = [one for one in sink.outcomes if sink.outcomes[one] == CONFIRMED]
            assert client.llen(to.address) == len(confirmed)

    async def test_a_call_that_hangs_for_ever_is_given_up(self, on_redis: KombuRedisRig) -> None:
        url = f"{on_redis.url()}?transport.socket_timeout=null"
        async with on_redis.connected(QUICK, url) as (publisher, sink):
            to = await on_redis.new_destination()
            await sink.confirm_again(on_redis, to)
            on_redis.proxy.mode = "blackhole_down"
            hanging, *others = on_redis.deliveries(to, 5)
            await sink.publish([hanging, *others])
            assert sink.outcomes[hanging].verdict is Verdict.UNKNOWN
            assert sink.reasons([hanging]) == {"confirm_timeout"}
            assert sink.verdicts(others) == {Verdict.REFUSED}
            assert {sink.outcomes[one].fault for one in others} == {Fault.BROKER}
            on_redis.proxy.mode = "pass"
            await on_redis.reset(publisher)
            await until_async(lambda: publisher.unavailable is None, "it is back")
            await sink.confirm_again(on_redis, to)
            arrived = [one.id for one in on_redis.read(to.address, 10)]
            assert [one for one in arrived if one in {late.id for late in others}] == []

    async def test_tls_verifies(self, tmp_path: Path) -> None:
        with redis_with_tls(tmp_path) as (port, authority):
            url = f"kombu+rediss://{LOOPBACK}:{port}/0"
            await verified(f"{url}?ssl_ca_certs={authority}", url)


async def verified(trusting: str, wary: str) -> None:
    """With one URL it connects; with the other it refuses the certificate."""
    for url, answer in (
        (trusting, contextlib.nullcontext()),
        (wary, pytest.raises(PublishUnavailable, match="(?i)certificate")),
    ):
        publisher, _ = connect_to("kombu", url)
        try:
            with answer:
                await publisher.connect()
        finally:
            await publisher.close(0.0)


async def test_amqps_verifies(on_amqp: KombuAmqpRig) -> None:
    tls = on_amqp.node.tls
    asked = quote(json.dumps({"ca_certs": str(tls.authority)}))
    await verified(f"kombu+{tls.url}?transport.ssl={asked}", f"kombu+{tls.url}")


async def test_amqps_checks_the_name_in_the_certificate_whatever_else_is_asked_of_tls(
    tmp_path: Path,
) -> None:
    made, elsewhere = certificates.make(tmp_path), "127.0.0.2"  # not the address in the certificate
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(made.certificate, made.key)
    server = await asyncio.start_server(lambda _, writer: writer.close(), elsewhere, 0, ssl=context)
    port = server.sockets[0].getsockname()[1]
    asked = quote(json.dumps({"ca_certs": str(made.authority)}))
    publisher, _ = connect_to("kombu", f"kombu+amqps://{elsewhere}:{port}?transport.ssl={asked}")
    try:
        with pytest.raises(PublishUnavailable, match="(?i)certificate"):
            await publisher.connect()
    finally:
        await publisher.close(0.0)
        server.close()


async def test_messages_reach_a_queue_in_the_file_system(tmp_path: Path) -> None:
    folder = tmp_path / "queues"
    folder.mkdir()
    options = f"transport.data_folder_in={folder}&transport.data_folder_out={folder}"
    publisher, sink = connect_to("kombu", f"kombu+filesystem://?{options}")
    rig = _Named()
    try:
        await publisher.connect()
        one = accepted(rig, "q", headers=HEADERS, properties=PROPERTIES)
        await sink.publish([one])
        assert sink.outcomes[one] == CONFIRMED
    finally:
        await publisher.close(0.0)
    (file,) = folder.iterdir()
    found = json.loads(file.read_text())
    assert found["headers"]["delaybridge-id"] == one.id
    assert found["properties"]["correlation_id"] == "c-1"


def wait_closed(connection: socket.socket) -> None:
    """Wait until the other side closes the silent connection."""
    connection.settimeout(DEADLINE_S)
    with contextlib.suppress(ConnectionResetError):
        while connection.recv(4096):
            pass


class _Named(KombuRedisRig):
    """Only makes deliveries; it has no server."""

    def __init__(self) -> None:
        pass
