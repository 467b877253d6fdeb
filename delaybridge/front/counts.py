"""What a front counts and shows of itself: its connections, its nodes, what it changed and refused.

The relay calls these; none does I/O, and none costs a passed message more than an addition.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from heapq import nlargest
from typing import Any

from delaybridge.errors import printable
from delaybridge.events import ClientRefused, Emit, MethodRefused, NodeUnreachable
from delaybridge.histogram import Histogram, Histograms

_RECENT_S = 600.0  # for how long a refusal is shown
_MOST_REFUSED = 20
MOST_SHOWN = 200  # connections in an announcement
_CHARS = 100  # of a text that a client chose
_TEXTS = ("client", "user", "vhost", "product", "name", "node", "state")
_COUNTS = ("channels", "received", "sent")


@dataclass(slots=True, eq=False)
class ShownConnection:
    """A client's connection, as operators see it. The relay keeps it up to date.

    client: its address, as HOST:PORT. user, vhost, product, name: as it said; name: its
    connection_name. node: the broker's, as HOST:PORT. channels: open now. received, sent: bytes
    from the client and to it. state: opening, running or draining. held_for: what its frames wait
    for, as `declare orders`; empty: nothing. held_s: since when, on the monotonic clock.
    """

    client: str
    opened_s: float
    user: str = ""
    vhost: str = ""
    product: str = ""
    name: str = ""
    node: str = ""
    channels: int = 0
    received: int = 0
    sent: int = 0
    state: str = "opening"
    held_for: str = ""
    held_s: float = 0.0

    def announcement(self, now_s: float) -> dict[str, Any]:
        """What the front announces of it. now_s: on the monotonic clock."""
        said: dict[str, Any] = {name: getattr(self, name) for name in _COUNTS}
        said |= {name: printable(getattr(self, name))[:_CHARS] for name in _TEXTS}
        said["open_ms"] = int(1000 * (now_s - self.opened_s))
        if self.held_for:
            said["held_for"] = printable(self.held_for)[:_CHARS]
            said["held_ms"] = int(1000 * (now_s - self.held_s))
        return said


class FrontCounts:
    """The counts of one front process, since it started. connections: those that are open.

    nodes: of the broker, as HOST:PORT -> why the last connect failed, None if it did not.
    """

    def __init__(self, emit: Emit, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._emit, self._monotonic = emit, monotonic
        self.connections: set[ShownConnection] = set()
        self.nodes: dict[str, str | None] = {}
        self._refused: dict[str, tuple[float, str]] = {}  # what -> when last, and why
        self._totals: defaultdict[tuple[str, ...], int] = defaultdict(int)
        self._histograms = Histograms()

    def opened(self, client: str) -> ShownConnection:
        """A client has connected: what is known of it from now on."""
        connection = ShownConnection(client, self._monotonic())
        self.connections.add(connection)
        self._totals["front_accepted_connections_total",] += 1
        return connection

    def closed(self, connection: ShownConnection) -> None:
        """It is closed, on both sides. Safe to call twice."""
        if connection in self.connections:
            self.released(connection)
            self.connections.remove(connection)
            self._totals["front_bytes_total", "to_broker"] += connection.received
            self._totals["front_bytes_total", "to_client"] += connection.sent

    def client_refused(self, reason: str, text: str) -> None:
        """A client was sent away. reason: one word of few; text: who, why, and the remedy."""
        self._totals["front_connections_refused_total", reason] += 1
        self._note(f"clients ({reason})", text)
        self._emit(ClientRefused(reason=f"{reason}: {text}"))

    def rewrote(self, what: str) -> None:
        """A method was rewritten. what: declare, delete, bind, unbind, or name (to a consumer)."""
        self._totals["front_methods_rewritten_total", what] += 1

    def method_refused(self, exchange: str, code: int, text: str) -> None:
        """A client's channel was closed by the front because of a method on this exchange."""
        self._totals["front_methods_refused_total", str(code)] += 1
        self._note(exchange, text)
        self._emit(MethodRefused(source=exchange, reason=f"{code}: {text}"))

    def _note(self, what: str, why: str) -> None:
        self._refused.pop(what, None)
        self._refused[what] = self._monotonic(), why
        if len(self._refused) > _MOST_REFUSED:
            del self._refused[next(iter(self._refused))]

    def refused(self) -> dict[str, str]:
        """What was refused in the last ten minutes, by exchange or kind of reason: why."""
        since_s = self._monotonic() - _RECENT_S
        return {what: why for what, (at_s, why) in self._refused.items() if at_s > since_s}

    def held(self, connection: ShownConnection, what: str) -> None:
        """The frames of this client wait from now on. what: for what, as `declare orders`."""
        if not connection.held_for:
            connection.held_s = self._monotonic()
        connection.held_for = what

    def released(self, connection: ShownConnection) -> None:
        """They wait no more. Safe to call twice."""
        if connection.held_for:
            waited_s = self._monotonic() - connection.held_s
            self._histograms["front_held_seconds",].observe(1000 * waited_s)
            connection.held_for = ""

    def reached(self, node: str) -> None:
        """A connect to this node of the broker succeeded."""
        self.nodes[node] = None

    def unreachable(self, node: str, reason: str) -> None:
        """A connect to this node failed."""
        self.nodes[node] = reason
        self._totals["front_connect_failures_total", node] += 1
        self._emit(NodeUnreachable(source=node, reason=reason))

    def totals(self) -> dict[tuple[str, ...], int]:
        """The totals for metrics; they never fall."""
        found = self._totals.copy()
        found["front_bytes_total", "to_broker"] += sum(c.received for c in self.connections)
        found["front_bytes_total", "to_client"] += sum(c.sent for c in self.connections)
        return found

    def histograms(self) -> Mapping[tuple[str, ...], Histogram]:
        """How long the frames of clients waited."""
        return {key: histogram.copy() for key, histogram in self._histograms.items()}

    def gauges(self) -> dict[str, float]:
        """What is so now: connections, their channels, how many wait, and the longest of these."""
        now_s = self._monotonic()
        waits_s = [now_s - each.held_s for each in self.connections if each.held_for]
        return {
            "front_connections": len(self.connections),
            "front_channels": sum(each.channels for each in self.connections),
            "front_held_connections": len(waits_s),
            "front_longest_held_seconds": max(waits_s, default=0.0),
        }

    def announcements(self) -> list[dict[str, Any]]:
        """The connections for an announcement: those that wait first, then the busiest."""
        now_s = self._monotonic()
        most = nlargest(
            MOST_SHOWN, self.connections, lambda c: (bool(c.held_for), c.received + c.sent)
        )
        return [each.announcement(now_s) for each in most]
