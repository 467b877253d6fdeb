"""Jobs: the progress of bulk verbs, kept in Redis so that every process can tell it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

import msgspec

from delaybridge.store.protocol import keys, replies
from delaybridge.store.protocol.verbs import RedisCommand, plain

KEPT, KEPT_MS = 100, 86_400_000
SILENT_MS = 10_000  # a job that is not written for so long has lost its process
RUNNING, INTERRUPTED = "running", "interrupted"


class Job(msgspec.Struct, omit_defaults=True):
    """A bulk verb and how far it is. Times in epoch ms, by the clock of its process.

    state: running, done, failed (then `error` says why), stopped, or interrupted: its process has
    gone; the same request again does the rest. matched: messages found so far (by a restore: looked
    at). answers: how many of them got each answer. notes: on what was left out or refused: how many
    messages, and the first of them. tenant: of the token that asked.
    """

    id: str
    verb: str
    state: str
    started_ms: int
    updated_ms: int
    matched: int = 0
    answers: dict[str, int] = {}
    error: str = ""
    tenant: str = ""
    notes: list[str] = []


def write(namespace: str, job: Job) -> RedisCommand[int]:
    """Keep it as it is now."""
    return plain("HSET", keys.jobs(namespace), job.id, msgspec.json.encode(job), parse=int)


def read(namespace: str) -> RedisCommand[Mapping[bytes, bytes]]:
    """All of them as they are stored; for `understood`."""
    return plain("HGETALL", keys.jobs(namespace), parse=replies.read_mapping)


def forget(namespace: str, ids: list[str]) -> RedisCommand[int]:
    """Remove the jobs with these ids."""
    return plain("HDEL", keys.jobs(namespace), *ids, parse=int)


def understood(stored: Mapping[bytes, bytes], now_ms: int) -> list[Job]:
    """The jobs in the reply to `read`, the latest first; what cannot be read is left out."""
    found: list[Job] = []
    for text in stored.values():
        try:
            job = msgspec.json.decode(text, type=Job)
        except (msgspec.MsgspecError, UnicodeDecodeError):
            continue
        if job.state == RUNNING and now_ms - job.updated_ms > SILENT_MS:
            job.state = INTERRUPTED
        found.append(job)
    return sorted(found, key=lambda job: -job.started_ms)


def outdated(jobs: Iterable[Job], now_ms: int) -> list[str]:
    """The ids of those that are not kept any longer. jobs: the latest first.

    Of each tenant as many are kept: none can push out another's.
    """
    found, counts = list[str](), Counter[str]()
    for job in jobs:
        counts[job.tenant] += 1
        is_old = now_ms - job.updated_ms > KEPT_MS or counts[job.tenant] > KEPT
        if is_old and job.state != RUNNING:
            found.append(job.id)
    return found
