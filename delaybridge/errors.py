"""Every error that delaybridge raises, in one tree.

    DelayBridgeError
    +-- ConfigError                 a setting is missing or wrong; nothing was started
    +-- MessageError (ValueError)   the message or the call is refused; nothing was written
    |   +-- DecodeError             a stored record cannot be read
    |   +-- MessageConflict         the id is taken by a message with other content
    |   +-- DelayOutOfRange         the due time lies outside what is accepted
    +-- StoreError                  Redis refused a command
    |   +-- StoreUnavailable *      Redis did not answer in time: the outcome is unknown
    |   +-- StoreFull *             Redis or a quota is full: nothing was written
    |   +-- StoreDenied             the Redis user lacks a right
    |   +-- StoreDamaged            a key holds what delaybridge never wrote there
    |   +-- StoreWiped              the namespace was deleted or created again while in use
    +-- PublishError
        +-- PublishUnavailable *    the broker cannot be reached now

A star means that a later attempt can help. How one publish ended is a value
(`delaybridge.publish.Outcome`), never an exception.
"""

from __future__ import annotations

from datetime import date, timedelta

DETAIL_LIMIT = 200
FIELD_LIMIT = 255
_SHOWN_CHARS = 80
_SHOWN_BITS = 256  # Python prints no integer of more than 4300 digits


class DelayBridgeError(Exception):
    """delaybridge could not do what it was asked to do."""

    def __init__(self, message: str | None = None) -> None:
        super().__init__(message or (self.__doc__ or "").partition("\n")[0])


class ConfigError(DelayBridgeError):
    """The settings are wrong."""


class MessageError(DelayBridgeError, ValueError):
    """The message is refused.

    code: one word, the same on every surface (HTTP, CLI, ingest, client).
    field: the argument or header at fault, at most 255 printable characters.
    detail: what was got and what is accepted, at most 200 printable characters.
    """

    def __init__(self, code: str, field: str, detail: str) -> None:
        self.code = code
        self.field = printable(field[:FIELD_LIMIT])[:FIELD_LIMIT]
        self.detail = printable(detail[:DETAIL_LIMIT])[:DETAIL_LIMIT]
        super().__init__(f"{self.field}: {code}: {self.detail}")

    def __reduce__(self) -> tuple[type[MessageError], tuple[str, str, str]]:
        return type(self), (self.code, self.field, self.detail)


class DecodeError(MessageError):
    """The stored record cannot be read."""


class MessageConflict(MessageError):
    """The id is taken by a message with other content."""


class DelayOutOfRange(MessageError):
    """The due time lies outside what is accepted."""


class StoreError(DelayBridgeError):
    """Redis refused a command."""


class StoreUnavailable(StoreError):
    """Redis did not answer in time: whether the call took effect is unknown. Call again."""


class StoreFull(StoreError):
    """Redis is out of memory and refuses writes: nothing was written. Raise maxmemory or drain."""


class StoreDenied(StoreError):
    """Redis refuses access: check user, password and ACL."""


class StoreDamaged(StoreError):
    """A key holds what delaybridge never wrote there. See: delaybridge doctor."""


class NotDrained(DelayBridgeError):
    """A worker ended with leases that it could not give back: they run out by themselves."""


class StoreWiped(StoreError):
    """The namespace was deleted, or created again, while this process was using it."""


class PublishError(DelayBridgeError):
    """The broker did not take a message."""


class PublishUnavailable(PublishError):
    """The broker cannot be reached now."""


def printable(text: str) -> str:
    """`text` with everything escaped that could steer a terminal, break a line or a log.

    Controls (C0, DEL, C1), line and paragraph separators, bidirectional overrides and lone
    surrogates become `\\x1b`- or `\\u202e`-like escapes; all else stays as it is.
    """
    if text.isascii() and text.isprintable():
        return text
    return "".join(c if c.isprintable() else _escaped(c) for c in text)


def shown(value: object) -> str:
    """A caller's value for a message, in at most 80 characters; what holds others, by its type.

    Never the text of a whole value: of a list that holds one list twice, a hundred deep, it would
    fill the memory, and of one that is nested too deep there is none.
    """
    if isinstance(value, str | bytes | bytearray):
        return repr(value[:_SHOWN_CHARS])[:_SHOWN_CHARS]
    is_short = isinstance(value, int) and value.bit_length() <= _SHOWN_BITS
    if is_short or value is None or isinstance(value, float | date | timedelta):
        return repr(value)[:_SHOWN_CHARS]
    return type(value).__name__


def _escaped(char: str) -> str:
    code = ord(char)
    if code < 0x100:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"
