"""Clients of redis-py that never send anything again by themselves.

Their retries multiply (connect inside command) and know no deadline; `Pipeline` does both.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from redis.backoff import NoBackoff
from redis.exceptions import RedisError
from redis.retry import Retry

from delaybridge.errors import ConfigError, printable
from delaybridge.settings.redis_servers import Address
from delaybridge.store.redis.login import logged_in

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
