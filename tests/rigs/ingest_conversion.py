"""Delay exchanges of an earlier form, and the command that converts them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from pika.adapters.blocking_connection import BlockingChannel

from delaybridge.ingest.rabbitmq import conversion
from tests.rigs.broker_rabbitmq import ManagedNode
from tests.rigs.command_line import Result, runner
from tests.rigs.ingest_rabbitmq import Exchanges

EARLIER_QUEUE = {"x-queue-type": "quorum", "x-delivery-limit": 2**31 - 1}
Convert = Callable[..., Any]


def converter(
    node: ManagedNode,
    redis_url: str,
    namespace: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> Convert:
    """`delaybridge ingest rabbitmq --convert` for a namespace of four buckets."""
    monkeypatch.setenv("DELAYBRIDGE_BUCKETS", "4")
    monkeypatch.setattr(conversion, "ROUTED_S", 0.01)
    monkeypatch.setattr(conversion, "_TRIES", 10)
    flags = ["--json", "--redis", redis_url, "--namespace", namespace]

    async def call(*delays: str, management: str = node.management, url: str = node.url) -> Result:
        monkeypatch.setenv("DELAYBRIDGE_INGEST__MANAGEMENT", management)
        run = runner([*flags, "--broker", f"rabbitmq={url}"], capsys, monkeypatch)
        words = [word for delay in delays for word in ("--convert", delay)]
        return await asyncio.to_thread(run, "ingest", "rabbitmq", *words)

    return call


async def earlier(
    rabbit: Exchanges, delay: str, type: str = "topic", *, queue: bool = True, **arguments: Any
) -> None:
    """An exchange as an earlier version declared it, its queue, and an exchange bound to it."""

    def declare(channel: BlockingChannel) -> None:
        channel.exchange_declare(delay, type, durable=True, arguments=arguments)
        channel.exchange_declare(f"{delay}-first", "headers", durable=True)
        match = {"x-match": "all", "h": 1}
        channel.exchange_bind(delay, f"{delay}-first", "a.key", match)
        if queue:
            channel.queue_declare(delay, durable=True, arguments=EARLIER_QUEUE)
            channel.queue_bind(delay, delay, "#")

    await rabbit.do(declare)
