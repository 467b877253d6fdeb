"""Which addresses may be connected to: by default only those of the public internet.

Whoever may schedule a message, or answers for a host's name, must not reach what is behind the
firewall (server-side request forgery). The address that was checked is the one connected to.
"""

from __future__ import annotations

import asyncio
import socket
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network

from aiohttp.abc import AbstractResolver, ResolveResult

_NAT64 = ip_network("64:ff9b::/96")
Address = IPv4Address | IPv6Address


class AddressRefused(OSError):
    """The host has an address that is not public."""


def is_public(address: Address) -> bool:
    """Whether it is a unicast address of the internet; in IPv6 also the IPv4 inside counts."""
    if isinstance(address, IPv6Address):
        if (inner := _inner(address)) is not None:
            return is_public(inner)
        if address.is_site_local:
            return False
    return address.is_global and not address.is_multicast and not address.is_reserved


def _inner(address: IPv6Address) -> IPv4Address | None:
    """The IPv4 address that an IPv6 address stands for."""
    if address in _NAT64:
        return IPv4Address(int(address) & 0xFFFFFFFF)
    teredo = address.teredo
    return address.ipv4_mapped or address.sixtofour or (teredo and teredo[1])


def check_host(host: str) -> None:
    """AddressRefused if the host is an address that is not public; names are checked later."""
    try:
        address = ip_address(host.strip("[]").partition("%")[0])
    except ValueError:
        return
    if not is_public(address):
        raise AddressRefused(f"{host} is not a public address")


class PublicResolver(AbstractResolver):
    """Resolves a name, and refuses it if any of its addresses is not public."""

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_UNSPEC
    ) -> list[ResolveResult]:
        """The addresses. AddressRefused; OSError if there are none."""
        loop = asyncio.get_running_loop()
        found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM, family=family)
        for *_, address in found:
            check_host(str(address[0]))
        return [
            ResolveResult(
                hostname=host, host=str(address[0]), port=port, family=family, proto=proto,
                flags=socket.AI_NUMERICHOST,
            )
            for family, _, proto, _, address in found
        ]  # fmt: skip

    async def close(self) -> None:
        """There is nothing to close."""
