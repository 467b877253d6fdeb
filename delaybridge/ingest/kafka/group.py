"""How an ingest process is a member of its consumer group."""

from __future__ import annotations

from typing import Any

_SESSION_MS = 6000, 300_000  # the shortest and longest that brokers allow by default
_MOST_BYTES = 50 * 2**20  # of one answer: librdkafka's own default
DEFAULTS = {"topic.metadata.refresh.interval.ms": 5000}  # how soon a new topic is found
"""Settings of a member that an option in the broker's URL overrides."""
_FIXED = {
    "partition.assignment.strategy": "cooperative-sticky",
    "enable.auto.offset.store": False,
    "enable.auto.commit": True,
    "auto.commit.interval.ms": 1000,
    # Records lost to retention stop the partition; they are never skipped silently.
    "auto.offset.reset": "error",
    "check.crcs": True,
    "isolation.level": "read_committed",
    "fetch.wait.max.ms": 100,
    "allow.auto.create.topics": False,
}


def member_settings(*, group: str, window_bytes: int, silent_ms: int) -> dict[str, Any]:
    """librdkafka's settings of a member.

    window_bytes: about how much is fetched ahead. silent_ms: a process
    that is silent for longer loses its partitions to others.
    """
    session_ms = min(max(silent_ms, _SESSION_MS[0]), _SESSION_MS[1])
    return {
        **_FIXED,
        "group.id": group,
        "session.timeout.ms": session_ms,
        "heartbeat.interval.ms": session_ms // 4,
        "queued.max.messages.kbytes": min(max(window_bytes // 2**10, 1024), 2**21 - 1),
        "fetch.max.bytes": min(max(window_bytes, 2**20), _MOST_BYTES),
    }
