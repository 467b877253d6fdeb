"""What the server of the store can do of what delaybridge needs, and the setting that helps.

Tried on keys of a bucket that no namespace uses, which are removed. docs/engines.md has the table.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Sequence
from contextlib import closing
from hashlib import sha1
from importlib.resources import files
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
_TRIED = tomllib.loads(files("delaybridge.operate.doctor").joinpath("engine.toml").read_text())


def engine(settings: Settings) -> Iterator[Finding]:
    """What works there, one finding after the other; those that fail are needed."""
    from delaybridge.store.redis.store import Store

    url, namespace = settings.redis.url, settings.namespace
    with closing(Store(url, timeout_s=settings.redis.timeout_s)) as store:
        try:
            (info,) = store.run_each([registry.info("server")])
            if isinstance(info, StoreUnavailable | StoreMisnamed):
                raise info
            is_refused = isinstance(info, StoreError)
            yield ok("engine", "INFO is refused" if is_refused else server_name(info))
            if lacking := store.complete(lacking_for(namespace, "operator", store)):
                yield trouble("scripts_fail", f"lacks {', '.join(lacking)}", about="commands")
            else:
                yield ok("commands", "all that are needed")
            key = keys.bucket_key(namespace, unused(store, namespace), "due")
            is_told = taken(url, TIME_IN_SCRIPTS)[1] == "no"
            for what, feature in _TRIED["needed"].items():
                if not (is_told and what == "TIME in scripts"):
                    yield _feature(store, key, what, **feature)
            yield _life(store, namespace)
            yield from _extras(store, key)
        except StoreError as exc:
            yield trouble("store_unreachable", why=str(exc).removeprefix("redis: "), url=url)


def _feature(store: Store, key: str, what: str, script: str, remedy: str = _PAGE) -> Finding:
    digest = sha1(script.encode(), usedforsecurity=False).hexdigest()
    loaded: RedisCommand[Any] = plain("SCRIPT LOAD", script, near=key)
    _, answer = store.run_each([loaded, _asked("EVALSHA", (digest, 1, key), key)])
    if answer == 1:
        return ok("scripts", f"{what} works")
    why = str(answer).rstrip(".") if isinstance(answer, StoreError) else "it is missing or differs"
    return trouble("scripts_fail", f"{what}: {why}", about="scripts", remedy=remedy)


def _life(store: Store, namespace: str) -> Finding:
    done, error = tried(store, namespace)
    fact = f"{len(done)} of {len(scripts())} scripts run"
    if error is None:
        return ok("scripts", fact)
    left = ", ".join(sorted(scripts().keys() - done))
    what = f"{fact}; {str(error).rstrip('.')}; so not: {left}"
    return trouble("scripts_fail", what, about="scripts", remedy=_PAGE)


def _extras(store: Store, key: str) -> Iterator[Finding]:
    for name, extra in _TRIED["optional"].items():
        (answer,) = store.run_each([_asked(name, extra["args"], key)])
        is_lacking = isinstance(answer, StoreError)
        yield ok("optional", f"no {name}: {extra['without']}" if is_lacking else f"{name} works")


def _asked(name: str, args: Sequence[str | int], key: str) -> RedisCommand[Any]:
    """A command that only this asks for, so no role needs it. key: of the server that is asked."""
    return RedisCommand(name, (), args, as_received, is_plain=True, near=key)
