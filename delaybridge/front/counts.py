"""What a front counts and shows of itself: its connections, its nodes, what it changed and refused.

The relay calls these; none does I/O, and none costs a passed message anything.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from heapq import nlargest
from types import SimpleNamespace
from typing import Any

from delaybridge.events import Emit, FrontTrouble
from delaybridge.histogram import Histograms
from delaybridge.worker.service import ProcessReport

MOST_SHOWN = 200  # connections in an announcement
_MOST_TROUBLES, _RECENT_S = 20, 600.0
_CHARS = 100  # of a text that a client chose
_NOTHING = SimpleNamespace(received=0)
_TEXTS = ("client", "user", "vhost", "product", "name", "node", "state", "held_for")


class ShownConnection:
    """A client's connection, as operators see it. The relay keeps it up to date.

    client: its address, as HOST:PORT. user, vhost, product, name: as it said; name: its
    connection_name. node: the broker's, as HOST:PORT. channels: open now. state: opening, running
    or draining. held_for: what its frames wait for, as `declare orders`; empty: nothing. held_s,
    opened_s: since when, on the monotonic clock. sides: the client's and the broker's, each with
    the number of bytes that it `received`.
    """

    __slots__ = (*_TEXTS, "channels", "held_s", "opened_s", "sides")

    def __init__(self, client: str, opened_s: float) -> None:
        self.client, self.opened_s, self.state = client, opened_s, "opening"
        self.user = self.vhost = self.product = self.name = self.node = self.held_for = ""
        self.channels, self.held_s = 0, 0.0
        self.sides: tuple[Any, Any] = (_NOTHING, _NOTHING)

    def announcement(self, now_s: float) -> dict[str, Any]:
        """What the front announces of it. now_s: on the monotonic clock."""
        return {name: getattr(self, name)[:_CHARS] for name in _TEXTS} | {
            "channels": self.channels,
            "received": self.sides[0].received,
            "sent": self.sides[1].received,
            "open_ms": int(1000 * (now_s - self.opened_s)),
            "held_ms": int(1000 * (now_s - self.held_s)) if self.held_for else None,
        }


class FrontCounts:
    """The counts of one front process, since it started. connections: those that are open.

    nodes: of the broker, as HOST:PORT -> why the last connect failed, None if it did not.
    """

    def __init__(self, emit: Emit, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._emit, self._monotonic = emit, monotonic
        self.connections: set[ShownConnection] = set()
        self.nodes: dict[str, str | None] = {}
        self._held: set[ShownConnection] = set()
        self._troubles: dict[str, tuple[float, str]] = {}  # what -> when last, and why
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
            _pass(self._totals, [connection.sides])

    def client_refused(self, reason: str, text: str) -> None:
        """A client was sent away. reason: one word of few; text: who, why, and the remedy."""
        self._totals["front_connections_refused_total", reason] += 1
        self._refused(f"clients: {reason}", text)

    def method_refused(self, exchange: str, code: int, text: str) -> None:
        """A client's channel was closed because of a method on this exchange: by the front, or by
        the broker because rights are missing on what is behind it."""
        self._totals["front_methods_refused_total", str(code)] += 1
        self._refused(exchange, f"{code}: {text}")

    def _refused(self, what: str, why: str) -> None:
        self._emit(FrontTrouble(source=what, reason=why))
        self._troubles.pop(what, None)
        self._troubles[what] = self._monotonic(), why
        if len(self._troubles) > _MOST_TROUBLES:
            del self._troubles[next(iter(self._troubles))]

    def held(self, connection: ShownConnection, what: str) -> None:
        """The frames of this client wait from now on. what: for what, as `declare orders`."""
        connection.held_for, connection.held_s = what, self._monotonic()
        self._held.add(connection)

    def released(self, connection: ShownConnection) -> None:
        """They wait no more. Safe to call twice."""
        if connection.held_for:
            waited_s = self._monotonic() - connection.held_s
            self._histograms["front_held_seconds",].observe(1000 * waited_s)
            connection.held_for = ""
            self._held.remove(connection)

    def reached(self, node: str) -> None:
        """A connect to this node of the broker succeeded."""
        self.nodes[node] = None

    def unreachable(self, node: str, reason: str) -> None:
        """A connect to this node failed. Said once, until another reason comes."""
        if self.nodes.get(node) != reason:
            self._emit(FrontTrouble(source=node, reason=reason))
        self.nodes[node] = reason

    def report(self, said: ProcessReport) -> ProcessReport:
        """The report of its process with what it counted; totals never fall."""
        totals, now_s = self._totals.copy(), self._monotonic()
        _pass(totals, [each.sides for each in self.connections])
        waits_s = (now_s - each.held_s for each in self._held)
        gauges: dict[str, float] = {"front_connections": len(self.connections)}
        gauges["front_longest_held_seconds"] = max(waits_s, default=0.0)
        histograms = {key: each.copy() for key, each in self._histograms.items()}
        return said._replace(
            totals=totals, histograms=histograms, front=gauges, nodes={**self.nodes}
        )

    def announcement(self) -> dict[str, Any]:
        """What the front announces: of its clients those that wait first, then the busiest."""
        now_s, shown = self._monotonic(), self.connections
        busiest = nlargest(
            MOST_SHOWN, shown - self._held, lambda c: c.sides[0].received + c.sides[1].received
        )
        most = [*self._held, *busiest][:MOST_SHOWN]
        recent = [each for each in self._troubles.items() if now_s - each[1][0] < _RECENT_S]
        return {
            "nodes": self.nodes,
            "refused": {what: why for what, (_, why) in recent},
            "open": len(shown),
            "clients": [each.announcement(now_s) for each in most],
        }


def _pass(totals: defaultdict[tuple[str, ...], int], sides: Sequence[tuple[Any, Any]]) -> None:
    """Add the bytes that these connections have passed on."""
    totals["front_bytes_total", "to_broker"] += sum(client.received for client, _ in sides)
    totals["front_bytes_total", "to_client"] += sum(broker.received for _, broker in sides)
