"""Redis Streams for tests of publishers."""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
import redis

from delaybridge.message import Destination
from tests.rigs import certificates
from tests.rigs.broker import NetworkRig, Received
from tests.servers.process import free_port
from tests.servers.redis import RedisServer, redis_url_of, tls_binary


@contextlib.contextmanager
def redis_with_tls(folder: Path) -> Iterator[tuple[int, Path]]:
    """A private Redis: its TLS port, and the authority that signed its certificate."""
    binary = tls_binary()
    if binary is None:
        pytest.skip("no Redis here was built with TLS")
    made, port = certificates.make(folder), free_port()
    tls = ["--tls-port", str(port), "--tls-auth-clients", "no"]
    files = ["--tls-cert-file", str(made.certificate), "--tls-key-file", str(made.key)]
    authority = ["--tls-ca-cert-file", str(made.authority)]
    with RedisServer([*tls, *files, *authority], binary=binary):
        yield port, made.authority


class RedisRig(NetworkRig):
    """Redis with an append-only file. A missing stream is a key of another type."""

    kind = "redis"
    missing_reason = "wrong_type"
    raising = (
        "delaybridge.publishers.redis_streams.publisher:StreamsPublisher._send",
        "delaybridge.publishers.redis_streams.publisher:StreamsPublisher._answered",
        "redis.asyncio.connection:AbstractConnection.pack_commands",
    )
    oversize = None  # its limit, 512 MB, is that of limits.body_bytes

    def __init__(self, args: Sequence[str] = ()) -> None:
        super().__init__()
        self.node = RedisServer(["--appendonly", "yes", *args])

    def url(self) -> str:
        return redis_url_of(self.proxy_port)

    def login(self, file: Path) -> tuple[str, str] | None:
        with self.client() as client:
            client.acl_setuser(
                "bridge", True, passwords=["+s3cret@:/"], keys=["*"], commands=["+@all"]
            )
        return f"{self.url().replace('://', '://bridge@')}?password_file={file}", "s3cret@:/"

    def client(self) -> redis.Redis:
        """A plain client, past the proxy."""
        return redis.Redis.from_url(self.node.url)

    def make(self, name: str | None = None) -> str:
        name = name or f"s-{uuid.uuid4().hex}"
        with self.client() as client:
            client.delete(name)  # it may be of another type
        return name

    def missing_destination(self) -> Destination:
        missing = super().missing_destination()
        with self.client() as client:
            client.set(missing.address, "no stream")
        return missing

    def read(self, address: str, at_least: int) -> list[Received]:
        with self.client() as client:
            return [
                Received(
                    fields[b"delaybridge-id"].decode(),
                    fields[b"body"],
                    int(fields[b"delaybridge-attempt"]),
                )
                for _, fields in client.xrange(address)
            ]
