"""The first frames of a connection: what the front changes in them, and what it learns."""

from __future__ import annotations

import ipaddress
import socket
import struct
from typing import Any

from delaybridge.amqp.connection import PROXY_SIGNATURE
from delaybridge.amqp.decoding import cut, decode_table
from delaybridge.amqp.walker import Method
from delaybridge.errors import DecodeError
from delaybridge.front import methods
from delaybridge.settings.entrances import FrontSettings

PROTOCOL = b"AMQP\x00\x00\x09\x01"
_EXTERNAL = b"EXTERNAL"
GUEST = "guest"
_PROXY = PROXY_SIGNATURE + b"\x21"  # version 2, and the command PROXY
_FAMILIES = {4: b"\x11", 6: b"\x21"}  # TCP over IPv4 and IPv6


def without_external(start: Method) -> bytes:
    """The frame of a connection.start that offers no login by a certificate: it ended here."""
    _, at = methods.longstr(start.arguments, 2)
    mechanisms, end = methods.longstr(start.arguments, at)
    kept = b" ".join(each for each in mechanisms.split() if each != _EXTERNAL)
    data = start.arguments[:at] + struct.pack(">I", len(kept)) + kept + start.arguments[end:]
    return methods.frame(0, methods.START, data)


def client_of(start_ok: Method) -> tuple[str, str, str]:
    """User, product and name of the connection, as the client says; DecodeError if broken.

    The user is the one that RabbitMQ sees, whatever else the client says of itself.
    """
    table, at = methods.longstr(start_ok.arguments, 0)
    mechanism, at = methods.shortstr(start_ok.arguments, at)
    response, _ = methods.longstr(start_ok.arguments, at)
    user = _user(mechanism, response)
    try:
        about = dict(decode_table(table))
    except DecodeError:
        about = {}
    return user, str(about.get("product", "")), str(about.get("connection_name", ""))


def _user(mechanism: bytes, response: bytes) -> str:
    if mechanism == b"AMQPLAIN":  # RabbitMQ reads the first of several
        try:
            logins = [str(value) for name, value in decode_table(response) if name == "LOGIN"]
        except DecodeError:
            return GUEST  # who cannot be read is not trusted
        return logins[0] if logins else ""
    parts = response.split(b"\0")
    return parts[1].decode(errors="replace") if len(parts) > 2 else ""


def vhost_of(open: Method) -> str:
    """The vhost of a connection.open; DecodeError if it is broken."""
    return methods.shortstr(open.arguments, 0)[0].decode(errors="replace")


def with_fewer_channels(tune: Method, most: int) -> bytes:
    """The frame of a connection.tune with a channel-max of at most `most`; 0: as the broker's.

    DecodeError if it is broken.
    """
    channel_max = int.from_bytes(cut(tune.arguments, 0, 2, "channel-max"), "big")
    if not most or 0 < channel_max <= most:
        return tune.frame
    return methods.frame(0, methods.TUNE, most.to_bytes(2, "big") + tune.arguments[2:])


def is_trusted(settings: FrontSettings, host: str) -> bool:
    """Whether a client there may log in as guest, RabbitMQ's well-known user.

    RabbitMQ itself lets guest in from its own host only, and takes the front's for the client's.
    """
    return settings.allow_guest or settings.proxy_protocol or _is_loopback(host)


def _is_loopback(host: str) -> bool:
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return not host  # a Unix socket has no address
    mapped = getattr(address, "ipv4_mapped", None)
    return (mapped or address).is_loopback


def proxy_header(client: Any, server: Any) -> bytes:
    """PROXY protocol 2: the client's address and port, and where it connected, for the broker."""
    ends = [ipaddress.ip_address(each[0].partition("%")[0]) for each in (client, server)]
    family = socket.AF_INET if ends[0].version == 4 else socket.AF_INET6
    packed = b"".join(socket.inet_pton(family, str(each)) for each in ends)
    packed += struct.pack(">HH", client[1], server[1])
    return _PROXY + _FAMILIES[ends[0].version] + struct.pack(">H", len(packed)) + packed
