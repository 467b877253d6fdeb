"""Messages over HTTP while the server is killed: what it answered holds, for a plain consumer."""

from __future__ import annotations

import asyncio
import hashlib
from collections import Counter

import httpx
import pytest

from tests.rigs.bridge import CALM_LEASE_MS, Bridge, MakeBridge
from tests.rigs.history import Promise
from tests.rigs.serve import Server
from tests.rigs.waiting import DEADLINE_S, until_async

MESSAGES, CLIENTS = 600, 40
KILLED_AFTER = (150, 350)  # answers
DELAYS = ("0ms", "300ms", "1s", "3s")


class Load:
    """Messages to post: half have an id and are posted once; half have an Idempotency-Key, and are
    posted until they are answered. 503 is no answer: the server has no connection to Redis yet."""

    def __init__(self, bridge: Bridge, server: Server, destination: str) -> None:
        self._bridge, self._server, self._destination = bridge, server, destination
        self._numbers = iter(range(MESSAGES))
        self.unanswered: list[str] = []
        self.cut = 0  # connections, in the middle of a call

    async def run(self) -> None:
        async with httpx.AsyncClient(
            base_url=self._server.url, timeout=DEADLINE_S, verify=False
        ) as client:
            await asyncio.gather(*(self._post_all(client) for _ in range(CLIENTS)))

    async def _post_all(self, client: httpx.AsyncClient) -> None:
        for number in self._numbers:
            body = f"message {number}"
            message = {
                "destination": self._destination, "body": body,
                "delay": DELAYS[number // 2 % len(DELAYS)],
            }  # fmt: skip
            if number % 2:
                found = await self._until_answered(client, message, f"key {number}")
            else:
                message["id"] = f"m{number}"
                found = await self._once(client, message, {})
                if found is None:
                    self.unanswered.append(message["id"])
            if found is not None:
                assert found.status_code in (200, 201), found.text
                made = found.json()
                sha = hashlib.sha1(body.encode()).hexdigest()
                promise = Promise(made["id"], self._destination, made["due_ms"], sha)
                self._bridge.promises[made["id"]] = promise

    async def _until_answered(
        self, client: httpx.AsyncClient, message: dict[str, str], key: str
    ) -> httpx.Response:
        while (found := await self._once(client, message, {"Idempotency-Key": key})) is None:
            pass
        return found

    async def _once(
        self, client: httpx.AsyncClient, message: dict[str, str], headers: dict[str, str]
    ) -> httpx.Response | None:
        await self._server.answers.wait()
        try:
            found = await client.post("/v1/messages", json=message, headers=headers)
        except httpx.TransportError:
            self.cut += 1
            return None
        return None if found.status_code == 503 else found


async def posted(bridge: Bridge, destination: str) -> Load:
    """All messages, while the server is killed twice."""
    server = Server(bridge)
    await server.start()
    load = Load(bridge, server, destination)
    async with asyncio.TaskGroup() as group:
        group.create_task(load.run())
        for many in KILLED_AFTER:
            await until_async(lambda many=many: len(bridge.promises) >= many, f"{many} answers")
            await server.kill()
            await server.start()
    return load


@pytest.mark.slow
async def test_every_answered_message_arrives_once_while_the_server_is_killed_twice(
    make_bridge: MakeBridge, rabbitmq_url: str, namespace: str
) -> None:
    # given a worker, a plain consumer and a server
    bridge = make_bridge({"rabbitmq": rabbitmq_url}, lease_ttl_ms=CALM_LEASE_MS)
    destination = bridge.rabbitmq_queue(namespace)
    bridge.start_worker()
    # when 600 messages are posted by 40 clients at once, and the server is killed twice meanwhile
    load = await posted(bridge, destination)
    assert load.cut, "the server was killed in the middle"
    await asyncio.to_thread(bridge.wait_delivered)
    # then each answered one arrives once, unchanged, never early
    verdict = bridge.verdict()
    assert verdict.accepted + len(load.unanswered) == MESSAGES
    assert not (verdict.lost or verdict.duplicates or verdict.early or verdict.changed)
    # and no other arrives twice
    arrived = Counter(each.id for each in bridge.deliveries())
    assert max(arrived.values()) == 1
    assert arrived.keys() <= {*bridge.promises, *load.unanswered}
