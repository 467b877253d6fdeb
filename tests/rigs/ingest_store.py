"""A small model of the scripts that ingest calls: their answers in plain words."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from delaybridge.message import Answer
from delaybridge.store.protocol.layout import Epoch, Layout
from delaybridge.store.protocol.record import ForDeadSet
from delaybridge.store.protocol.verbs import RedisCommand, Steps

BUCKETS = 4
BIRTH = "born"
CREATED, DUPLICATE, CONFLICT = Answer.CREATED, Answer.DUPLICATE, Answer.CONFLICT
IN_FLIGHT, UNKNOWN, CANCELLED = Answer.IN_FLIGHT, Answer.UNKNOWN, Answer.CANCELLED


@dataclass
class ModelBucket:
    """One bucket, as far as these scripts use it."""

    is_born: bool = False
    messages: dict[str, tuple[bytes, bytes]] = field(default_factory=dict)  # id -> stamp, payload
    dead: set[str] = field(default_factory=set)
    read: dict[str, int] = field(default_factory=dict)  # source -> highest offset
    cancelled: set[tuple[bytes, str]] = field(default_factory=set)  # stamp, id


class ModelStore:
    """The scripts' answers in plain words. fired: ids that were handed to the broker."""

    def __init__(self, are_born: Sequence[bool] = (True,) * BUCKETS, birth: str = BIRTH) -> None:
        self.birth = birth
        self.buckets = [ModelBucket(is_born) for is_born in are_born]
        self.fired: set[str] = set()
        self.called: list[RedisCommand[Any]] = []  # the scripts, in the order they came

    def complete(self, steps: Steps[Any]) -> Any:
        try:
            asked = next(steps)
            while True:
                asked = steps.send([self.run(command) for command in asked])
        except StopIteration as done:
            return done.value

    def run(self, command: RedisCommand[Any]) -> Any:
        if command.is_plain:
            return {} if command.name == "INFO" else (Layout((Epoch(0, BUCKETS),)), self.birth)
        self.called.append(command)
        bucket = self.buckets[bucket_of(command)]
        if command.name == "cancel":
            args: list[Any] = [*command.args[1:]]
            return self._cancel(bucket, *args)
        at = {"schedule": (2, 3), "quarantine": (1, 2)}[command.name]
        birth, first = (command.args[i] for i in at)
        if birth != BIRTH or not (bucket.is_born or first):
            return None
        bucket.is_born = True
        if command.name == "quarantine":
            parts: Any = zip(*[iter(command.args[3:])] * len(ForDeadSet._fields), strict=True)
            return [self._quarantine(bucket, *part[:4]) for part in parts]
        return self._schedule(bucket, command.args)

    def _schedule(self, bucket: ModelBucket, args: Sequence[Any]) -> list[tuple[Answer, int]]:
        policy, source, offsets = args[1], args[6], struct.unpack(f">{len(args[7]) // 8}Q", args[7])
        count, answers = args[9], []
        ids, entries = args[10 : 10 + count], args[10 + count : 10 + 2 * count]
        for i, (id, entry) in enumerate(zip(ids, entries, strict=True)):
            stamp, payload = entry[:4], entry[4:]
            answer = DUPLICATE
            if not source or offsets[i] > bucket.read.get(source, -1):
                answer = self._one(bucket, policy, stamp, id, payload)
            answers.append((answer, 0))
            if source:
                if answer in (CONFLICT, IN_FLIGHT):
                    break
                bucket.read[source] = max(bucket.read.get(source, -1), offsets[i])
        return answers

    def _one(
        self, bucket: ModelBucket, policy: int, stamp: bytes, id: str, payload: bytes
    ) -> Answer:
        old = bucket.messages.get(id)
        if old is None or (policy == 2 and id not in self.fired and old[0] != stamp):
            bucket.messages[id] = (stamp, payload)
            return CREATED if old is None else Answer.REPLACED
        if old[0] == stamp:
            return CREATED
        if id in self.fired:
            return IN_FLIGHT
        return DUPLICATE if policy == 1 or old[1] == payload else CONFLICT

    def _quarantine(
        self, bucket: ModelBucket, stamp: bytes, id: str, payload: bytes, reason: str
    ) -> Answer:
        old = bucket.messages.setdefault(id, (stamp, payload))
        if old == (stamp, payload):
            bucket.dead.add(id)
        return CREATED if old[0] == stamp else CONFLICT

    def _cancel(self, bucket: ModelBucket, stamp: bytes, id: str, *more: Any) -> Answer:
        source, offset, otherwise, *_ = more
        if (stamp, id) in bucket.cancelled:
            return CANCELLED
        if source:
            if bucket.read.get(source, -1) >= offset:
                return UNKNOWN
            if not otherwise or id in bucket.messages:
                bucket.read[source] = offset
        if id not in bucket.messages:
            return UNKNOWN
        if id in self.fired:
            return IN_FLIGHT
        del bucket.messages[id]
        bucket.dead.discard(id)
        bucket.cancelled.add((stamp, id))
        return CANCELLED

    def pending(self) -> dict[str, bytes]:
        return {id: body for bucket in self.buckets for id, (_, body) in bucket.messages.items()}


def bucket_of(command: RedisCommand[Any]) -> int:
    return int(command.keys[0].partition("}")[0].rpartition(":")[2])
