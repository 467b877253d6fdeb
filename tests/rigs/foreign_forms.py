"""What other systems store for later, as their own libraries wrote it, put into a Redis by hand."""

from __future__ import annotations

from typing import Any

import redis

# An hour, or two, from 2035 on: no worker takes them during a test.
DUE_MS = 2_051_222_400_000


class Forms:
    """The stored forms of one namespace: each key of it begins with the namespace or has its name.

    BullMQ 6.7; `tests/clients` has a program that writes them.
    """

    def __init__(self, raw: redis.Redis, namespace: str) -> None:
        self.raw: Any = raw
        self.namespace = namespace

    @property
    def delayed(self) -> str:
        """The key of BullMQ's delayed jobs."""
        return f"{self.namespace}:mails:delayed"

    def bullmq(
        self, id: str | bytes, *, at_ms: float = DUE_MS, is_text: bool = False, **fields: Any
    ) -> None:
        """A delayed job of the queue `mails`. fields: of its hash; None takes one away. is_text:
        there is a text where its hash should be."""
        key = f"{self.namespace}:mails:".encode() + (id if isinstance(id, bytes) else id.encode())
        job = {
            "name": "welcome",
            "data": '{"to":"\xe4"}',
            "opts": '{"attempts":0,"delay":3600000}',
            "timestamp": at_ms - 3_600_000,
            "delay": 3_600_000,
            "priority": 0,
            **fields,
        }
        kept = {name: value for name, value in job.items() if value is not None}
        self.raw.zadd(self.delayed, {id: at_ms * 4096 + 7})
        if is_text:
            self.raw.set(key, "")
        elif kept:
            self.raw.hset(key, mapping=kept)

    def dump(self) -> dict[bytes, bytes]:
        """Every key of the system, as it is stored."""
        return {key: self.raw.dump(key) for key in self.raw.scan_iter(f"{self.namespace}:*")}
