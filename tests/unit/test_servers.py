"""Which server of a Cluster a command goes to."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from delaybridge.settings.redis_servers import Address, RedisServers
from delaybridge.store.redis.servers import Clustered

MASTERS = [("127.0.0.1", port) for port in (7001, 7002, 7003)]


def test_what_any_server_may_answer_is_asked_of_one_that_answers() -> None:
    silent = {MASTERS[1]}

    def open_wire(address: Address) -> Any:
        return SimpleNamespace(address=address, is_silent=lambda *_: address in silent)

    servers = Clustered[Any](RedisServers.parse("redis+cluster://127.0.0.1:7001"), open_wire)
    servers._set_table([MASTERS[slot % 3] for slot in range(16384)])
    for node in servers.nodes():
        servers.wire_at(node)  # each was asked before
    assert {servers.wire_at("").address for _ in range(200)} == {MASTERS[0], MASTERS[2]}
    # and if all are silent, one of them is asked again
    silent.update(MASTERS)
    assert servers.wire_at("").address in MASTERS
