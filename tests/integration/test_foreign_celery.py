"""`message import --from celery-...`: tasks with an ETA in the queues of Celery itself."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from datetime import UTC, datetime, timedelta
from typing import Any

import pika
import pytest
import redis
from kombu import Exchange, Queue
from kombu.transport.native_delayed_delivery import calculate_routing_key

from delaybridge import Client
from tests.rigs.celery_stock import Stock
from tests.rigs.command_line import Result, Run

Import = Callable[..., Result]
ETA = datetime(2035, 1, 1, tzinfo=UTC)
ETA_MS = 2_051_222_400_000


ON_RABBITMQ = pytest.mark.parametrize("stock", ["rabbitmq"], indirect=True)
ON_REDIS = pytest.mark.parametrize("stock", ["redis"], indirect=True)


@pytest.fixture(params=["rabbitmq", "redis"])
def stock(request: pytest.FixtureRequest, namespace: str) -> Iterator[Stock]:
    kind, _, queue_type = request.param.partition("-")
    url = request.getfixturevalue(f"{kind}_url")
    with closing(Stock(kind, url, namespace, queue_type or "classic")) as stock:
        yield stock


@pytest.fixture
def imported(run: Run, stock: Stock) -> Import:
    def call(*more: str) -> Result:
        where = [] if "--queue" in more else ["--queue", stock.queue]
        where += [] if "--prefix" in more else ["--prefix", stock.prefix]
        return run("--json", "message", "import", stock.url, "--from", stock.system, *where, *more)

    return call


def summary(result: Result) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(result.err.splitlines()[-1])["summary"]
    return found


def shared(pairs: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    """Without what names the process that sent it, and what is made when it is delivered."""
    return {n: v for n, v in pairs if n not in ("origin", "reply_to", "delivery_info")}


def until_empty(channel: Any, queue: str) -> Iterator[dict[str, Any]]:
    """The headers of all messages of a queue, which are not acknowledged."""
    while (message := channel.basic_get(queue))[0] is not None:
        yield message[1].headers


def left(result: Result) -> list[str]:
    lines = [json.loads(line) for line in result.err.splitlines()]
    return sorted(each["left_out"]["field"] for each in lines if "left_out" in each)


def test_an_imported_task_is_the_message_that_install_would_have_stored(
    imported: Import, stock: Stock, caller: Client, redis_url: str
) -> None:
    # Given tasks with and without an ETA, and one of them in delaybridge, too
    id, other, now = (str(uuid.uuid4()) for _ in range(3))
    sent = {"args": ["\xe4"], "kwargs": {"n": 2**40}, "task_id": id, "eta": ETA, "priority": 6}
    stock.app.send_task("remind", **sent)
    stock.app.send_task("now", task_id=now)
    stock.app.send_task("remind", task_id=other, eta=ETA + timedelta(days=1))
    brokers = {"rabbitmq" if stock.kind == "rabbitmq" else "kombu": stock.broker}
    with Client(redis_url, namespace=f"{stock.queue}-2", brokers=brokers) as client:
        stock.with_install(client).send_task("remind", **sent)
        expected = client.get(id)
    # When they are imported, then the message is the same
    assert summary(imported("--dry-run")) == {"created": 2}
    assert caller.get(id) is None
    assert summary(imported()) == {"created": 2}
    found = caller.get(id)
    assert found is not None and expected is not None
    assert (found.due_ms, found.body) == (expected.due_ms, expected.body) == (ETA_MS, found.body)
    assert shared(found.headers) == shared(expected.headers)
    assert shared(found.properties.items()) == shared(expected.properties.items())
    # And only with --remove they are taken away there, no other and none twice
    assert summary(imported()) == {"duplicate": 2}
    assert imported("--remove").error["field"] == "--yes"
    assert summary(imported("--remove", "--yes")) == {
        "duplicate": 2,
        "removed": 2,
    }
    assert summary(imported()) == {}
    with stock.app.connection_for_read() as connection:
        message = connection.default_channel.basic_get(stock.queue, no_ack=True)
        assert message.headers["id"] == now
        assert connection.default_channel.basic_get(stock.queue, no_ack=True) is None


@ON_REDIS
def test_what_a_worker_holds_is_imported_and_bad_envelopes_stay(
    imported: Import, stock: Stock, caller: Client, raw: redis.Redis
) -> None:
    # Given a task that a killed worker holds, one of each priority, and bad entries
    for number in range(4):
        stock.app.send_task(
            "remind", task_id=f"{stock.queue}{number}", eta=ETA, priority=3 * number
        )
    held, index = f"{stock.prefix}unacked", f"{stock.prefix}unacked_index"
    envelope: Any = raw.rpop(f"{stock.prefix}{stock.queue}")
    exchange = [json.loads(envelope), stock.queue]
    raw.hset(held, mapping={"tag": json.dumps([*exchange, stock.queue]), "bad": "[1]"})
    raw.hset(held, "of another queue", json.dumps([*exchange, "other"]))
    raw.zadd(index, {"tag": 1, "bad": 2, "of another queue": 3})
    message = json.loads(envelope)
    headers = {**message["headers"], "id": f"{stock.queue}9"}
    bad = [
        b"\xff",
        b"{}",
        b"[" * 100_000,
        json.dumps({**message, "headers": {}}),
        json.dumps({**message, "headers": {**headers, "eta": "soon"}}),
        json.dumps({**message, "headers": {**headers, "id": None}}),
        json.dumps({**message, "headers": headers, "body": "="}),
    ]
    raw.rpush(f"{stock.prefix}{stock.queue}", *bad)
    # When all are imported and removed, then the bad ones stay, as they are
    done = imported("--remove", "--yes")
    assert summary(done) == {"created": 4, "removed": 4, "bad": 8}
    assert left(done) == ["entry"] * 6 + ["id", "task"]
    assert caller.stats().delayed == 4
    assert raw.lrange(f"{stock.prefix}{stock.queue}", 0, -1) == [
        each if isinstance(each, bytes) else each.encode() for each in bad
    ]
    assert {*raw.hkeys(held)} == {*raw.zrange(index, 0, -1)} == {b"bad", b"of another queue"}


@ON_REDIS
def test_a_page_that_shrinks_while_it_is_read_hides_no_task(
    imported: Import, stock: Stock, raw: redis.Redis
) -> None:
    stock.app.send_task("remind", task_id="first", eta=ETA)
    (envelope,) = raw.lrange(f"{stock.prefix}{stock.queue}", 0, -1)
    stay = envelope.replace(b'"eta": "2035', b'"eta": "1935')
    tasks = [envelope.replace(b"first", b"%s-%d" % (stock.queue.encode(), n)) for n in range(350)]
    stays = [stay.replace(b"first", b"stays-%d" % n) for n in range(350)]
    raw.rpush(
        f"{stock.prefix}{stock.queue}",
        *(x for pair in zip(tasks, stays, strict=True) for x in pair),
    )
    done = imported("--remove", "--yes")
    assert summary(done) == {"created": 351, "removed": 351, "bad": 350}
    assert raw.lrange(f"{stock.prefix}{stock.queue}", 0, -1) == stays


@pytest.mark.parametrize("stock", ["rabbitmq-quorum"], indirect=True)
def test_a_quorum_queue_does_not_count_what_is_read_as_failed_and_keeps_its_order(
    imported: Import, stock: Stock
) -> None:
    ids = [f"{stock.queue}{number}" for number in range(5)]
    for id in ids:
        stock.app.send_task("remind", task_id=id, eta=ETA)
    for _ in range(2):
        assert imported("--dry-run").code == 0
    with pika.BlockingConnection(pika.URLParameters(stock.url)) as connection:
        got = [*until_empty(connection.channel(), stock.queue)]
    assert [headers["id"] for headers in got] == ids
    assert {headers.get("x-delivery-count") for headers in got} == {None}


@ON_RABBITMQ
def test_tasks_in_native_delayed_delivery_go_where_it_would_have_put_them(
    imported: Import, stock: Stock, caller: Client
) -> None:
    # Given a task in one of the queues of a native delay with a prefix of its own
    level, key = f"{stock.queue}_celery_delayed_11", calculate_routing_key(3600, "reminders")
    with stock.app.connection_for_write() as connection:
        exchange = Exchange(level, type="topic", auto_delete=True)
        waiting = Queue(level, exchange, "#", expires=60)(connection.default_channel)
        waiting.declare()
        options = {"exchange": exchange, "routing_key": key, "headers": {"x-death": [{"count": 1}]}}
        stock.app.send_task("remind", task_id=stock.queue, eta=ETA, queue=None, **options)
    asked = "--prefix", stock.queue, "--queue", "none"
    to = imported(*asked, "--to", "rabbitmq:{queue}/{name}", "--dry-run").objects
    assert [each["destination"] for each in to] == ["rabbitmq:reminders/remind"]
    done = imported(*asked)
    assert (left(done), summary(done)["created"]) == (["--queue"], 1)
    found = caller.get(stock.queue)
    assert found is not None
    assert found.destination == f"rabbitmq:{stock.queue}_celery_delayed_delivery/{key}"
    assert not [name for name, _ in found.headers if name.startswith("x-")]


@ON_RABBITMQ
def test_a_queue_that_workers_consume_is_named(imported: Import, stock: Stock) -> None:
    with pika.BlockingConnection(pika.URLParameters(stock.url)) as connection:
        channel = connection.channel()
        channel.queue_declare(stock.queue, durable=True, arguments={"x-queue-type": "classic"})
        channel.basic_consume(stock.queue, lambda *_: None)
        done = imported()
    assert (done.code, left(done)) == (2, ["consumers"])


@ON_RABBITMQ
def test_an_import_stops_before_a_message_has_been_read_so_often_that_it_is_dropped(
    imported: Import, stock: Stock, caller: Client
) -> None:
    options = {"eta": ETA, "headers": {"x-delivery-count": 10}}
    stock.app.send_task("remind", task_id=stock.queue, **options)
    done = imported("--remove", "--yes")
    assert (done.code, done.error["field"], caller.stats().delayed) == (5, "URL", 0)
