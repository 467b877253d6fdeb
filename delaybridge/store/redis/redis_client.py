"""redis-py's clients for a server's URL; a password in a file is read at each connect."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import redis
from redis import DriverInfo
from redis.backoff import NoBackoff
from redis.credentials import CredentialProvider
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import RedisError
from redis.retry import Retry

from delaybridge.errors import ConfigError, printable
from delaybridge.settings import password_file
from delaybridge.settings.password_file import PasswordFile
from delaybridge.settings.redis_servers import Address


class FileLogin(CredentialProvider):
    """User and password; the password is read from its file each time."""

    def __init__(self, user: str, file: PasswordFile) -> None:
        self._user, self._file = user, file

    def get_credentials(self) -> tuple[str] | tuple[str, str]:
        """The arguments of AUTH. ConnectionError, which is retried, if the file is unreadable."""
        try:
            password = self._file.read()
        except ValueError as exc:
            raise RedisConnectionError(str(exc)) from None
        return (self._user, password) if self._user else (password,)


def logged_in(url: str) -> tuple[str, dict[str, Any]]:
    """The URL without `password_file`, and the other arguments for redis-py's `from_url`."""
    bare, file = password_file.split(url)
    if file is None:
        return bare, {}
    scheme, mark, rest = bare.partition("://")
    location, slash, path = rest.partition("/")
    without_user = f"{scheme}{mark}{location.rpartition('@')[2]}{slash}{path}"
    login = FileLogin(password_file.user_of(bare), file)
    return without_user, {"credential_provider": login}


T = TypeVar("T")


def connect(
    from_url: Callable[..., T], url: str, timeout_s: float, address: Address | None = None
) -> T:
    """A client for the server that a URL names, or for the one at `address` with all else of it.

    timeout_s: to connect, and for each answer. ConfigError if redis-py refuses the URL.
    """
    url, login = logged_in(url)
    keepalive = {} if url.lower().startswith("unix:") else {"socket_keepalive": True}
    try:
        client = from_url(
            url,
            **login,
            **keepalive,
            protocol=2,
            # Else it reads its version from the installed package's metadata at each connect.
            driver_info=DriverInfo(lib_version=redis.__version__),
            retry=Retry(NoBackoff(), 0),
            socket_timeout=timeout_s,
            socket_connect_timeout=timeout_s,
            health_check_interval=0,
        )
    except (ValueError, TypeError, RedisError) as exc:
        raise ConfigError(f"redis.url: {printable(str(exc))[:120]}") from None
    if address is not None:
        pool = client.connection_pool  # type: ignore[attr-defined]
        pool.connection_kwargs |= {"host": address[0], "port": address[1]}
    return client
