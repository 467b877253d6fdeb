"""`delaybridge size` and a real Redis: the bytes of a pending message are those that it says."""

from __future__ import annotations

import pytest
import redis

from delaybridge import Client, Message
from delaybridge.operate.sizing.sizing import Demand, needs
from delaybridge.settings.settings import Settings
from tests.servers.redis import RedisServer

COUNT, CALL = 20_000, 2000
OFF = 0.06  # tables that double, and allocators with other size classes


@pytest.mark.parametrize(
    ("body", "headers"), [(500, 0), pytest.param(100, 4, marks=pytest.mark.slow)]
)
def test_a_pending_message_takes_as_many_bytes_as_size_says(body: int, headers: int) -> None:
    pairs = {f"x-header-{number:03}": "v" * 16 for number in range(headers)}
    message = Message("rabbitmq:orders/created", b"x" * body, headers=pairs, delay="1d")
    with (
        RedisServer() as server,
        redis.Redis.from_url(server.url) as plain,
        Client(server.url, brokers={"rabbitmq": "amqp://h"}, timeout_s=15) as client,
    ):
        client.schedule_many([message])
        before = plain.info("memory")["used_memory"]
        for _ in range(COUNT // CALL):
            client.schedule_many([message] * CALL)
        each = (plain.info("memory")["used_memory"] - before) / COUNT
    said = needs(Demand(COUNT, 1, body, headers), Settings())["redis_message_bytes"]
    assert each == pytest.approx(said["about"], rel=OFF)
