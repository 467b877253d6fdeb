"""Filters of records: what can be asked of a message that only its whole record can tell."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from delaybridge import late
from delaybridge.errors import MessageError, text_of
from delaybridge.store.namespace.rules import covers
from delaybridge.store.protocol.record import first_word
from delaybridge.store.protocol.stored import Stored


@dataclass(frozen=True, slots=True, kw_only=True)
class Conditions:
    """A message fits if it fits every field given.

    place: a broker, `BROKER:EXCHANGE`, a topic or a whole destination. id_prefix: how the id
    begins. header: `name=value`, or `name` for any value; values are compared as text. attempts: at
    least this many failed. reason: the first word of why it is dead, or of its last error;
    `ingress` also for `ingress:bad_time`.
    """

    place: str | None = None
    id_prefix: str = ""
    header: str | None = None
    attempts: int = 0
    reason: str | None = None

    def __post_init__(self) -> None:
        """MessageError."""
        if self.header is not None and not _is_header(self.header):
            raise MessageError("bad_header", "header", "write the text NAME or NAME=VALUE")
        if not isinstance(self.attempts, int) or self.attempts < 0:
            raise MessageError("bad_selection", "attempts", "give 0 or more")

    @property
    def are_any(self) -> bool:
        """Whether something is asked for."""
        return self != ANY

    @property
    def needles(self) -> list[bytes]:
        """What every record that fits contains, in pairs: one or the other. Redis looks for it."""
        name, _, value = (self.header or "").partition("=")
        found = []
        if _PLAIN_NAME.fullmatch(name):
            found += [name.encode()] * 2
        if _WORD.fullmatch(value) and value.lstrip("-").lower() not in _SPELT:
            found += [value.encode()] * 2
        elif _NUMBER.fullmatch(value):  # as text or as an integer: all are big-endian
            number = int(value)
            found += [value.encode(), number.to_bytes(max(1, -(-number.bit_length() // 8)))]
        return found

    def fit(self, one: Stored, kinds: Mapping[str, str]) -> bool:
        """Whether a message fits. kinds: broker -> its kind."""
        return (
            one.id.startswith(self.id_prefix)
            and one.attempts >= self.attempts
            and (self.place is None or covers(self.place, one.destination, kinds))
            and (self.reason is None or self._is_for_reason(one))
            and (self.header is None or self._has_header(one))
        )

    def _is_for_reason(self, one: Stored) -> bool:
        why = one.reason or one.last_error or ""
        return f"{first_word(why)}:".startswith(f"{self.reason}:")

    def _has_header(self, one: Stored) -> bool:
        name, given, value = (self.header or "").partition("=")
        return any(
            found == name and (not given or text_of(of) == value) for found, of in one.headers
        )


# Text that is stored as its own bytes: names that are not UTF-8 are shown with backslashes, values
# of other types as Python writes them.
_PLAIN_NAME = late.pattern(r"[ -\[\]-~]+")
_WORD = late.pattern(r"(?=.*[A-DF-Za-df-z])[A-Za-z0-9_.:/@-]+")
_NUMBER = late.pattern(r"0|[1-9][0-9]{0,17}")
_SPELT = ("none", "true", "false", "nan", "inf", "infinity", "snan")

ANY = Conditions()  # asks for nothing


def _is_header(text: object) -> bool:
    return isinstance(text, str) and text.partition("=")[0] != ""
