"""BullMQ, and Bull before it: `bull:QUEUE:delayed`, by time, and a hash for each job."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence

from delaybridge.carry.line import Line
from delaybridge.errors import MessageError
from delaybridge.foreign.redis_source import Lines, Member, RedisSource
from delaybridge.foreign.source import read

# Of a job's hash. The attempts are `atm`, in Bull and before BullMQ 5 `attemptsMade`.
_FIELDS = ("name", "data", "atm", "attemptsMade", "parentKey", "rjk")
_BITS = 12  # below the milliseconds of a score; not in the first versions of Bull
_MOST_MS = 10**14


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
        for (id, score), row in zip(members, self.hashes(base, members, _FIELDS), strict=True):
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
        given = id.decode(), name.decode(), int(attempts or former or 0), json.loads(data)
        job = dict(zip(("queue", "id", "name", "attempts", "data"), (queue, *given), strict=True))
        text = json.dumps(job, allow_nan=False, ensure_ascii=False, separators=(",", ":"))
        body = text.encode(errors="backslashreplace")  # half an emoji, as JavaScript cuts it
        due_ms = score if score < _MOST_MS else score // 2**_BITS
        known = base.decode() + job["id"], queue, job["name"], due_ms
        return self.found(*known, body_base64=body)
