"""What the server of the store can do of what delaybridge needs, and the setting that helps.

Tried on keys of a bucket that no namespace uses, which are removed. docs/engines.md has the table.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from hashlib import sha1
from typing import TYPE_CHECKING, Any

from delaybridge.errors import StoreError, StoreMisnamed, StoreUnavailable
from delaybridge.operate.doctor.checks import server_name
from delaybridge.operate.doctor.selftest import tried, unused
from delaybridge.operate.parts.rights import lacking_for
from delaybridge.operate.troubles.finding import Finding, ok
from delaybridge.operate.troubles.listed import trouble
from delaybridge.settings.url_options import TIME_IN_SCRIPTS, taken
from delaybridge.store.namespace import registry
from delaybridge.store.protocol import keys
from delaybridge.store.protocol.scripts import scripts
from delaybridge.store.protocol.verbs import RedisCommand, as_received, plain

if TYPE_CHECKING:
    from delaybridge.settings.settings import Settings
    from delaybridge.store.redis.store import Store

_PAGE = "See: docs/engines.md"
_ADD = "redis.call('ZADD', KEYS[1], '1800000000123.00390625', 'm')"
_IS_IT = (
    "redis.call('DEL', KEYS[1]) return tonumber(s[1]) == 1800000000123.00390625 and not s[2] and 1"
)
_NEEDED = {
    # what a script does: (its source, which answers 1, what helps)
    "TIME in scripts": (
        "return redis.call('TIME')[1] and 1", f"Add to redis.url: ?{TIME_IN_SCRIPTS}=no",
    ),
    "cmsgpack.unpack_limit": ("return cmsgpack.unpack_limit and 1", _PAGE),
    "struct": ("return #struct.pack('>d', 1) == 8 and 1", _PAGE),
    "cjson": ("return cjson.decode('[1]')[1]", _PAGE),
    "errors as values": (
        "redis.call('SET', KEYS[1], 1) local e = redis.pcall('ZCARD', KEYS[1]) "
        "redis.call('DEL', KEYS[1]) return type(e) == 'table' and e.err and 1", _PAGE,
    ),
    "exact scores": (f"{_ADD} local s = {{redis.call('ZSCORE', KEYS[1], 'm')}} {_IS_IT}", _PAGE),
    "ZMSCORE": (f"{_ADD} local s = redis.call('ZMSCORE', KEYS[1], 'm', 'x') {_IS_IT}", _PAGE),
}  # fmt: skip
_OPTIONAL: dict[tuple[str, tuple[str | int, ...]], str] = {
    ("CONFIG GET", ("appendfsync",)): "whether writes are synced cannot be seen before 7.2",
    ("WAIT", (0, 1)): "no durability = replicated:N",
    ("WAITAOF", (0, 0, 1)): "durability = aof-fsync needs appendfsync always",
    ("CLIENT LIST", ("ID", 1)): "a killed worker's buckets wait for its lease: lease.ttl_ms",
}


def engine(settings: Settings) -> Iterator[Finding]:
    """What works there, one finding after the other; those that fail are needed."""
    from delaybridge.store.redis.store import Store

    url, namespace = settings.redis.url, settings.namespace
    with closing(Store(url, timeout_s=settings.redis.timeout_s)) as store:
        try:
            (info,) = store.run_each([registry.info("server")])
            if isinstance(info, StoreUnavailable | StoreMisnamed):
                raise info
            yield ok("engine", "INFO is refused" if isinstance(info, StoreError) else named(info))
            if lacking := store.complete(lacking_for(namespace, "operator", store)):
                yield trouble("scripts_fail", f"lacks {', '.join(lacking)}", about="commands")
            else:
                yield ok("commands", "all that are needed")
            key = keys.bucket_key(namespace, unused(store, namespace), "due")
            is_told = taken(url, TIME_IN_SCRIPTS)[1] == "no"
            for what, (source, remedy) in _NEEDED.items():
                if not (is_told and what == "TIME in scripts"):
                    yield _feature(store, key, what, source, remedy)
            yield from _life(store, namespace)
            yield from _extras(store, key)
        except StoreError as exc:
            yield trouble("store_unreachable", why=str(exc).removeprefix("redis: "), url=url)


def named(info: dict[str, str]) -> str:
    """The server's name and version; that of Redis, whose commands it has, after another name."""
    for field, version in info.items():
        own, mark, _ = field.partition("_version")
        if mark and own not in ("redis", "valkey", "gcc"):
            return f"{own} {version}, as {server_name(info)}"
    return server_name(info)


def _feature(store: Store, key: str, what: str, source: str, remedy: str) -> Finding:
    digest = sha1(source.encode(), usedforsecurity=False).hexdigest()
    loaded: RedisCommand[Any] = plain("SCRIPT LOAD", source, near=key)
    _, answer = store.run_each([loaded, _asked("EVALSHA", (digest, 1, key), key)])
    if answer == 1:
        return ok("scripts", f"{what} works")
    why = answer if isinstance(answer, StoreError) else "it is missing or differs"
    return trouble("scripts_fail", f"{what}: {why}", about="scripts", remedy=remedy)


def _life(store: Store, namespace: str) -> Iterator[Finding]:
    done, error = tried(store, namespace)
    fact = f"{len(done)} of {len(scripts())} scripts run"
    if error is None:
        yield ok("scripts", fact)
        return
    left = ", ".join(sorted(scripts().keys() - done))
    yield trouble("scripts_fail", f"{fact}; {error}; so not: {left}", about="scripts", remedy=_PAGE)


def _extras(store: Store, key: str) -> Iterator[Finding]:
    for (name, args), without in _OPTIONAL.items():
        (answer,) = store.run_each([_asked(name, args, key)])
        is_lacking = isinstance(answer, StoreError)
        yield ok("optional", f"no {name}: {without}" if is_lacking else f"{name} works")


def _asked(name: str, args: tuple[str | int, ...], key: str) -> RedisCommand[Any]:
    """A command that only this asks for, so no role needs it. key: of the server that is asked."""
    return RedisCommand(name, (), args, as_received, is_plain=True, near=key)
