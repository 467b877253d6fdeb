"""Marks of processed messages on Redis, and the programs of the page about them."""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pika
import psycopg
import pytest
import redis
import sqlalchemy
from redis import asyncio as redis_asyncio

from delaybridge import StoreDamaged, StoreDenied, StoreUnavailable
from delaybridge.dedup import AsyncRedisDedup, ClaimLost, InProgress, RedisDedup
from tests.rigs.databases import conninfo
from tests.rigs.pages import program
from tests.rigs.waiting import DEADLINE_S, until
from tests.servers.process import LOOPBACK, free_port
from tests.servers.redis import RedisServer

SHORT = "250ms"  # a claim that a test awaits the end of
DIES = """
import sys
from delaybridge.dedup import RedisDedup
with RedisDedup(sys.argv[1], prefix=sys.argv[2], processing=sys.argv[3]).once("order-42") as first:
    print("claimed", first, flush=True)
    sys.stdin.read()
    print("the effect", flush=True)
"""


class Oops(Exception):
    """An effect failed."""


@pytest.fixture
def dedup(raw: redis.Redis, namespace: str) -> RedisDedup:
    return RedisDedup(raw, prefix=namespace)


def test_the_second_delivery_is_told_apart(dedup: RedisDedup, raw: redis.Redis) -> None:
    with dedup.once("order-42") as first:
        assert first
        assert raw.get(dedup.key("order-42")).startswith(b"claim:")  # type: ignore[union-attr]
    with dedup.once("order-42") as first:
        assert not first
    with dedup.once("order-43") as first:
        assert first
    assert raw.get(dedup.key("order-42")) == b"done"
    assert 86_390_000 < raw.pttl(dedup.key("order-42")) <= 86_400_000  # type: ignore[operator]


def test_a_client_that_decodes_replies(redis_url: str, namespace: str) -> None:
    for protocol in (2, 3):
        with redis.Redis.from_url(redis_url, decode_responses=True, protocol=protocol) as client:
            dedup = RedisDedup(client, prefix=f"{namespace}:{protocol}")
            for expected in (True, False):
                with dedup.once("é") as first:
                    assert first is expected


def test_while_another_one_works_on_it(dedup: RedisDedup) -> None:
    with dedup.once("order-42"):
        with pytest.raises(InProgress) as refused, dedup.once("order-42"):
            pytest.fail("the block ran")
        assert refused.value.id == "order-42"
        assert 290_000 < refused.value.wait_ms <= 300_000
    with dedup.once("order-42") as first:
        assert not first


@pytest.mark.parametrize("error", [Oops, KeyboardInterrupt, GeneratorExit])
def test_a_failed_effect_is_tried_again(
    dedup: RedisDedup, raw: redis.Redis, error: type[BaseException]
) -> None:
    with pytest.raises(error), dedup.once("order-42"):
        raise error
    assert raw.exists(dedup.key("order-42")) == 0
    with dedup.once("order-42") as first:
        assert first


def test_an_error_after_it_was_done_before_changes_nothing(dedup: RedisDedup) -> None:
    with dedup.once("order-42"):
        pass
    with pytest.raises(Oops), dedup.once("order-42") as first:
        assert not first
        raise Oops
    assert dedup.claim("order-42") is None


def expired(raw: redis.Redis, key: str) -> None:
    """Return when a claim has expired."""
    until(lambda: not raw.exists(key), "the claim expired")


def test_an_effect_that_outlasts_its_claim(raw: redis.Redis, namespace: str) -> None:
    slow = RedisDedup(raw, prefix=namespace, processing=SHORT)
    with slow.once("nobody came"):
        expired(raw, slow.key("nobody came"))
    assert slow.claim("nobody came") is None  # done nevertheless: it happened

    other = RedisDedup(raw, prefix=namespace)
    with pytest.raises(ClaimLost, match="longer than 250 ms"), slow.once("another came"):
        expired(raw, slow.key("another came"))
        token = other.claim("another came")
    assert token is not None
    with pytest.raises(InProgress):  # the other one's claim was left alone
        slow.claim("another came")
    other.done("another came", token)
    assert slow.claim("another came") is None


def test_a_failed_effect_leaves_the_claim_of_another_one(raw: redis.Redis, namespace: str) -> None:
    slow = RedisDedup(raw, prefix=namespace, processing=SHORT)
    other = RedisDedup(raw, prefix=namespace)
    with pytest.raises(Oops), slow.once("order-42"):
        expired(raw, slow.key("order-42"))
        token = other.claim("order-42")
        raise Oops
    assert token is not None
    assert not slow.release("order-42", "claim:mine")
    assert other.release("order-42", token)


def test_a_call_that_is_sent_again_knows_itself(
    dedup: RedisDedup, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As after a lost reply; redis-py does so by itself."""
    tokens = ["claim:one"] * 2 + ["claim:two"]
    monkeypatch.setattr("delaybridge.dedup.claims._new_token", lambda: tokens.pop(0))
    assert dedup.claim("order-42") == dedup.claim("order-42") == "claim:one"
    with pytest.raises(InProgress):
        dedup.claim("order-42")
    dedup.done("order-42", "claim:one")
    dedup.done("order-42", "claim:one")


def test_a_consumer_killed_before_its_effect_loses_nothing(
    dedup: RedisDedup, raw: redis.Redis, redis_url: str, namespace: str
) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", DIES, redis_url, namespace, "1h"],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE,
    ) as consumer:  # fmt: skip
        assert consumer.stdout is not None
        assert consumer.stdout.readline() == b"claimed True\n"
        with pytest.raises(InProgress):
            dedup.claim("order-42")
        consumer.kill()
        assert consumer.stdout.read() == b""
    assert 0 < raw.pttl(dedup.key("order-42")) <= 3_600_000  # type: ignore[operator]
    raw.pexpire(dedup.key("order-42"), 1)  # the hour is over
    expired(raw, dedup.key("order-42"))
    with dedup.once("order-42") as first:
        assert first


def test_of_many_consumers_at_once_exactly_one_claims(dedup: RedisDedup) -> None:
    start, claimed = threading.Barrier(8), []

    def claim() -> None:
        start.wait(DEADLINE_S)
        for n in range(100):
            with contextlib.suppress(InProgress):
                claimed.append((n, dedup.claim(f"order-{n}")))

    threads = [threading.Thread(target=claim) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(DEADLINE_S)
    assert sorted(n for n, _ in claimed) == list(range(100))


@pytest.mark.parametrize("content", ["a list", "other text"])
def test_a_key_that_holds_something_else(dedup: RedisDedup, raw: redis.Redis, content: str) -> None:
    key = dedup.key("order-42")
    token = dedup.claim("order-42")
    assert token is not None
    raw.delete(key)
    raw.lpush(key, content) if content == "a list" else raw.set(key, content)
    for call in (lambda: dedup.claim("order-42"), lambda: dedup.done("order-42", token)):
        with pytest.raises(StoreDamaged, match=f"'{key}' holds no mark"):
            call()
    assert raw.exists(key) == 1


def test_without_redis() -> None:
    dedup = RedisDedup(redis.Redis(host=LOOPBACK, port=free_port(), socket_timeout=1))
    with pytest.raises(StoreUnavailable), dedup.once("order-42"):
        pytest.fail("the block ran")


def test_redis_goes_away_during_the_effect(namespace: str) -> None:
    with RedisServer() as server:
        dedup = RedisDedup(server.url, prefix=namespace)
        with pytest.raises(Oops), dedup.once("failed"):
            server.kill()
            raise Oops  # not hidden by the claim that cannot be taken back
        server.start()
        with pytest.raises(StoreUnavailable), dedup.once("done"):
            server.kill()
        dedup.close()


def test_the_rights_that_it_needs(raw: redis.Redis, redis_url: str, namespace: str) -> None:
    rights = ["+eval", "+get", "+set", "+del", "+pttl"]
    raw.acl_setuser(
        namespace, enabled=True, reset=True, nopass=True, keys=[f"{namespace}:*"], commands=rights
    )
    try:
        with redis.Redis.from_url(redis_url, username=namespace, password="x") as limited:
            dedup = RedisDedup(limited, prefix=namespace)
            for expected in (True, False):
                with dedup.once("order-42") as first:
                    assert first is expected
            with pytest.raises(Oops), dedup.once("order-43"):
                raise Oops
            with pytest.raises(StoreDenied):
                RedisDedup(limited, prefix="elsewhere").claim("order-42")
    finally:
        raw.acl_deluser(namespace)


def test_on_a_cluster(cluster_url: str, namespace: str) -> None:
    host, port = cluster_url.partition("://")[2].partition(",")[0].split(":")
    with contextlib.closing(redis.RedisCluster(host=host, port=int(port))) as cluster:
        dedup = RedisDedup(cluster, prefix=namespace)
        for n in range(40):
            with dedup.once(f"order-{n % 20}") as first:
                assert first is (n < 20)


@pytest.fixture
async def async_dedup(redis_url: str, namespace: str) -> AsyncIterator[AsyncRedisDedup]:
    dedup = AsyncRedisDedup(redis_url, prefix=namespace)
    yield dedup
    await dedup.aclose()


async def test_the_async_twin(async_dedup: AsyncRedisDedup, dedup: RedisDedup) -> None:
    async with async_dedup.once("order-42") as first:
        assert first
        with pytest.raises(InProgress):
            dedup.claim("order-42")
        with pytest.raises(InProgress):
            await async_dedup.claim("order-42")
    async with async_dedup.once("order-42") as first:
        assert not first
    assert dedup.claim("order-42") is None
    with pytest.raises(Oops):
        async with async_dedup.once("order-43"):
            raise Oops
    assert await async_dedup.claim("order-43")


async def test_a_cancelled_effect_is_tried_again(async_dedup: AsyncRedisDedup) -> None:
    entered = asyncio.Event()

    async def effect() -> None:
        async with async_dedup.once("order-42"):
            entered.set()
            await asyncio.Event().wait()

    task = asyncio.create_task(effect())
    await asyncio.wait_for(entered.wait(), DEADLINE_S)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    async with async_dedup.once("order-42") as first:
        assert first


async def test_the_async_twin_with_a_given_client(redis_url: str, namespace: str) -> None:
    async with redis_asyncio.Redis.from_url(redis_url, decode_responses=True) as client:
        dedup = AsyncRedisDedup(client, prefix=namespace)
        async with dedup.once("order-42") as first:
            assert first
        await dedup.aclose()  # leaves the client open
        assert await dedup.claim("order-42") is None


# --- The examples of the page


@contextlib.contextmanager
def running(code: str) -> Iterator[subprocess.Popen[bytes]]:
    command = [sys.executable, "-c", code]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        try:
            yield process
        finally:
            process.kill()


def test_the_example_with_pika(rabbitmq_url: str, redis_url: str, namespace: str) -> None:
    code = "def send_the_email(body): print(body.decode(), flush=True)\n" + program(
        "effectively-once.md",
        "With Redis: pika",
        {
            "amqp://localhost": rabbitmq_url,
            '"redis://localhost:6379/0"': f'"{redis_url}", prefix="{namespace}"',
            '"emails"': f'"{namespace}"',
        },
    )
    with contextlib.closing(
        pika.BlockingConnection(pika.URLParameters(rabbitmq_url))
    ) as connection:
        channel = connection.channel()
        channel.queue_declare(namespace)
        for id in ("one", "one", "two", "one", "three"):
            properties = pika.BasicProperties(headers={"delaybridge-id": id})
            channel.basic_publish("", namespace, id.encode(), properties)
        with running(code) as consumer:
            assert consumer.stdout is not None
            printed = [consumer.stdout.readline() for _ in range(3)]
        assert printed == [b"one\n", b"two\n", b"three\n"]
        channel.queue_delete(namespace)


def test_the_example_with_confluent_kafka(
    kafka_url: str, postgres_url: str, namespace: str
) -> None:
    from confluent_kafka import Producer

    server = kafka_url.partition("://")[2]
    url = sqlalchemy.make_url(postgres_url)
    changes = {
        "localhost:9092": server,
        '"invoices"': f'"{namespace}"',
        "dbname=billing": conninfo(url),
        '"billing",': f'"{namespace}",',
    }
    code = program("effectively-once.md", "With SQL: confluent-kafka", changes)
    producer = Producer({"bootstrap.servers": server})
    for id in ("one", "one", "two", "one", "three"):
        producer.produce(namespace, id, headers={"delaybridge-id": id}, partition=0)
    assert producer.flush(DEADLINE_S) == 0
    with psycopg.connect(conninfo(url), autocommit=True) as connection:
        connection.execute("CREATE TABLE invoices (body bytea)")

        def rows() -> list[tuple[Any, ...]]:
            return connection.execute("SELECT body FROM invoices").fetchall()

        with running(code):
            until(lambda: (b"three",) in rows(), lambda: f"rows: {rows()}")
        assert rows() == [(b"one",), (b"two",), (b"three",)]
