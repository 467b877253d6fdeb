"""What a process tells all who listen, once a second, on the channel `{ns}:events`."""

from __future__ import annotations

from typing import Any

import msgspec

from delaybridge.store.protocol import keys
from delaybridge.store.protocol.verbs import RedisCommand, plain


class Told(msgspec.Struct, omit_defaults=True):
    """One event, or the sum of a second's events of one kind, destination and reason.

    at_ms: by the clock of the process. level: as in `logging`. ids: of some of its messages, apart
    from the fields, which earlier versions read.
    """

    at_ms: int
    level: int
    event: str
    fields: dict[str, str | int | float | bool | list[int] | None] = {}
    ids: list[str] = []

    @property
    def named_fields(self) -> dict[str, Any]:
        """The fields, and the ids as one of them."""
        ids = {"ids": self.ids} if self.ids else {}
        return {name: value for name, value in self.fields.items() if name != "ids"} | ids


class Beat(msgspec.Struct, omit_defaults=True):
    """A process' events of one second; empty, unless the beat before had a listener.

    number: of this beat; they are counted from 1 for each instance of a process. dropped: how many
    more lines there were.
    """

    worker: str
    instance: str
    number: int
    lines: list[Told] = []
    dropped: int = 0


_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(Beat).decode


def publish(namespace: str, beat: Beat) -> RedisCommand[int]:
    """Tell everybody who listens; answers with their number."""
    return plain("PUBLISH", keys.events(namespace), _encode(beat), parse=int)


def read(text: str) -> Beat | None:
    """A beat; None for anything else, since anything may be published on a channel."""
    try:
        return _decode(text)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return None


def is_of(place: object, wanted: str) -> bool:
    """Whether an event of this place may be one of the wanted destination, exchange or broker.

    Events name an exchange or topic, or one destination that has a rule of its own. So a wanted
    destination also fits the events of its exchange.
    """
    if not isinstance(place, str):
        return False
    is_part = place == wanted or place.startswith((f"{wanted}/", f"{wanted}:"))
    return is_part or wanted.startswith(f"{place}/") or place == "(others)"
