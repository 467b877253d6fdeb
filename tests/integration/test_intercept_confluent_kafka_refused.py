"""confluent_kafka's drop-in: the store takes some messages of a batch, and not the others."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
from confluent_kafka import KafkaError

from delaybridge import Client, Limits
from delaybridge.errors import LedgerUnavailable, NotDurable, StoreUnavailable
from delaybridge.intercept.confluent_kafka import Producer
from delaybridge.store.namespace import quota
from delaybridge.store.protocol import verbs
from tests.rigs.bucket import Owner
from tests.rigs.delivering import Delivering
from tests.rigs.flaky import Flaky
from tests.rigs.kafka_site import Reports
from tests.rigs.waiting import until

OwnerOf = Callable[[str], Owner]
BUCKETS, FULL = 4, Limits(destination_messages=1)
BAD = verbs.bucket_of(b"bad", BUCKETS)
assert BAD == verbs.bucket_of(b"x", BUCKETS)
assert BAD not in [verbs.bucket_of(id, BUCKETS) for id in (b"good", b"later", b"next")]


@pytest.fixture
def free(redis_url: str, namespace: str) -> Iterator[Client]:
    """A client without limits."""
    with Client(redis_url, namespace=namespace, buckets=BUCKETS) as client:
        client.schedule("kafka:x", b"", delay="1h", id="x")  # the bucket is there
        yield client


@pytest.fixture
def flaky(
    redis_url: str, namespace: str, free: Client, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Flaky]:
    """It says that there are two servers."""
    with Client(redis_url, namespace=namespace) as client:
        monkeypatch.setattr(client._store, "nodes", lambda: ["a", "b"])
        yield Flaky(client, namespace, BAD, monkeypatch)


def producing(client: Client, **config: Any) -> Producer:
    """A producer whose broker does not matter."""
    ends = {"message.timeout.ms": 20_000}  # a failed test does
    own = {"bootstrap.servers": "127.0.0.1:1", "log_level": 0, **ends, **config}
    return Producer(own, client=client)


def produce(producer: Producer, told: Reports, *ids: str, to: str = "t", body: str = "") -> None:
    for id in ids:
        headers = {"delaybridge-id": id}
        producer.produce(to, body, headers=headers, on_delivery=told, delay="1h")


def until_told(producer: Producer, reports: Reports, *codes: int | None) -> None:
    def are_told() -> bool:
        producer.poll(0)
        return len(reports.codes) >= len(codes)

    until(are_told, lambda: f"{reports.codes}")
    assert reports.codes == [*codes]


def deliver(client: Client, owner_of: OwnerOf, id: str) -> None:
    client.reschedule(id, delay=0)
    Delivering(owner_of(id)).settle()


def test_what_is_over_a_limit_waits_and_the_others_are_stored_once(
    redis_url: str, namespace: str, free: Client, owner_of: OwnerOf, monkeypatch: pytest.MonkeyPatch
) -> None:
    good, bad = Reports(), Reports()
    monkeypatch.setattr(quota, "_EVERY_S", 0.0)
    free.schedule("kafka:full", b"", delay="1h", id="old")
    with Client(redis_url, namespace=namespace, limits=FULL) as client:
        flaky = Flaky(client, namespace, BAD, monkeypatch)
        with producing(client) as producer:
            with producer._outbox._changed:
                produce(producer, bad, "bad", to="full")
                produce(producer, good, "good")
            until_told(producer, good, None)
            deliver(free, owner_of, "good")
            produce(producer, good, "later")
            until_told(producer, good, None, None)
            flaky.asked.clear()  # each call looks how many are pending
            until(lambda: len(flaky.asked) >= 3, "it is tried again")
            assert (free.get("good"), bad.codes) == (None, [])
            free.cancel("old")
            until_told(producer, bad, None)


def test_what_stays_over_a_limit_is_given_up_and_the_next_of_its_id_goes_on(
    redis_url: str, namespace: str, free: Client
) -> None:
    reports = Reports()
    free.schedule("kafka:full", b"", delay="1h", id="old")
    limited = partial(Client, redis_url, namespace=namespace, limits=FULL)
    with limited() as client, producing(client, **{"message.timeout.ms": 1500}) as producer:
        produce(producer, reports, "bad", to="full")
        until(lambda: producer._outbox._late)
        produce(producer, reports, "bad", body="next")
        until_told(producer, reports, KafkaError._MSG_TIMED_OUT, None)
    assert "limits.destination_messages" in reports.all[0][0].str()  # type: ignore[union-attr]
    assert free.get("bad").body == b"next"  # type: ignore[union-attr]


@pytest.mark.parametrize("error", [StoreUnavailable(), LedgerUnavailable()])
def test_while_one_server_is_silent_messages_for_others_are_stored_once(
    flaky: Flaky, free: Client, owner_of: OwnerOf, error: Exception
) -> None:
    good, bad = Reports(), Reports()
    flaky.fail(error)
    with producing(flaky.client) as producer:
        with producer._outbox._changed:
            produce(producer, good, "good")
            produce(producer, bad, "bad")
        until_told(producer, good, None)
        deliver(free, owner_of, "good")
        until(lambda: flaky.asked.count("schedule") >= 3, "it is tried again")
        produce(producer, good, "later")
        until_told(producer, good, None, None)
        assert (free.get("good"), bad.codes) == (None, [])
        flaky.error = None
        until_told(producer, bad, None)


def test_a_message_is_not_sent_again_to_a_server_that_confirms_nothing(
    flaky: Flaky, free: Client
) -> None:
    good, bad = Reports(), Reports()
    flaky.fail(NotDurable())
    with producing(flaky.client) as producer:
        with producer._outbox._changed:
            produce(producer, good, "good")
            produce(producer, bad, "bad")
        until_told(producer, good, None)
        until(lambda: flaky.asked.count("SET") >= 2, "it is asked again")
        produce(producer, good, "later")
        until_told(producer, good, None, None)
        assert flaky.asked.count("schedule") == 1
        flaky.error = None
        until_told(producer, bad, None)
    assert flaky.asked.count("schedule") == 2


def test_while_the_only_server_is_silent_no_more_are_sent_to_it(
    flaky: Flaky, free: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each would be of unknown outcome, and come twice if it is executed later."""
    monkeypatch.setattr(flaky.client._store, "nodes", lambda: [""])
    reports = Reports()
    flaky.fail(StoreUnavailable())
    with producing(flaky.client) as producer:
        produce(producer, reports, "bad")
        until(lambda: flaky.asked.count("schedule") >= 1)
        produce(producer, reports, "good")
        until(lambda: flaky.asked.count("schedule") >= 3, "it is tried again")
        assert free.get("good") is None
        flaky.error = None
        until_told(producer, reports, None, None)


def test_a_purge_tells_apart_what_was_sent_and_what_was_not(flaky: Flaky) -> None:
    sent, unsent = Reports(), Reports()
    flaky.fail(StoreUnavailable())
    with producing(flaky.client) as producer:
        produce(producer, sent, "bad")
        until(lambda: flaky.asked.count("schedule") >= 1)
        produce(producer, unsent, "bad")
        producer.purge(in_flight=False)
        until_told(producer, unsent, KafkaError._PURGE_QUEUE)
        assert (len(producer), sent.codes) == (1, [])
        producer.purge(in_queue=False)
        until_told(producer, sent, KafkaError._PURGE_INFLIGHT)
