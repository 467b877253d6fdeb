"""What the command line tells an operator while messages do not go out, with a real worker."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pika
import pytest
import redis
from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from delaybridge import Client, Message, cli
from delaybridge.message import Answer, State
from delaybridge.store import keys
from delaybridge.times import format_time
from tests.rigs.waiting import DEADLINE_S, until

Tell = Callable[..., tuple[int, str]]


@pytest.fixture
def client(redis_url: str, namespace: str) -> Iterator[Client]:
    with Client(redis_url, namespace=namespace) as client:
        yield client


@pytest.fixture
def tell(redis_url: str, namespace: str, capsys: pytest.CaptureFixture[str]) -> Tell:
    """Runs a command line in this process: exit code and output."""

    def call(*args: str) -> tuple[int, str]:
        code = cli.main(["--redis", redis_url, "--namespace", namespace, *args])
        return code, capsys.readouterr().out

    return call


@pytest.fixture
def worker(
    redis_url: str, namespace: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[None]:
    """A worker that serves only Redis Streams, in the Redis that holds the messages."""
    monkeypatch.setenv("DELAYBRIDGE_LEASE__RENEW_MS", "200")
    flags = ["--redis", redis_url, "--namespace", namespace, "--broker", redis_url]
    command = [sys.executable, "-m", "delaybridge", *flags, "scan", "--name", "w"]
    with (tmp_path / "log").open("wb") as log, subprocess.Popen(command, stderr=log) as process:
        yield
        process.kill()


@pytest.fixture
def no_stream(redis_url: str, namespace: str) -> str:
    """A destination that refuses every message."""
    with redis.Redis.from_url(redis_url) as connection:
        connection.set(f"{namespace}-text", "not a stream")
    return f"redis:{namespace}-text"


def objects(output: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in output.splitlines()]


@pytest.mark.usefixtures("worker")
def test_a_failing_destination_is_named_with_its_reason_while_its_message_is_retried(
    client: Client, tell: Tell, no_stream: str
) -> None:
    made = client.schedule(no_stream, b"x", delay=0, id="a")

    def failed() -> bool:
        stored = client.get("a")
        return stored is not None and stored.attempts >= 1

    until(failed, "a publish failed")
    stored = client.get("a")
    assert stored is not None
    assert stored.first_due_ms == made.due_ms
    assert stored.failing_ms is not None
    assert stored.failing_ms >= made.due_ms
    _, shown = tell("message", "show", "a")
    assert "last error     wrong_type: " in shown
    assert "first due " in shown
    (data,) = objects(tell("--json", "message", "show", "a")[1])
    assert data["first_due_ms"] == made.due_ms
    assert data["last_error"].startswith("wrong_type: ")
    (listed,) = (
        client.pending(state=State.DELAYED).items or client.pending(state=State.IN_FLIGHT).items
    )
    assert (listed.last_error or "").startswith("wrong_type: ")
    rows = [tell("message", "ls", "--state", state)[1] for state in ("delayed", "in_flight")]
    assert any(format_time(made.due_ms) in row and "wrong_type: " in row for row in rows)

    (counted,) = client.stats().retrying
    assert counted[:3] == (no_stream, "wrong_type", 1)
    (data,) = objects(tell("--json", "stats")[1])
    assert data["retrying"][0]["destination"] == no_stream
    assert "RETRYING" in tell("stats")[1]
    code, printed = tell("health", "--max-overdue", "1h", "--max-retrying-age", "1d")
    assert (code, f"1 message to {no_stream} failing for " in printed) == (0, True)
    code, printed = tell("health", "--max-retrying-age", "0s")
    assert code == 1
    assert f"1 message to {no_stream} failing for " in printed
    found = objects(tell("--json", "doctor")[1])
    (warned,) = [each["text"] for each in found if each["about"] == "retrying"]
    assert no_stream in warned
    assert "wrong_type" in warned


@pytest.mark.usefixtures("worker")
def test_a_parked_message_says_why_and_a_broker_that_no_worker_serves_is_named(
    client: Client, tell: Tell
) -> None:
    client.schedule("kafka:orders", b"x", delay=0, id="a")

    def is_told() -> bool:
        return any(each.destination == "kafka:" for each in client.stats().troubles)

    until(is_told, "the worker has announced what it parks")
    stored = client.get("a")
    assert stored is not None
    assert (stored.state, stored.attempts) == (State.PARKED, 0)
    assert stored.reason is not None and stored.reason.startswith("no_broker: ")
    assert client.pending(state=State.PARKED).items == [stored]
    assert "no_broker" in tell("message", "ls", "--state", "parked")[1]
    assert "no_broker" in tell("stats")[1]
    warnings = [
        each["text"] for each in objects(tell("--json", "--broker", "eu=memory://", "doctor")[1])
    ]
    assert any(text.startswith("no worker serves broker") and "kafka" in text for text in warnings)
    assert any(text.startswith("no worker serves broker") and " eu." in text for text in warnings)


def test_a_message_parked_in_a_bucket_that_no_worker_holds_says_so(
    client: Client, redis_url: str, namespace: str
) -> None:
    made = client.schedule("kafka:orders", b"x", delay=0, id="a")
    with redis.Redis.from_url(redis_url) as connection:
        due, parked = (keys.bucket_key(namespace, made.bucket, key) for key in ("due", "parked"))
        connection.zadd(parked, dict(connection.zpopmin(due)))
    stored = client.get("a")
    assert stored is not None
    assert (stored.reason or "").startswith("no_worker: ")


def test_an_error_that_an_older_worker_left_behind_is_not_counted(
    client: Client, redis_url: str, namespace: str
) -> None:
    client.stats()
    with redis.Redis.from_url(redis_url) as connection:
        attempts = keys.bucket_key(namespace, 0, "attempts")
        failing = b"1800000000000\nkafka:orders\nrefused: why"
        connection.hset(attempts, mapping={b"settled\0": failing, b"b\0": failing, b"b": b"1:0:"})
    assert [each.messages for each in client.stats().retrying] == [1]


# the dead set


def test_dead_entries_that_cannot_be_read_have_date_and_reason_and_are_not_kicked(
    client: Client, tell: Tell, redis_url: str, namespace: str
) -> None:
    made = [client.schedule("kafka:orders", b"x", delay=3600, id=id) for id in ("gone", "odd")]
    with redis.Redis.from_url(redis_url) as connection:
        for receipt, why in zip(made, ("payload_missing", "undecodable: why"), strict=True):
            name = partial(keys.bucket_key, namespace, receipt.bucket)
            connection.zrem(name("due"), receipt.id)
            connection.zadd(name("dead"), {receipt.id: 1_800_000_000_000})
            connection.hset(name("dead_reason"), receipt.id, why)
        record = connection.hget(name("messages"), "odd")
        assert record is not None
        connection.hset(name("messages"), "odd", record[:13] + b"\xc1")
        connection.hdel(keys.bucket_key(namespace, made[0].bucket, "messages"), "gone")
    listed = tell("dead", "ls")[1].splitlines()
    for id, why in (("gone", "payload_missing"), ("odd", "undecodable: why")):
        (line,) = [line for line in listed if id in line]
        assert line.startswith("2027-01-15T")
        assert line.endswith(why)
        code, shown = tell("dead", "show", id)
        assert (code, why in shown) == (0, True)
        assert tell("dead", "kick", id)[0] == 4
        assert client.kick(id) == Answer.UNREADABLE
        assert client.discard(id) == Answer.DISCARDED


def test_quarantined_messages_are_counted_by_their_code(
    client: Client, tell: Tell, redis_url: str, namespace: str
) -> None:
    codes = ["bad_time", "bad_header", "bad_time"]
    for number, code in enumerate(codes):
        made = client.schedule("kafka:orders", b"x", delay=3600, id=f"m{number}")
        with redis.Redis.from_url(redis_url) as connection:
            name = partial(keys.bucket_key, namespace, made.bucket)
            connection.zrem(name("due"), made.id)
            connection.zadd(name("dead"), {made.id: 1_800_000_000_000})
            connection.hset(name("dead_reason"), made.id, f"ingress:{code} x-delay: why")
    rows = objects(tell("--json", "dead", "ls", "--by-reason")[1])
    assert [(row["reason"], row["count"]) for row in rows] == [
        ("ingress:bad_time", 2),
        ("ingress:bad_header", 1),
    ]


@pytest.mark.parametrize("is_there", [True, False], ids=["confirmed", "refused"])
def test_a_given_up_message_goes_to_the_dead_letter_destination_if_that_takes_it(
    is_there: bool,
    client: Client,
    redis_url: str,
    namespace: str,
    no_stream: str,
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    letters = f"{namespace}-letters"
    monkeypatch.setenv("DELAYBRIDGE_DEAD__DEAD_LETTER", f"redis:{letters}")
    monkeypatch.setenv("DELAYBRIDGE_RETRY__MAX_ATTEMPTS", "1")
    request.getfixturevalue("worker")
    with redis.Redis.from_url(redis_url) as connection:
        if not is_there:
            connection.set(letters, "not a stream")
        client.schedule(no_stream, b"x", delay=0, id="a")

        def is_over() -> bool:
            found = client.get("a")
            return found is None or found.state is State.DEAD

        until(is_over, "it left the bucket or was buried")
        stored = client.get("a")
        if not is_there:
            assert stored is not None
            assert "; dead_letter: wrong_type: " in (stored.reason or "")
            return
        assert stored is None
        ((_, fields),) = connection.xrange(letters)
        assert fields[b"body"] == b"x"
        assert fields[b"header:x-dead-destination"] == no_stream.encode()
        assert fields[b"header:x-dead-reason"].startswith(b"wrong_type: ")


class Queue:
    """A queue for dead letters, and a message whose exchange is missing."""

    letters, address, reason = "/{}", "{}-missing/key", "exchange_missing: "
    properties: dict[str, Any] = {}

    def __init__(self, url: str, name: str) -> None:
        self.url, self.name = url, name
        self.do(lambda channel: channel.queue_declare(name, durable=True))

    def do(self, work: Callable[[Any], Any]) -> Any:
        connection = pika.BlockingConnection(pika.URLParameters(self.url))
        try:
            return work(connection.channel())
        finally:
            connection.close()

    def take(self) -> tuple[bytes, dict[str, Any]]:
        _, found, body = self.do(lambda channel: channel.basic_get(self.name, auto_ack=True))
        return body, found.headers


class Topic:
    """A topic for dead letters, and a message for a partition that does not exist."""

    letters, address, reason = "{}", "{}-live", "partition_missing: "
    properties: dict[str, Any] = {"partition": 7}

    def __init__(self, url: str, name: str) -> None:
        self.servers, self.name = {"bootstrap.servers": url.removeprefix("kafka://")}, name
        admin = AdminClient(self.servers)
        made = admin.create_topics([NewTopic(each, 1, 1) for each in (name, f"{name}-live")])
        for each in made.values():
            each.result(DEADLINE_S)

    def take(self) -> tuple[bytes, dict[str, Any]]:
        consumer = Consumer({**self.servers, "group.id": self.name})
        consumer.assign([TopicPartition(self.name, 0, 0)])
        record = consumer.poll(DEADLINE_S)
        consumer.close()
        assert record is not None
        headers = record.headers() or []
        return record.value() or b"", {name: value.decode() for name, value in headers}


@pytest.mark.parametrize(
    ("kind", "place"), [("rabbitmq", Queue), ("kafka", Topic)], ids=["rabbitmq", "kafka"]
)
def test_a_dead_letter_arrives_with_the_reason_it_was_given_up(
    kind: str,
    place: type[Queue | Topic],
    client: Client,
    namespace: str,
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    url = request.getfixturevalue({"rabbitmq": "rabbitmq_url", "kafka": "real_kafka_url"}[kind])
    letters, destination = place(url, namespace), f"{kind}:{place.address.format(namespace)}"
    monkeypatch.setenv(f"DELAYBRIDGE_BROKERS__{kind.upper()}", url)
    monkeypatch.setenv("DELAYBRIDGE_DEAD__DEAD_LETTER", f"{kind}:{place.letters.format(namespace)}")
    monkeypatch.setenv("DELAYBRIDGE_RETRY__MAX_ATTEMPTS", "1")
    request.getfixturevalue("worker")
    made = {"headers": {"theirs": "kept"}, "properties": place.properties}
    client.schedule(destination, b"x", delay=0, id="a", **made)

    def is_settled() -> bool:
        found = client.get("a")
        if found is not None and found.state is State.DEAD:
            client.kick("a")  # Kafka loses first records of topics just made, and says so
        return found is None

    until(is_settled, "the letter is confirmed")
    body, headers = letters.take()
    assert body == b"x"
    assert headers.pop("x-dead-reason").startswith(place.reason)
    assert headers["x-dead-destination"] == destination
    assert (headers["x-dead-attempts"], headers["delaybridge-id"]) == ("1", "a")
    assert headers["theirs"] == "kept"


def test_a_worker_drops_dead_messages_that_are_too_old(
    client: Client,
    no_stream: str,
    tell: Tell,
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("DELAYBRIDGE_DEAD__MAX_AGE_S", "0.1")
    monkeypatch.setenv("DELAYBRIDGE_RETRY__MAX_ATTEMPTS", "1")
    request.getfixturevalue("worker")
    client.schedule(no_stream, b"x", delay=0, id="a")
    until(lambda: client.stats().dead_dropped == 1, "it is dropped")
    assert client.get("a") is None
    assert "1 dropped" in tell("stats")[1]


def test_workers_keep_no_more_dead_messages_than_the_limit(
    client: Client,
    no_stream: str,
    tmp_path: Path,
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("DELAYBRIDGE_DEAD__MAX_MESSAGES", "20")  # and 16 buckets
    monkeypatch.setenv("DELAYBRIDGE_RETRY__MAX_ATTEMPTS", "1")
    request.getfixturevalue("worker")
    client.schedule_many(Message(no_stream, b"", delay=0, key=str(n)) for n in range(100))

    def counts() -> tuple[int, int]:
        found = client.stats()
        return found.dead, found.dead_dropped

    until(lambda: sum(counts()) == 100, "all are buried")
    until(lambda: counts() == (20, 80), "those above the bound are dropped")
    log = tmp_path / "log"
    until(lambda: "dead_dropped n=" in log.read_text(), "and that is logged")
