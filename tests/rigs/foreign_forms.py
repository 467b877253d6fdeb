"""What other systems store for later, as their own libraries wrote it, put into a Redis by hand."""

from __future__ import annotations

import json
from typing import Any

import redis

BULLMQ, SIDEKIQ, ASYNQ = "bullmq", "sidekiq", "asynq"
# An hour, or two, from 2035 on: no worker takes them during a test.
DUE_MS = 2_051_222_400_000
TASK = b'\n\x0cmail:welcome\x12\x0b{"to":"\xc3\xa4"}\x1a\x06own:id"\x02q1(\x190\x02@\x88\x0e'


class Forms:
    """The stored forms of one namespace: each key of it begins with the namespace or has its name.

    BullMQ 6.7, Sidekiq 6.4, asynq 0.26; `tests/clients` has programs that write them.
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

    def sidekiq(self, member: dict[str, Any] | bytes, key: str = "schedule") -> None:
        """A scheduled job, or any bytes in its place."""
        job = {"retry": True, "queue": "low", "class": "Welcome", "args": ["\xe4", {"n": 1}]}
        raw = member if isinstance(member, bytes) else json.dumps(job | member).encode()
        self.raw.zadd(f"{self.namespace}:{key}", {raw: DUE_MS / 1000 + 0.065})

    def asynq(self, id: str | bytes, task: bytes | None = TASK, kind: str = "scheduled") -> None:
        """A task of the queue that is named after the namespace."""
        base = f"asynq:{{{self.namespace}}}:"
        self.raw.zadd(f"{base}{kind}", {id: DUE_MS // 1000})
        if task is not None:
            name = id if isinstance(id, bytes) else id.encode()
            self.raw.hset(f"{base}t:".encode() + name, mapping={"msg": task, "state": kind})

    def dump(self) -> dict[bytes, bytes]:
        """Every key of the systems, as it is stored."""
        keys = [
            *self.raw.scan_iter(f"{self.namespace}:*"),
            *self.raw.scan_iter(f"asynq:{{{self.namespace}}}:*"),
        ]
        return {key: self.raw.dump(key) for key in keys}
