"""Proxies in front of this server, and what they say of a request: only those in the settings are
believed. Anybody may send the same headers."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network
from typing import Any

from starlette.types import Scope as Connection

from delaybridge.settings.sections import PATH_PREFIX

_FOR, _PREFIX = b"x-forwarded-for", b"x-forwarded-prefix"
_WITH_PORT = re.compile(r"\[([^]]*)\](?::[0-9]+)?|([0-9.]+):[0-9]+")
_PREFIX_CHARS = 255
_PATH = re.compile(PATH_PREFIX)


class Proxies:
    """Those that `serve.trusted_proxies` names."""

    def __init__(self, trusted: Sequence[str]) -> None:
        self._networks = [ip_network(text) for text in trusted]

    def original(self, scope: Connection) -> Connection:
        """The request as the first trusted proxy got it: its client, and the path before it."""
        client = scope.get("client")
        sender = client and _address(client[0])
        if not sender or not self._trusts(sender):
            return scope
        found: dict[str, Any] = {"client": (self._client(sender, scope["headers"]), 0)}
        prefixes = [value for name, value in scope["headers"] if name == _PREFIX]
        if prefixes and (prefix := _prefix(prefixes[-1])):
            found["root_path"] = prefix + scope.get("root_path", "")
        return {**scope, **found}

    def _client(self, sender: IPv4Address | IPv6Address, headers: Iterable[Any]) -> str:
        """The last address that is no trusted proxy: each adds the one that it was called from, at
        the end, so that what a client has written is before it."""
        lines = [value.decode("latin-1") for name, value in headers if name == _FOR]
        for text in reversed(",".join(lines).split(",") if lines else []):
            before = _address(text.strip())
            if before is None:
                break
            sender = before
            if not self._trusts(sender):
                break
        return str(sender)

    def _trusts(self, address: IPv4Address | IPv6Address) -> bool:
        return any(address in network for network in self._networks)


def _address(text: str) -> IPv4Address | IPv6Address | None:
    """Read an address, also one with a port; None if the text has another form."""
    if found := _WITH_PORT.fullmatch(text):
        text = found[1] or found[2] or ""
    try:
        address = ip_address("" if "%" in text else text)  # after % anything may stand
    except ValueError:
        return None
    mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
    return mapped or address


def _prefix(value: bytes) -> str:
    """A path that pages can link to; empty if the header has something else."""
    text = value.decode("latin-1")
    is_path = len(text) <= _PREFIX_CHARS and _PATH.fullmatch(text)
    return text.rstrip("/") if is_path and not {".", ".."} & {*text.split("/")} else ""
