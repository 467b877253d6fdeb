"""redis-py still has the private attributes that `store/connection.py` reads.

If one of these fails after an update of redis-py, adapt `store/connection.py` before its bound in
pyproject.toml is raised.
"""

from __future__ import annotations

from typing import Any

import pytest
import redis
import redis.asyncio

URL = "redis://127.0.0.1:1/0"


@pytest.mark.parametrize("library", [redis, redis.asyncio])
def test_a_pool_tells_how_to_make_a_connection(library: Any) -> None:
    pool = library.Redis.from_url(URL).connection_pool
    connection = pool.connection_class(**pool.connection_kwargs)
    assert pool.max_connections > 0
    assert callable(connection._parser.parse_error)


def test_an_asyncio_connection_keeps_its_streams_where_they_are_taken_from() -> None:
    pool = redis.asyncio.Redis.from_url(URL).connection_pool
    connection = pool.connection_class(**pool.connection_kwargs)
    assert connection._reader is None and connection._writer is None


def test_a_connection_keeps_its_socket_where_it_is_taken_from() -> None:
    pool = redis.Redis.from_url(URL).connection_pool
    assert pool.connection_class(**pool.connection_kwargs)._sock is None
