"""Spans of what a worker publishes: each begins a trace, and links to those of its messages.

A message keeps the context of its producer, so a consumer's trace goes on from there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, cast
from urllib.parse import urlsplit

from delaybridge.message import Delivery
from delaybridge.publish import Outcome, Verdict
from delaybridge.scan.lanes.lane import Copy, Lane
from delaybridge.tracing import Tracing, carried, parts


class _Open:
    """A span that waits for the outcomes of its messages."""

    __slots__ = ("failed", "late_ms", "left", "span")

    def __init__(self, span: Any, left: int) -> None:
        self.span, self.left, self.failed, self.late_ms = span, left, 0, 0


class PublishSpans:
    """The spans of one worker. Called for batches only, and only if the worker traces."""

    def __init__(self, tracing: Tracing, worker: str, url_of: Callable[[str], str | None]) -> None:
        """url_of: the URL of a configured broker."""
        self._tracing, self._worker, self._url_of = tracing, worker, url_of
        self._open: dict[Copy, _Open] = {}  # by each message without an outcome

    def publish(self, lane: Lane, copies: Sequence[Copy]) -> None:
        """Hand the copies to their publisher, in spans that end with the last outcome."""
        assert lane.publisher is not None
        common = self._common(lane)
        fields = self._tracing.fields
        for part in parts(copies):
            started = _Open(self._start(lane, part, common, fields), len(part))
            for copy in part:
                self._open[copy] = started
        with self._tracing.suppressed():
            lane.publisher.publish(copies)

    def outcome(self, deliveries: Sequence[Delivery], outcome: Outcome, now_ms: int) -> None:
        """The publishes of these messages ended so."""
        for copy in cast(Sequence[Copy], deliveries):
            opened = self._open.pop(copy, None)
            if opened is None:
                continue
            opened.left -= 1
            opened.late_ms = max(opened.late_ms, now_ms - copy.late_from_ms)
            if outcome.verdict is not Verdict.CONFIRMED:
                opened.failed += 1
                if opened.failed == 1:
                    error = outcome.reason.partition(":")[0].partition(" ")[0]
                    self._tracing.failed(opened.span, error or outcome.verdict, outcome.reason)
            if opened.left == 0:
                self._end(opened)

    def _end(self, opened: _Open) -> None:
        opened.span.set_attribute("delaybridge.lateness_ms", opened.late_ms)
        if opened.failed:
            opened.span.set_attribute("delaybridge.failed_count", opened.failed)
        opened.span.end()

    def _common(self, lane: Lane) -> dict[str, Any]:
        """The attributes of every span of the lane."""
        common: dict[str, Any] = {
            "messaging.system": lane.kind,
            "messaging.operation.type": "send",
            "messaging.client.id": self._worker,
            "delaybridge.worker": self._worker,
        }
        server = urlsplit((self._url_of(lane.name) or "").partition(",")[0])
        if server.hostname:
            common["server.address"] = server.hostname
        if server.hostname and server.port:
            common["server.port"] = server.port
        return common

    def _start(
        self, lane: Lane, copies: Sequence[Copy], common: dict[str, Any], fields: Iterable[str]
    ) -> Any:
        """One span; its links carry what differs from message to message."""
        links = []
        for copy in copies:
            if carrier := carried(copy.record.headers, fields):
                about = {
                    "messaging.message.id": copy.given_id,
                    "delaybridge.due_ms": copy.due_ms,
                    "delaybridge.attempt": copy.attempt,
                }
                if (link := self._tracing.link(carrier, about)) is not None:
                    links.append(link)
        attributes = {**common, "messaging.batch.message_count": len(copies)}
        destination = copies[0].destination
        name = destination.address or destination.routing_key
        keys = {copy.destination.routing_key for copy in copies}
        if destination.kind == "rabbitmq" and len(keys) == 1:
            attributes["messaging.rabbitmq.destination.routing_key"] = destination.routing_key
            if destination.address and destination.routing_key:
                name = f"{destination.address}:{destination.routing_key}"
        attributes["messaging.destination.name"] = name
        if len(copies) == 1:
            attributes |= _of_one(copies[0])
        label = destination.address or destination.routing_key
        return self._tracing.start(
            "publish", label, "CLIENT", attributes, links=links, is_root=True
        )


def _of_one(copy: Copy) -> dict[str, Any]:
    """The attributes of a span that publishes one message."""
    record = copy.record
    found: dict[str, Any] = {
        "messaging.message.id": copy.given_id,
        "delaybridge.message.id": copy.id,
        "delaybridge.due_ms": copy.due_ms,
        "delaybridge.attempt": copy.attempt,
        "delaybridge.bucket": copy.session.bucket.number,
    }
    if copy.destination.kind == "kafka" and record.key is not None:
        found["messaging.kafka.message.key"] = record.key.decode(errors="backslashreplace")
    if record.partition is not None:
        found["messaging.destination.partition.id"] = str(record.partition)
    return found
