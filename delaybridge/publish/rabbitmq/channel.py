"""The outcome of each delivery on a channel, and the deliveries to write next. No I/O.

A publisher confirm names a number, a basic.return carries our `delaybridge-id` header, and a closed
channel names no message. `ExchangeLine` turns the three into exactly one outcome per delivery:

- No two unconfirmed messages on a channel have the same id, so a return's id identifies the message
  for certain. A second one with that id waits, and so does everything after it, to keep the order.
- A broker refuses some messages by closing the channel, and everything unconfirmed on it becomes
  unknown. So the first message on a channel goes alone, and so does each message that was
  unconfirmed when a channel was closed: next time the bad one is alone, and certainly refused.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from itertools import islice

from delaybridge.errors import DETAIL_LIMIT, printable
from delaybridge.message import Delivery, Destination
from delaybridge.publish import CONFIRMED, Fault, Outcome, Verdict
from delaybridge.publish.link import Reports

CAREFUL_MESSAGES = 16  # number sent one at a time after the broker closed a channel
MAX_SUSPECTS = 10_000  # ids remembered per exchange
ACCESS_REFUSED, NOT_FOUND, PRECONDITION_FAILED = 403, 404, 406

NACKED = Outcome(
    Verdict.UNKNOWN, "nacked: a queue did not take it, another one may have", answered=True
)
_COMPACT_AT = 4096
_BATCH = 500  # the broker reads the first while the next are being encoded


class Unconfirmed:
    """Messages written on one channel, by delivery tag. Tags count from 1."""

    def __init__(self) -> None:
        # _slots[i] holds tag _first + i, None once it is settled. All before _head are settled.
        self._slots: list[Delivery | None] = []
        self._first = 1
        self._head = 0
        self._ids: set[str] = set()
        self._batches: deque[tuple[int, float]] = deque()  # (last tag, when written)

    def __len__(self) -> int:
        return len(self._ids)

    def __contains__(self, id: str) -> bool:
        return id in self._ids

    @property
    def last(self) -> Delivery | None:
        """The message written last; None if it is settled."""
        return self._slots[-1] if self._slots else None

    def ids(self) -> set[str]:
        """The ids of all unconfirmed messages."""
        return set(self._ids)

    def is_disjoint(self, ids: Iterable[str]) -> bool:
        """Whether none of the ids is unconfirmed here."""
        return self._ids.isdisjoint(ids)

    def wrote(self, deliveries: Sequence[Delivery], now_s: float) -> None:
        """Record that these were written, in this order, after all earlier ones."""
        self._slots.extend(deliveries)
        self._ids.update([delivery.given_id for delivery in deliveries])
        self._batches.append((self._first + len(self._slots) - 1, now_s))

    def settle_to(self, tag: int, multiple: bool) -> list[Delivery]:
        """Take the deliveries settled with this tag; empty if the tag is settled or unknown."""
        end = tag - self._first + 1 if tag or not multiple else len(self._slots)
        start = self._head if multiple else end - 1
        if not self._head <= start < end <= len(self._slots):
            return []
        if multiple:
            taken = [delivery for delivery in self._slots[start:end] if delivery is not None]
            self._head = end
        else:
            delivery, self._slots[start] = self._slots[start], None
            taken = [] if delivery is None else [delivery]
        self._ids.difference_update([delivery.given_id for delivery in taken])
        self._advance()
        return taken

    def oldest_s(self) -> float | None:
        """When the oldest unconfirmed message was written (loop time); None if all are settled."""
        while self._batches and self._batches[0][0] < self._first + self._head:
            self._batches.popleft()
        return self._batches[0][1] if self._batches else None

    def _advance(self) -> None:
        slots, head = self._slots, self._head
        while head < len(slots) and slots[head] is None:
            head += 1
        if head >= _COMPACT_AT or head == len(slots):
            del slots[:head]
            self._first += head
            head = 0
        self._head = head


class ExchangeLine:
    """All deliveries of one exchange that have no outcome yet; outlives its channels."""

    def __init__(self, reports: Reports) -> None:
        self._reports = reports
        self._waiting: deque[Delivery] = deque()
        self._unconfirmed = Unconfirmed()
        self._returned: dict[str, str] = {}
        self._suspects: dict[str, None] = {}
        self._careful = 1  # number of messages still to go one at a time
        self._is_alone = False  # the one unconfirmed message went alone

    @property
    def has_waiting(self) -> bool:
        """Whether some deliveries were not written yet."""
        return bool(self._waiting)

    @property
    def is_idle(self) -> bool:
        """Whether every delivery has its outcome."""
        return not self._waiting and not self._unconfirmed

    def oldest_s(self) -> float | None:
        """When the oldest unconfirmed message was written (loop time); None if all are settled."""
        return self._unconfirmed.oldest_s()

    # on the way out

    def add(self, deliveries: Iterable[Delivery]) -> None:
        """Queue them behind those that wait."""
        self._waiting.extend(deliveries)

    def next_batch(self) -> list[Delivery]:
        """Take the deliveries to write now, in order; pass the written ones to `wrote`."""
        waiting, unconfirmed = self._waiting, self._unconfirmed
        if not waiting or self._is_alone or waiting[0].given_id in unconfirmed:
            return []
        if not self._careful and not self._suspects:
            batch = list(islice(waiting, _BATCH))
            ids = {delivery.given_id for delivery in batch}
            if len(ids) == len(batch) and unconfirmed.is_disjoint(ids):
                for _ in batch:
                    waiting.popleft()
                return batch
        return self._careful_batch()

    def _careful_batch(self) -> list[Delivery]:
        batch: list[Delivery] = []
        ids: set[str] = set()
        while self._waiting:
            id = self._waiting[0].given_id
            if id in ids or id in self._unconfirmed:
                break
            if self._goes_alone(id):
                if not batch and not self._unconfirmed:
                    batch.append(self._waiting.popleft())
                break
            ids.add(id)
            batch.append(self._waiting.popleft())
        return batch

    def _goes_alone(self, id: str) -> bool:
        return self._careful > 0 or id in self._suspects

    def wrote(self, batch: Sequence[Delivery], now_s: float) -> None:
        """Record which deliveries of the last `next_batch` were written, in this order."""
        if batch:
            self._unconfirmed.wrote(batch, now_s)
            self._is_alone = self._goes_alone(batch[0].given_id)

    def be_careful(self) -> None:
        """Send the next message alone: the state of the channel or the exchange is not known."""
        self._careful = max(self._careful, 1)

    # the broker's answers

    def settle(self, tag: int, multiple: bool, *, confirmed: bool) -> bool:
        """Report what an ack (`confirmed`) or a nack settles; returns whether others wait."""
        taken = self._unconfirmed.settle_to(tag, multiple)
        if not taken:
            return bool(self._waiting)
        if self._is_alone:
            self._is_alone = False
            self._careful = max(self._careful - 1, 0)
            self._suspects.pop(taken[0].given_id, None)
        if self._returned:
            taken = self._without_returned(taken)
        self._reports.add(taken, CONFIRMED if confirmed else NACKED)
        return bool(self._waiting)

    def returned(self, id: str, reason: str) -> None:
        """Note that the broker returned the message; its ack still follows."""
        if id in self._unconfirmed:
            self._returned[id] = reason

    def _without_returned(self, taken: list[Delivery]) -> list[Delivery]:
        kept = []
        for delivery in taken:
            reason = self._returned.pop(delivery.given_id, None)
            if reason is None:
                kept.append(delivery)
            else:
                why = f"unroutable: {reason}{_no_queue(delivery.destination)}"[:DETAIL_LIMIT]
                self._reports.add([delivery], Outcome(Verdict.REFUSED, why, answered=True))
        return kept

    # the end of a channel

    def closed_by_broker(self, code: int, text: str) -> Outcome:
        """Report all unconfirmed deliveries; returns the outcome for a lone one."""
        refused = refusal(code, text)
        last = self._unconfirmed.last
        if last is not None and len(self._unconfirmed) == 1 and refused is not None:
            # It was alone and the last one written, so it is the one that the broker refused.
            self._suspects.pop(last.given_id, None)
            self._end(refused)
        else:
            fault = Fault.MESSAGE if refused is None else refused.fault
            unknown = Outcome(Verdict.UNKNOWN, f"channel_closed: {_shown(code, text)}", fault)
            self._suspect()
            self._end(unknown)
            refused = refused or unknown
        self._careful = CAREFUL_MESSAGES
        return refused

    def lost(self, outcome: Outcome, *, is_suspicious: bool = False) -> None:
        """The channel is gone: unconfirmed messages end in `outcome`, waiting ones still wait.

        is_suspicious: a message on the channel may have been the reason.
        """
        if is_suspicious:
            self._suspect()
            self._careful = CAREFUL_MESSAGES
        self._end(outcome)
        self.be_careful()

    def channel_opened(self) -> None:
        """A new channel, whose tags count from 1; on the one before, all were settled."""
        self._unconfirmed = Unconfirmed()
        self._is_alone = False

    def refuse_waiting(self, outcome: Outcome) -> None:
        """End deliveries that were never written in `outcome`."""
        waiting, self._waiting = self._waiting, deque()
        self._reports.add(waiting, outcome)

    def _end(self, outcome: Outcome) -> None:
        left = self._unconfirmed.settle_to(0, multiple=True)
        self._reports.add(self._without_returned(left), outcome)
        self._unconfirmed = Unconfirmed()
        self._returned.clear()
        self._is_alone = False

    def _suspect(self) -> None:
        self._suspects.update(dict.fromkeys(self._unconfirmed.ids()))
        while len(self._suspects) > MAX_SUSPECTS:
            del self._suspects[next(iter(self._suspects))]


def _no_queue(to: Destination) -> str:
    bound = "bound with key" if to.address else "named"
    return f", no queue is {bound} '{printable(to.routing_key or '')}'"


def refusal(code: int, text: str) -> Outcome | None:
    """The outcome of the publish that caused a channel error; None if the error proves nothing."""
    shown = _shown(code, text)
    if code == NOT_FOUND:
        return Outcome(Verdict.REFUSED, f"exchange_missing: {shown}")
    if code == PRECONDITION_FAILED:
        return Outcome(Verdict.REFUSED, f"precondition_failed: {shown}", answered=True)
    if code == ACCESS_REFUSED:
        # A topic permission concerns one routing key; any other, the whole exchange.
        of_key = "access to topic" in text
        fault = Fault.MESSAGE if of_key else Fault.DESTINATION
        return Outcome(Verdict.REFUSED, f"access_refused: {shown}", fault, answered=of_key)
    return None


def _shown(code: int, text: str) -> str:
    return f"{code} {printable(text)}"[:DETAIL_LIMIT]
