"""Destinations: `rabbitmq:EXCHANGE/ROUTING.KEY`, `kafka:TOPIC`, ... parsed and checked."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from urllib.parse import unquote

from delaybridge.errors import MessageError, shown
from delaybridge.message import PULL, TENANT, Destination

_TOPIC = r"(?!\.\.?\Z)[a-zA-Z0-9._-]{1,249}"
_TOPICS = {
    "kafka": re.compile(_TOPIC),
    PULL: re.compile(rf"(?:{TENANT}/)?{_TOPIC}"),  # tenants have their own
}
_PATH_CHAR = r"(?:[A-Za-z0-9._~!$&'()*+,;=:@/-]|%[0-9A-Fa-f]{2})"
_PATH = re.compile(rf"{_PATH_CHAR}+(?:\?(?:{_PATH_CHAR}|\?)*)?")
_ODD = re.compile(r"[\x00-\x1f\x7f%\\]")  # in a path that was decoded once
_NO_NAMES = frozenset({"", ".", ".."})
_MAX_CACHED = 10_000
_NAME_CHARS = 255  # similar broker names are looked for in this many characters


class DestinationCache(dict[str, tuple[Destination, str]]):
    """Text -> the parsed destination and its canonical text, for one set of brokers. Bounded."""

    def parse(self, text: str, kinds: Mapping[str, str]) -> tuple[Destination, str]:
        """`parse_destination`, once for each text."""
        found = self.get(text) if isinstance(text, str) else None
        if found is None:
            destination = parse_destination(text, kinds)
            if len(self) >= _MAX_CACHED:  # routing keys are unbounded
                self.clear()
            found = self[text] = destination, str(destination)
        return found


def parse_destination(text: object, kinds: Mapping[str, str]) -> Destination:
    """Parse `rabbitmq:EXCHANGE/ROUTING.KEY`, `kafka:TOPIC`, ...; MessageError for anything else.

    The part before the colon is the name of a configured broker, or `pull`. In the
    name of an exchange, write a slash as `%2F` and a per cent sign as `%25`.
    """
    if not isinstance(text, str) or not text:
        raise _bad("empty; write BROKER:ADDRESS")
    broker, colon, address = text.partition(":")
    if not colon:
        raise _bad(f"{shown(text)} has no colon: BROKER:ADDRESS")
    kind = PULL if broker == PULL else kinds.get(broker)
    if kind is None or address.startswith("//"):
        raise MessageError(
            "unknown_destination", "destination", _unknown_broker(text, broker, kinds)
        )
    destination = (
        _rabbitmq(broker, address) if kind == "rabbitmq" else Destination(broker, kind, address)
    )
    _check_address(destination)
    return destination


def _rabbitmq(broker: str, address: str) -> Destination:
    exchange, slash, routing_key = address.partition("/")
    if not slash:
        raise _bad(
            f"{shown(address)} has no slash: {broker}:EXCHANGE/ROUTING.KEY, or {broker}:/QUEUE"
        )
    try:
        exchange = unquote(exchange, errors="strict")
    except UnicodeDecodeError:
        raise _bad("the exchange is not UTF-8") from None
    return Destination(broker, "rabbitmq", exchange, routing_key)


def _check_address(destination: Destination) -> None:
    address, routing_key = destination.address, destination.routing_key
    if destination.kind == "rabbitmq":
        for part, what in ((address, "exchange"), (routing_key, "routing key")):
            _short_text(part, what)
        if not address and not routing_key:
            raise _bad("the queue's name is missing")
    elif (topic := _TOPICS.get(destination.kind)) is not None:
        if not topic.fullmatch(address):
            raise _bad(f"{shown(address)} is not a topic name; use 1 to 249 of a-z A-Z 0-9 . _ -")
    else:
        _check_text(address, destination.kind)


def _check_text(address: str, kind: str) -> None:
    _short_text(address, "address")
    if kind == "http":
        check_path(address)
    if not address:
        raise _bad("the address is empty")
    if kind in ("redis", "kombu") and address.startswith("{"):
        # Its Redis may be the one that messages wait in.
        raise _bad(f"{shown(address)} begins with '{{', as keys of delaybridge do")


def check_path(path: str) -> None:
    """MessageError unless it is a path below the broker's own, however the host reads it.

    Some hosts take `..;` for `..` and a backslash for a slash, decode twice, or stop at NUL.
    """
    place = _decoded(path.partition("?")[0])
    names = {segment.partition(";")[0] for segment in place.split("/")}
    if not _PATH.fullmatch(path) or "%00" in path or _ODD.search(place) or names & _NO_NAMES:
        what = "write PATH or PATH?QUERY, percent-encoded, without . or .. or an empty part"
        raise _bad(f"{shown(path)} is not a path; {what}, backslash, %25, %00")


def _decoded(path: str) -> str:
    try:
        return unquote(path, errors="strict")
    except UnicodeDecodeError:  # also what decodes to dots with too many bytes
        raise _bad(f"{shown(path)} is not UTF-8") from None


def _short_text(text: str, what: str) -> None:
    try:
        size = len(text.encode())
    except UnicodeEncodeError:
        raise _bad(f"the {what} is not UTF-8") from None
    if size > 255 or "\0" in text:
        raise _bad(f"the {what} has {size} bytes; at most 255, no NUL")


def _unknown_broker(text: str, broker: str, kinds: Mapping[str, str]) -> str:
    if "//" in text:
        return "a URL is not a destination; configure the broker and name it: BROKER:ADDRESS"
    near = (
        difflib.get_close_matches(broker[:_NAME_CHARS], kinds, n=3, cutoff=0.5) or sorted(kinds)[:5]
    )
    return f"no broker is named {shown(broker)}; configured: {', '.join(near) or 'none'}"


def _bad(detail: str) -> MessageError:
    return MessageError("bad_destination", "destination", detail)
