"""kombu's drop-in over Redis, by the broker of kind kombu."""

from __future__ import annotations

import base64
import json
import time
import uuid
from collections.abc import Iterator
from datetime import datetime
from decimal import Decimal
from typing import Any

import kombu
import pytest
import redis as redis_py

from delaybridge import Client, ConfigError, MessageError
from delaybridge.intercept.kombu import Producer
from delaybridge.message import OWN_HEADERS
from tests.rigs.rabbitmq_site import Site
from tests.rigs.waiting import until


@pytest.fixture(scope="module")
def redis_queues(redis_url: str) -> str:
    """The Redis database in which kombu keeps its queues."""
    return redis_url.rpartition("/")[0] + "/1"


@pytest.fixture(scope="module")
def site(
    redis_url: str, rabbitmq_url: str, redis_queues: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Site]:
    folder = tmp_path_factory.mktemp("site")
    with Site(folder, redis_url, rabbitmq_url, kombu=f"kombu+{redis_queues}") as site:
        yield site


class TestQueuesInRedis:
    """A transport whose messages kombu routes itself: `kombu:QUEUE`."""

    @pytest.fixture
    def connection(self, redis_queues: str) -> Iterator[kombu.Connection]:
        with kombu.Connection(redis_queues) as connection:
            yield connection

    @pytest.fixture
    def queues(self, redis_queues: str) -> Iterator[redis_py.Redis]:
        with redis_py.Redis.from_url(redis_queues) as queues:
            yield queues

    def take(self, queues: redis_py.Redis, queue: str) -> dict[str, Any]:
        """The next message as it is stored."""
        found: Any = until(lambda: queues.rpop(queue), f"a message in {queue}")
        message: dict[str, Any] = json.loads(found)
        return message

    @pytest.mark.parametrize(
        ("body", "arguments"),
        [
            pytest.param({"a": [1, "é"]}, {}, id="json"),
            pytest.param("x" * 1000, {"compression": "zlib"}, id="compressed"),
            pytest.param(b"\x00\xff", {"content_type": "image/png"}, id="bytes"),
            pytest.param(
                "x",
                {
                    "headers": {
                        "text": "é",
                        "double": 1.9,
                        "int64": 2**63 - 1,
                        "none": None,
                        "when": datetime(2030, 1, 2, 3, 4, 5, 678),
                        "decimal": Decimal("1.50"),
                        "uuid": uuid.UUID(int=7),
                        "tuple": (1, [2, {"a": 3}]),
                    }
                },
                id="headers of every type",
            ),
            pytest.param(
                "x",
                {"correlation_id": "c", "reply_to": "back", "message_id": "é-2"},
                id="properties",
            ),
        ],
    )
    def test_a_delayed_message_arrives_as_kombu_would_have_sent_it(
        self,
        site: Site,
        connection: kombu.Connection,
        queues: redis_py.Redis,
        body: Any,
        arguments: Any,
    ) -> None:
        queue = f"q-{uuid.uuid4().hex}"
        kombu.Producer(connection).publish(body, queue, **arguments)
        receipt = Producer(connection, client=site.client).publish(
            body, queue, **arguments, delay=0.3
        )
        direct, delayed = self.take(queues, queue), self.take(queues, queue)
        assert time.time() * 1000 >= receipt.due_ms
        own = {name: delayed["headers"].pop(name) for name in OWN_HEADERS}
        assert own == dict(zip(OWN_HEADERS, (receipt.id, receipt.due_ms, 1), strict=True))
        for message in (direct, delayed):
            del message["properties"]["delivery_tag"]
        assert delayed == direct
        assert base64.b64decode(direct["body"])

    def test_an_exchange_leads_to_its_queue(
        self, site: Site, connection: kombu.Connection, queues: redis_py.Redis
    ) -> None:
        name = f"q-{uuid.uuid4().hex}"
        exchange = kombu.Exchange(name, "topic")
        queue = kombu.Queue(name, exchange, "a.*")
        producer = Producer(connection, exchange, client=site.client)
        producer.publish("x", "a.b", declare=[queue], delay=0)
        assert base64.b64decode(self.take(queues, name)["body"]) == b"x"

    def test_a_message_that_would_not_go_to_exactly_one_queue_is_refused(
        self, site: Site, connection: kombu.Connection
    ) -> None:
        name = f"q-{uuid.uuid4().hex}"
        fanout = kombu.Exchange(name, "fanout")
        producer = Producer(connection, client=site.client)
        for exchange in (fanout, kombu.Exchange("without-listeners", "direct")):
            with pytest.raises(MessageError) as caught:
                producer.publish(
                    "x", "key", exchange=exchange, declare=[kombu.Queue(name, fanout)], delay=1
                )
            assert (caught.value.code, caught.value.field) == ("bad_destination", "exchange")

    def test_a_delayed_message_is_cancelled_by_its_id(
        self, site: Site, connection: kombu.Connection
    ) -> None:
        receipt = Producer(connection, client=site.client).publish("x", "q", delay="1h")
        stored = site.client.get(receipt.id)
        assert stored is not None and stored.destination == "kombu:q"
        assert site.client.cancel(receipt.id) == "cancelled"

    def test_a_missing_broker_of_kind_kombu_is_a_config_error(
        self, site: Site, queues: redis_py.Redis
    ) -> None:
        brokers = {"rabbitmq": site.url}
        with (
            Client(site.redis_url, brokers=brokers) as client,
            kombu.Connection("memory://") as connection,
            pytest.raises(ConfigError, match="of kind kombu"),
        ):
            Producer(connection, client=client).publish("x", "q", delay=1)
