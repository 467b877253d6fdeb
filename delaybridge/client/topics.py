"""The verbs of pull topics, as methods of `client.topics`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from delaybridge.accept.destination import parse_destination
from delaybridge.client.requests import Requests
from delaybridge.client.verbs import Scope, verb
from delaybridge.errors import MessageError, quoted
from delaybridge.message import PULL, Answer
from delaybridge.store.messages.pulling import ReceivedMessage
from delaybridge.store.protocol.verbs import Steps
from delaybridge.times import Delay, delay_ms

Items = Iterable[ReceivedMessage | tuple[str, str]]
"""Messages as `receive` gave them, or their (id, receipt)."""
MOST_RECEIVED = 1000
_TTR_MS = (1000, 12 * 3_600_000)


class TopicVerbs(Requests):
    """Verbs of pull topics, from which consumers receive without a broker."""

    @verb(Scope.WRITE, "Receive messages of a topic")
    def receive(
        self, topic: str, *, limit: int = 1, ttr: Delay = "30s"
    ) -> Steps[list[ReceivedMessage]]:
        """Take up to `limit` due messages of `pull:TOPIC`, the earliest first.

        A message that is not finished within `ttr` (1 s to 12 h) is due again, with an attempt
        more. If an answer is lost on its way, so are its messages until then. Does not wait.
        """
        return self._calls.receive(topic, limit, check_receiving(topic, limit, ttr))

    @verb(Scope.WRITE, "Finish received messages")
    def finish(self, items: Items) -> Steps[list[Answer]]:
        """Say that received messages are done: `finished`, or `unknown`.

        `unknown`: cancelled, finished before, or given to another consumer since.
        """
        return self._calls.finish_received(named(items))

    @verb(Scope.WRITE, "Extend received messages")
    def extend(self, items: Items, *, ttr: Delay) -> Steps[list[Answer]]:
        """Have received messages for `ttr` from now on: `extended`, or `unknown` as `finish`."""
        return self._calls.extend_received(named(items), ttr_ms(ttr))

    @verb(Scope.WRITE, "Release received messages")
    def release(self, items: Items, *, delay: Delay = 0) -> Steps[list[Answer]]:
        """Give received messages back, due in `delay`: `released`, or `unknown` as for `finish`."""
        wait_ms, most_ms = _ms(delay, "delay"), self._calls.limits.delay_ms
        if wait_ms > most_ms:
            what = f"{wait_ms} ms; at most {most_ms} (limits.delay)"
            raise MessageError("bad_time", "delay", what)
        return self._calls.release_received(named(items), wait_ms)


def check_receiving(topic: str, limit: int, ttr: Delay) -> int:
    """The time to run in ms; MessageError if an argument of `receive` is wrong."""
    parse_destination(f"{PULL}:{topic}", {})
    if isinstance(limit, bool) or not isinstance(limit, int) or not 1 <= limit <= MOST_RECEIVED:
        what = f"got {quoted(limit)}; give 1 to {MOST_RECEIVED}"
        raise MessageError("bad_limit", "limit", what)
    return ttr_ms(ttr)


def ttr_ms(ttr: Delay) -> int:
    """A time to run in ms; MessageError if it is out of range."""
    found, (least, most) = _ms(ttr, "ttr"), _TTR_MS
    if not least <= found <= most:
        raise MessageError("bad_time", "ttr", f"got {quoted(ttr)}; give 1s to 12h")
    return found


def named(items: Items) -> Sequence[tuple[str, str]]:
    """The (id, receipt) of each; MessageError if one is something else."""
    found = []
    for one in items:
        pair = (one.id, one.receipt) if isinstance(one, ReceivedMessage) else one
        if not (isinstance(pair, tuple) and len(pair) == 2 and all(map(_is_text, pair))):
            raise MessageError("bad_item", "items", f"got {quoted(one)}; give (id, receipt)")
        found.append(pair)
    return found


def _ms(value: Delay, field: str) -> int:
    if value is None:
        raise MessageError("bad_time", field, "got None; give a delay")
    return delay_ms(value, field=field)


def _is_text(value: object) -> bool:
    try:
        return isinstance(value, str) and bool(value.encode())
    except UnicodeEncodeError:
        return False
