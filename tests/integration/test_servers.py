"""The servers are what they say, are private, and leave nothing behind."""

from __future__ import annotations

import redis


def test_every_redis_answers_and_has_the_version_it_says(any_redis_url: str) -> None:
    with redis.Redis.from_url(any_redis_url) as client:
        assert client.ping()
