"""A listening socket at the address of the settings, or what is wrong with that."""

from __future__ import annotations

import errno
import socket

from delaybridge.errors import ConfigError


def listening(section: str, host: str, port: int, *, backlog: int, zero: str) -> socket.socket:
    """A listening socket. section: of the settings; zero: what port 0 is good for.

    ConfigError names the setting and what to do.
    """
    try:
        family, *_, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        return socket.create_server(address[:2], family=family, backlog=backlog)
    except (OSError, UnicodeError) as exc:
        code = exc.errno if isinstance(exc, OSError) else None
        what = f"{section}.port: cannot listen on {host}, port {port}: {exc}"
        if code == errno.EADDRINUSE:
            what = f"{section}.port: {port} on {host} is in use; choose another, or 0 for {zero}"
        elif code == errno.EACCES:
            what = f"{section}.port: {port} on {host} is not allowed; choose one above 1023"
        elif code == errno.EADDRNOTAVAIL or isinstance(exc, socket.gaierror | UnicodeError):
            what = f"{section}.host: {host!r} is no address of this host; use 127.0.0.1 or 0.0.0.0"
        raise ConfigError(what) from None
