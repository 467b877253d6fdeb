"""BullMQ (and Bull before it), Sidekiq and asynq: jobs in sorted sets of Redis, by their time.

BullMQ: `bull:QUEUE:delayed`, and a hash for each job. Sidekiq: `schedule` and `retry`, with jobs as
JSON. asynq: `asynq:{QUEUE}:scheduled` and `:retry`, and a hash with a protobuf for each task.
"""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Iterator, Sequence
from typing import Any

from delaybridge.carry.line import Line
from delaybridge.errors import MessageError
from delaybridge.foreign.redis_source import Lines, Member, RedisSource
from delaybridge.foreign.source import read, since

# Of a job's hash of BullMQ. The attempts are `atm`, in Bull and before BullMQ 5 `attemptsMade`.
_FIELDS = ("name", "data", "atm", "attemptsMade", "parentKey", "rjk")
_BITS = 12  # below the milliseconds of a score; not in the first versions of Bull
_MOST_MS = 10**14
# Fields of TaskMessage in asynq's internal/proto/asynq.proto.
_TYPE, _PAYLOAD, _RETRIED, _HEADERS = 1, 2, 6, 15
_SIZES = {1: 8, 5: 4}  # wire type -> bytes


class BullMQ(RedisSource):
    """Delayed jobs, those that wait for a retry among them."""

    def keys(self) -> Iterator[tuple[bytes, str]]:
        """The delayed jobs of each queue."""
        before, after = f"{self.prefix or 'bull'}:".encode(), b":delayed"
        keys = [before + queue.encode() + after for queue in self.queues]
        for key in keys or sorted({*self.redis.scan_iter(before + b"*" + after, 1000, "zset")}):
            name = key.removeprefix(before).removesuffix(after)
            yield key, name.decode(errors="backslashreplace")

    def page(self, key: bytes, queue: str, members: list[Member]) -> Lines:
        """The jobs of these ids."""
        base = key.removesuffix(b"delayed")
        rows = self.together(*(("HMGET", base + id, *_FIELDS) for id, _ in members))
        for (id, score), row in zip(members, rows, strict=True):
            yield read(key, id, self._job, base, queue, id, score, row)

    def _job(
        self, base: bytes, queue: str, id: bytes, score: float, row: Sequence[bytes | None]
    ) -> Line:
        name, data, attempts, former, parent, repeats = row
        if name is None or data is None:
            raise MessageError("no_job", "name", "its hash has no name or no data")
        if parent is not None:
            what = "a child of a flow, whose parent waits for it; let BullMQ run it"
            raise MessageError("flow", "parentKey", what)
        if repeats is not None:
            raise MessageError("repeats", "rjk", "it repeats; make a recurring message")
        due_ms = score if score < _MOST_MS else score // 2**_BITS
        known = base.decode(), queue, id.decode(), name.decode(), due_ms
        return self.job(*known, int(attempts or former or 0), data=json.loads(data))


class Sidekiq(RedisSource):
    """Scheduled jobs, and those that wait for a retry, of all queues."""

    def keys(self) -> Iterator[tuple[bytes, str]]:
        """Both sets; prefix: of the gem redis-namespace."""
        for name in ("schedule", "retry"):
            yield (f"{self.prefix}:{name}" if self.prefix else name).encode(), ""

    def page(self, key: bytes, queue: str, members: list[Member]) -> Lines:
        """The jobs in these members."""
        for member, score in members:
            yield read(key, since(b'"jid"', member), self._job, member, score)

    def _job(self, member: bytes, score: float) -> Line | None:
        job = json.loads(member)
        name = job.get("wrapped") or job["class"]  # by ActiveJob
        attempts = job["retry_count"] + 1 if "retry_count" in job else 0
        queue, id, data = job.get("queue", "default"), job["jid"], job["args"]
        if self.queues and queue not in self.queues:
            return None
        return self.job("sidekiq:", queue, id, name, score * 1000, attempts, data=data)


class Asynq(RedisSource):
    """Scheduled tasks, and those that wait for a retry."""

    def keys(self) -> Iterator[tuple[bytes, str]]:
        """Both sets of each queue."""
        queues = [queue.encode() for queue in self.queues]
        for queue in queues or sorted({*self.redis.sscan_iter("asynq:queues")}):
            name = queue.decode(errors="backslashreplace")
            yield b"asynq:{%b}:scheduled" % queue, name
            yield b"asynq:{%b}:retry" % queue, name

    def page(self, key: bytes, queue: str, members: list[Member]) -> Lines:
        """The tasks of these ids."""
        base = key[: key.rindex(b":")] + b":t:"
        rows = self.together(*(("HGET", base + id, "msg") for id, _ in members))
        for (id, score), message in zip(members, rows, strict=True):
            yield read(key, id, self._task, id, queue, score, message)

    def _task(self, id: bytes, queue: str, score: float, message: bytes | None) -> Line:
        if message is None:
            raise MessageError("no_job", "msg", "its hash is missing, or has no msg")
        pairs = [*_fields(message)]
        fields: dict[int, Any] = dict(pairs)
        maps = [dict(_fields(value)) for number, value in pairs if number == _HEADERS]
        headers = {each.get(1, b"").decode(): each.get(2, b"").decode() for each in maps}
        payload = fields.get(_PAYLOAD, b"")
        try:
            data = {"data": json.loads(payload)}
        except ValueError:
            data = {"data_base64": b64encode(payload).decode()}
        known = f"asynq:{queue}:", queue, id.decode(), fields[_TYPE].decode(), score * 1000
        return self.job(*known, fields.get(_RETRIED, 0), headers, **data)


def _fields(data: bytes) -> Iterator[tuple[int, Any]]:
    """Number and value of each field of a protobuf message; an error if it is something else."""
    at = 0
    while at < len(data):
        tag, at = _varint(data, at)
        if not tag & 7:
            value, at = _varint(data, at)
            yield tag >> 3, value
            continue
        size, at = (_SIZES[tag & 7], at) if tag & 7 != 2 else _varint(data, at)
        yield tag >> 3, data[at : at + size]
        at += size
    if at > len(data):
        raise ValueError("its protobuf is cut off")


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while (byte := data[at]) >= 0x80 and shift < 64:
        value, shift, at = value | (byte & 0x7F) << shift, shift + 7, at + 1
    return value | byte << shift, at + 1
