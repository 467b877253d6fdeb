"""Every error that delaybridge raises, in one tree.

    DelayBridgeError
    +-- ConfigError                 a setting is missing or wrong; nothing was started
    +-- MessageError (ValueError)   the message or the call is refused; nothing was written
    |   +-- DecodeError             a stored record cannot be read
    |   +-- MessageConflict         the id is taken by a message with other content
    |   +-- MessageInFlight *       for drop-ins: the message of that id is being delivered
    |   +-- DelayOutOfRange         the delay is negative or the due time too far ahead
    +-- StoreError                  Redis refused a command
    |   +-- StoreUnavailable *      Redis did not answer in time: the outcome is unknown
    |   |   +-- NotDurable *        done, but less durably than `durability` asks
    |   |   +-- LedgerUnavailable * the ledger's database did not answer, or refused
    |   +-- StoreFull *             Redis or a quota is full: nothing was written
    |   +-- StoreDenied             the Redis user lacks a right
    |   +-- StoreMisnamed           the URL does not fit the servers behind it
    |   +-- StoreNewer              the namespace has the format of a newer version
    |   +-- StoreDamaged            a key holds data that delaybridge did not write
    |   +-- LedgerRefused           the ledger's database does not take what is to be written
    |   +-- StoreWiped              the namespace was deleted or created again while in use
    +-- NotDrained                  a worker ended and could not release its leases
    +-- PublishError
        +-- PublishUnavailable *    the broker cannot be reached now

A star means that a later attempt can help. The result of one publish is not an exception but a
value, `delaybridge.publish.Outcome`.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import date, timedelta

DETAIL_LIMIT = 200
TROUBLESHOOTING = "https://github.com/delaybridge/delaybridge/blob/main/docs/troubleshooting.md"
"""The page that explains each word of an error and of a warning in the log: `#word`."""
FIELD_LIMIT = 255
_SHOWN_CHARS = 80
_SHOWN_BITS = 256  # Python refuses to print an integer of more than 4300 digits


class DelayBridgeError(Exception):
    """An error of delaybridge.

    Made without a message, an error has the first line of its class' docstring.
    """

    def __init__(self, message: str | None = None) -> None:
        super().__init__(message or (self.__doc__ or "").partition("\n")[0])


class ConfigError(DelayBridgeError):
    """A setting is missing or wrong."""


class MessageError(DelayBridgeError, ValueError):
    """The message or call is refused; nothing was written.

    code: one word for programs, the same in Python, ingest and on the command line.
    field: the argument or header at fault, at most 255 printable characters.
    detail: the refused value and the values accepted, at most 200 printable characters.
    """

    def __init__(self, code: str, field: str, detail: str) -> None:
        self.code = code
        self.field = printable(field[:FIELD_LIMIT])[:FIELD_LIMIT]
        self.detail = printable(detail[:DETAIL_LIMIT])[:DETAIL_LIMIT]
        super().__init__(f"{self.field}: {code}: {self.detail}")

    def __reduce__(self) -> tuple[type[MessageError], tuple[str, str, str]]:
        return type(self), (self.code, self.field, self.detail)


class DecodeError(MessageError):
    """A stored record cannot be decoded."""


class MessageConflict(MessageError):
    """The id is pending with other content."""


class MessageInFlight(MessageError):
    """The message of that id is being delivered, and was not settled in time. Call again."""


class DelayOutOfRange(MessageError):
    """The delay is negative, or the due time is too far in the future."""


class StoreError(DelayBridgeError):
    """Redis refused a command."""


class StoreUnavailable(StoreError):
    """Redis did not answer in time: whether the call took effect is unknown. Call again."""


class NotDurable(StoreUnavailable):
    """Done, but not yet as durable as `durability` asks, so a fault may undo it. Call again.

    The same call with the same id completes it: whatever it answers is durable then. A message may
    be delivered meanwhile; `cancel` it if it must not.
    """


class LedgerUnavailable(StoreUnavailable):
    """The ledger's database did not answer or refused; the message says what is certain."""


class LedgerRefused(StoreError):
    """The ledger's database does not take what is to be written: nothing was written."""


class StoreFull(StoreError):
    """Redis is out of memory and refuses writes: nothing was written. Raise maxmemory.

    limit: the setting whose limit is reached, and its destination; empty if Redis is full.
    """

    def __init__(self, message: str | None = None, *, limit: str = "") -> None:
        super().__init__(message)
        self.limit = limit


class StoreDenied(StoreError):
    """Redis refuses access: check user, password and ACL."""


class StoreMisnamed(StoreError):
    """The URL of Redis does not fit the servers behind it: a Cluster, Sentinels, or one server."""


class StoreNewer(StoreError):
    """The namespace has the format of a newer version of delaybridge: install that one here."""


class StoreDamaged(StoreError):
    """A key holds data that delaybridge did not write. See: delaybridge doctor."""


class NotDrained(DelayBridgeError):
    """The worker ended and could not release its leases; they expire by themselves."""


class StoreWiped(StoreError):
    """The namespace was deleted, or created again, while this process was using it."""


class PublishError(DelayBridgeError):
    """A broker failed."""


class PublishUnavailable(PublishError):
    """The broker cannot be reached now."""


def refused_certificate(exc: BaseException | None) -> str | None:
    """Why a server's certificate is not trusted, and the remedy; None if that is not the cause."""
    while exc is not None:
        if why := getattr(exc, "verify_message", None):  # of ssl.SSLCertVerificationError
            remedy = "name its CA: ?ssl_ca_certs=/PATH in the URL"
            if "mismatch" in why:
                remedy = "give the server by a name that it is for"
            elif "expired" in why:
                remedy = "renew it"
            return f"{printable(str(why))[:120].rstrip('.')}; {remedy}"
        exc = exc.__cause__ or exc.__context__
    return None


def printable(text: str) -> str:
    """`text` with each character escaped that could control a terminal or break a line.

    Escaped are control characters (C0, DEL, C1), line and paragraph separators, bidirectional
    overrides and lone surrogates, as `\\x1b` or `\\u202e`.
    """
    if text.isascii() and text.isprintable():
        return text
    return "".join(c if c.isprintable() else _escaped(c) for c in text)


def text_of(value: object) -> str:
    """Bytes as text, whatever they hold; anything else as Python writes it."""
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)


def nearest(name: object, known: Iterable[str], most: int = 1, cutoff: float = 0.6) -> list[str]:
    """The known names that were probably meant, the likeliest first; never the given one."""
    text = name[:_SHOWN_CHARS] if isinstance(name, str) else quoted(name)
    by_lower = {each.lower(): each for each in known if each != text}
    lower = text.lower()
    begun = [each for each in by_lower if len(lower) > 2 and each.startswith(lower)]
    from difflib import get_close_matches  # few programs misspell anything

    found = begun[:most] or get_close_matches(lower, by_lower, most, cutoff)
    return [by_lower[each] for each in found]


def quoted(value: object) -> str:
    """A caller's value for an error message, in at most 80 characters.

    Containers are shown by their type alone: the text of a list that holds the same list twice, a
    hundred levels deep, would fill the memory.
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
