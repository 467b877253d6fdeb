"""Headers and properties of a message: checked, and encoded as its broker takes them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from delaybridge import late
from delaybridge.amqp.decoding import check_content
from delaybridge.amqp.encoding import PROPERTY_NAMES, encode_properties, encode_table
from delaybridge.errors import MessageError, quoted
from delaybridge.message import (
    OWN_HEADERS,
    RESERVED_PREFIX,
    TABLE_KINDS,
    ContentHeader,
    Destination,
    HeaderPairs,
    Headers,
    Limits,
    Message,
    Properties,
)

_TOKEN = late.pattern(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")
_OF_CONNECTION = frozenset({
    "authorization", "connection", "content-encoding", "content-length", "cookie", "expect",
    "host", "keep-alive", "proxy-authorization", "proxy-connection", "te", "trailer",
    "transfer-encoding", "upgrade", "user-agent", "webhook-id", "webhook-signature",
    "webhook-timestamp",
})  # fmt: skip
_EncodedProperties = tuple[int, bytes, bytes]
NO_HEADERS: Mapping[str, tuple[bytes, bytes | None]] = {
    "rabbitmq": (b"", None),
    "kombu": (b"", b""),
}


def encode_headers(
    message: Message, destination: Destination, limits: Limits
) -> tuple[bytes | HeaderPairs, _EncodedProperties | bytes | None]:
    """Headers and properties as a record keeps them; MessageError names the header at fault."""
    properties = message.properties
    if properties == {} and (message.headers == {} or message.headers == ()):
        return NO_HEADERS.get(destination.kind, ((), None))
    if not isinstance(properties, ContentHeader):
        headers = message.headers
        if destination.kind == "http" and isinstance(properties, Mapping):
            headers = _with_content_type(headers, properties)
        encoded = _headers(headers, destination, limits)
        return encoded, _properties(properties, destination, limits)
    if destination.kind != "rabbitmq" or message.headers:
        raise _bad_property("a content header is for RabbitMQ only; give no other headers with it")
    pairs = check_content(properties)
    for name, _ in pairs:
        _check_header_name(name)
        if name in OWN_HEADERS:
            raise MessageError("reserved_header", name, "set by delaybridge when it publishes")
    check_header_sizes(len(pairs), len(properties.table), limits)
    return properties.table, (properties.flags, properties.before, properties.after)


def _headers(headers: Headers, destination: Destination, limits: Limits) -> bytes | HeaderPairs:
    pairs = _pairs(headers)
    for name, _ in pairs:
        _check_header_name(name)
    kept = [(name, value) for name, value in pairs if name not in OWN_HEADERS]
    if destination.kind == "http":
        check_http_headers(kept)
    check_header_sizes(len(kept), 0, limits)
    if destination.kind in TABLE_KINDS:
        encoded: bytes | HeaderPairs = encode_table(kept)
        size = len(encoded)
    else:
        encoded = tuple((name, _header_bytes(name, value, destination)) for name, value in kept)
        size = sum(len(name.encode()) + len(value or b"") for name, value in encoded)
    check_header_sizes(len(kept), size, limits)
    return encoded


def check_header_sizes(count: int, size: int, limits: Limits) -> None:
    """MessageError if there are too many headers, or `size` bytes of them are too large."""
    if count > limits.headers:
        raise MessageError("too_many_headers", "headers", f"{count}; the limit is {limits.headers}")
    if size > limits.headers_bytes:
        raise MessageError(
            "headers_too_large", "headers", f"{size} bytes; the limit is {limits.headers_bytes}"
        )


def _pairs(headers: Headers) -> list[tuple[str, Any]]:
    try:
        return list(headers.items() if isinstance(headers, Mapping) else map(_pair, headers))
    except TypeError:
        raise _bad_header(f"got {type(headers).__name__}; give a mapping or pairs") from None


def _pair(pair: Any) -> tuple[str, Any]:
    if isinstance(pair, tuple | list) and len(pair) == 2:
        return pair[0], pair[1]
    raise _bad_header("a header is a pair of name and value")


def _check_header_name(name: object) -> None:
    if not isinstance(name, str) or not name:
        raise _bad_header("a header's name is text and not empty")
    try:
        size = len(name.encode())
    except UnicodeEncodeError:
        raise _bad_header("a header's name is not UTF-8") from None
    if size > 255 or not name.isprintable():
        raise _bad_header(f"{quoted(name)}: at most 255 bytes, all printable")
    if name.startswith(RESERVED_PREFIX) and name not in OWN_HEADERS:
        raise MessageError(
            "reserved_header",
            "headers",
            f"{quoted(name)}: the prefix {RESERVED_PREFIX!r} is reserved; rename it",
        )


def _header_bytes(name: str, value: object, destination: Destination) -> bytes | None:
    if value is None and destination.kind in ("redis", "http"):
        what = "a stream takes no null; give b''"
        if destination.kind == "http":
            what = "HTTP takes no null; give text"
        raise MessageError("unsupported_header_type", name, what)
    if value is None or isinstance(value, bytes):
        return value
    if isinstance(value, str):
        try:
            return value.encode()
        except UnicodeEncodeError:
            raise MessageError("bad_header", name, "text with a lone surrogate") from None
    raise MessageError(
        "unsupported_header_type", name, f"got {type(value).__name__}; give bytes, text or None"
    )


def _with_content_type(headers: Headers, properties: Mapping[str, Any]) -> Headers:
    """The headers, and the property `content_type` as the header that it is over HTTP."""
    if (content_type := properties.get("content_type")) is None:
        return headers
    return [*_pairs(headers), ("content-type", content_type)]


def check_http_headers(pairs: list[tuple[str, Any]]) -> None:
    """MessageError if HTTP does not take a header, or if it belongs to the connection."""
    for name, value in pairs:
        if not _TOKEN.fullmatch(name):
            raise _bad_header(f"{quoted(name)}: over HTTP a name has letters, digits and -")
        if name.lower() in _OF_CONNECTION:
            raise MessageError("reserved_header", name, "set when it is posted; leave it out")
        text = value.decode(errors="replace") if isinstance(value, bytes) else value
        if isinstance(text, str) and (not text.isprintable() or text != text.strip()):
            raise MessageError("bad_header", name, "over HTTP: one line of printable text")


def _properties(
    properties: Mapping[str, Any], destination: Destination, limits: Limits
) -> _EncodedProperties | bytes | None:
    if not isinstance(properties, Mapping):
        raise _bad_property("give a mapping of names to values")
    if destination.kind == "rabbitmq":
        return encode_properties(properties) if properties else None
    if destination.kind == "kombu":
        return _kombu_properties(properties, limits)
    known = {"kafka": {"partition"}, "http": {"content_type"}}.get(destination.kind, set())
    for name in properties:
        if name not in known:
            raise _bad_property(f"{quoted(name)} is not a property of {destination.kind}")
    return None


def _kombu_properties(properties: Mapping[str, Any], limits: Limits) -> bytes:
    """Any names and types; properties that AMQP has follow its rules."""
    encode_properties({n: v for n, v in properties.items() if n in PROPERTY_NAMES})
    encoded = encode_table(properties.items())
    check_header_sizes(0, len(encoded), limits)
    return encoded


def partition_of(properties: Properties) -> int | None:
    """The Kafka partition that the properties ask for; MessageError `bad_partition`."""
    if not properties or not isinstance(properties, Mapping):
        return None
    partition = properties.get("partition")
    if partition is None:
        return None
    if isinstance(partition, bool) or not isinstance(partition, int) or not 0 <= partition < 2**31:
        raise MessageError("bad_partition", "partition", f"got {quoted(partition)}; give 0 or more")
    return partition


def _bad_header(detail: str) -> MessageError:
    return MessageError("bad_header", "headers", detail)


def _bad_property(detail: str) -> MessageError:
    return MessageError("bad_property", "properties", detail)
