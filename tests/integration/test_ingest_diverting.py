"""A delay exchange diverts: what has a delay header is stored, all else reaches the target at once."""

from __future__ import annotations

from tests.rigs.ingest import Entrance
from tests.rigs.ingest_rabbitmq import Exchanges, described


async def test_without_a_delay_header_the_broker_passes_a_message_on_untouched(
    open_entrance: Entrance, rabbit: Exchanges, namespace: str
) -> None:
    await open_entrance.stop_all()
    await rabbit.send(f"{namespace}.delay", [("a.b", b"1", described(headers={"h": 1}))])
    (raw,) = await rabbit.take_raw(namespace, 1)
    assert (raw.routing_key, raw.body, raw.headers) == ("a.b", b"1", {"h": 1})
