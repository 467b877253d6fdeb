"""A line made ready to be stored: checked as every entrance checks, its attempts and death kept."""

from __future__ import annotations

import re
from collections.abc import Mapping

import msgspec

from delaybridge.accept.accept import Accepted, DestinationCache, accept, check_id, check_key, when
from delaybridge.accept.carried import Carried
from delaybridge.carry.line import Line
from delaybridge.errors import DecodeError, MessageError, printable
from delaybridge.message import Limits, Record, State, decode_record, rank_of
from delaybridge.store.protocol.record import ORPHANED

_QUARANTINED = re.compile(r"~[1-9]\Z")
_REASON_CHARS = 2000


class Ready(msgspec.Struct, gc=False):
    """A line ready to be stored. number: of the line. message: a `Carried` if it was tried.

    reason: why it is dead; None: it is to be delivered. dead_ms: since when; None: now. tried: its
    attempts, as they are stored.
    """

    number: int
    line: Line
    message: Accepted
    reason: str | None = None
    dead_ms: int | None = None
    tried: str = ""

    @property
    def due_ms(self) -> int:
        """When it is due, in epoch milliseconds."""
        return int(self.message.when)


class Accepting:
    """Makes lines ready for one namespace. kinds: name of each broker -> its kind."""

    def __init__(self, kinds: Mapping[str, str], limits: Limits) -> None:
        self._kinds, self._limits, self._cache = kinds, limits, DestinationCache()

    def ready(self, number: int, line: Line) -> Ready:
        """The line, ready; MessageError names what is wrong.

        What was in flight may have been delivered since. A parked one is due: its destination may
        take it here. One that was parked for the operator is dead here, so that it waits for him.
        """
        message = self._accepted(line)
        is_maybe = line.maybe_delivered or line.state is State.IN_FLIGHT
        tried = failing = ""
        if line.attempts or is_maybe or line.first_due_ms is not None:
            tried = f"{line.attempts}:{int(is_maybe)}:{line.first_due_ms or ''}"
        if line.last_error is not None and line.failing_since_ms is not None:
            error = printable(line.last_error)
            failing = f"{line.failing_since_ms}\n{line.destination}\n{error}"
        reason = dead_ms = None
        if line.state is State.DEAD:
            reason = printable(line.reason or "imported")[:_REASON_CHARS]
            dead_ms = line.dead_ms
        elif line.state is State.PARKED and (line.last_error or "").startswith(ORPHANED):
            reason = f"{ORPHANED}: it waited for the operator where it was exported"
        elif tried or failing:
            fields = msgspec.structs.asdict(message)
            message = Carried(**fields, tried=tried or "0:0:", failing=failing)
        return Ready(number, line, message, reason, dead_ms, tried)

    def _accepted(self, line: Line) -> Accepted:
        if line.record_base64 is None:
            message = accept(line.message(), self._kinds, self._limits, self._cache)
        else:
            message = self._as_stored(line, line.record_base64)
        if line.state is State.DEAD and (line.reason or "").startswith("ingress"):
            own = _QUARANTINED.sub("", line.id).encode()  # it lies in the bucket of the id it had
            message = msgspec.structs.replace(message, shard_key=own)
        return message

    def _as_stored(self, line: Line, payload: bytes) -> Accepted:
        """The record as it was exported, if it agrees with the line, and can be delivered."""
        check_id(line.id, self._limits)
        key, due = check_key(line.shard_key()), when(None, line.at(), self._limits)
        try:
            self._check(line, decode_record(payload), key)
        except DecodeError:
            if line.state is not State.DEAD:
                raise
        shard_key = line.id.encode() if key is None else key
        return Accepted(line.id, shard_key, due, rank_of(line.priority), payload)

    def _check(self, line: Line, record: Record, key: bytes | None) -> None:
        told = {"destination": line.destination, "key": key, "tenant": line.tenant}
        for name, value in told.items():
            if getattr(record, name) != value:
                what = f"record_base64 has another {name}; leave out record_base64 to change it"
                raise MessageError("bad_line", name, what)
        if line.state is not State.DEAD:
            destination, _ = self._cache.parse(record.destination, self._kinds)
            if not record.suits(destination.kind):
                what = f"record_base64 is not of a broker of kind {destination.kind}; leave it out"
                raise MessageError("bad_line", "record_base64", what)
