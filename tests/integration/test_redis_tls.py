"""Redis over TLS: clients and workers verify the server, and the message is delivered."""

from __future__ import annotations

from pathlib import Path

import pytest

from delaybridge.client import AsyncClient
from delaybridge.errors import StoreUnavailable
from tests.rigs.broker_redis import redis_with_tls
from tests.rigs.crew import CALM, Arrived, Crew
from tests.servers.process import LOOPBACK


async def test_a_message_is_delivered_and_a_server_of_unknown_authority_gets_none(
    namespace: str, arrived: Arrived, tmp_path: Path
) -> None:
    with redis_with_tls(tmp_path) as (port, authority):
        url = f"rediss://{LOOPBACK}:{port}"
        async with Crew(f"{url}?ssl_ca_certs={authority}", namespace) as crew:
            crew.start(lease=CALM)
            await arrived.all(await crew.schedule(1, seconds=0.1))
        async with AsyncClient(url, namespace=namespace, brokers={"memory": "memory://"}) as wary:
            with pytest.raises(StoreUnavailable, match="(?i)certificate"):
                await wary.schedule("memory:q", b"x", delay="1h")
