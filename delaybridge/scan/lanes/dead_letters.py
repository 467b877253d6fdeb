"""Dead letters: given-up messages that are published to another destination of their broker.

The message stays in flight until its letter is confirmed, and is then settled. If the letter cannot
be published, the message is buried with both reasons.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

from delaybridge.amqp.decoding import entries
from delaybridge.amqp.encoding import encode_table
from delaybridge.message import Destination, Record
from delaybridge.scan.leases.copy import Copy

if TYPE_CHECKING:
    from delaybridge.scan.lanes.lane import Lane

HEADERS = ("x-dead-reason", "x-dead-destination", "x-dead-attempts")
_NAMES = frozenset(name.encode() for name in HEADERS)


class Letter(Copy):
    """A copy whose attempts are used up, to be published to the dead-letter destination.

    reason: why it was given up. maybe: its last publish may have been delivered.
    """

    __slots__ = ("maybe", "reason")

    def __init__(
        self, copy: Copy, to: str, destination: Destination, lane: Lane, reason: str, *, maybe: bool
    ) -> None:
        record = _addressed(copy.record, to, reason, copy.attempt)
        lot, id, score, tried = copy.lot, copy.id, copy.score, copy.tried
        super().__init__(lot, id, score, tried, record, destination, lane)
        self.stamp, self.reason, self.maybe = copy.stamp, reason, maybe


def _addressed(record: Record, to: str, reason: str, attempts: int) -> Record:
    """The record as it is published there. Its headers replace those of an earlier letter."""
    text = reason.encode(errors="replace").decode()
    values = dict(zip(HEADERS, (text, record.destination, str(attempts)), strict=True))
    headers = record.headers
    if isinstance(headers, bytes):
        kept = [headers[at:end] for name, at, _, end in entries(headers) if name not in _NAMES]
        table = b"".join([*kept, encode_table(values.items())])
        return replace(record, destination=to, headers=table)
    kept_pairs = [(name, value) for name, value in headers if name not in values]
    added = [(name, value.encode()) for name, value in values.items()]
    return replace(record, destination=to, headers=(*kept_pairs, *added), partition=None)
