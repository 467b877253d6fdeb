"""All checks of a deployment, one after the other: each names the fault and the remedy.

The command `delaybridge doctor` prints the findings, the console and the HTTP API show them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import closing
from typing import TYPE_CHECKING

from delaybridge import errors
from delaybridge.operate.doctor.brokers import brokers, delay_exchanges
from delaybridge.operate.doctor.checks import measured
from delaybridge.operate.doctor.durability import disk, durability
from delaybridge.operate.doctor.namespace import namespace
from delaybridge.operate.doctor.servers import servers
from delaybridge.operate.troubles.addressed import addressed
from delaybridge.operate.troubles.finding import Finding, ok
from delaybridge.operate.troubles.listed import trouble
from delaybridge.settings.durability import Keeping
from delaybridge.store.namespace import gate, registry
from delaybridge.store.protocol import keys
from delaybridge.times import MOST_SKEW_MS

if TYPE_CHECKING:
    from delaybridge.settings.settings import Settings
    from delaybridge.store.redis.store import Store

_MAX_LATENCY_MS = 20.0


def findings(settings: Settings) -> Iterator[Finding]:
    """One check after the other. What cannot be reached is a finding, no error; no text has a
    password. Not on an event loop: brokers are tried on loops of their own.
    """
    return (addressed(each, settings) for each in _findings(settings))


def _findings(settings: Settings) -> Iterator[Finding]:
    from delaybridge.store.redis.store import Store

    for caution in settings.cautions():
        yield trouble("settings_risky", caution)
    found = None
    with closing(Store(settings.redis.url, timeout_s=settings.redis.timeout_s)) as store:
        try:
            yield from servers(store, settings)
            yield from clock(store)
            lacking = store.complete(gate.find_shortfalls(settings.kept, store))
            yield from durability(lacking, settings)
            yield from disk(store, settings)
            if (silent := _without_home(store, settings)) is not None:
                yield silent
            else:
                found = yield from namespace(store, settings)
                yield from _rights(store, settings)
        except errors.DelayBridgeError as exc:
            if not (found and found.refused):  # which has been said
                yield _unreachable(exc, settings.redis.url)
    yield from _ledger(settings)
    if settings.brokers:
        yield from asyncio.run(brokers(settings))
    else:
        yield trouble("brokers_missing")
    yield from delay_exchanges(settings, found)


def _without_home(store: Store, settings: Settings) -> Finding | None:
    """The finding if the server of the namespace's own keys is silent, and others are not."""
    (record,) = store.run_each([registry.read_birth(settings.namespace)])
    if not isinstance(record, errors.StoreUnavailable):
        return None
    node = store.node_of(keys.birth(settings.namespace)) or "redis"
    return trouble("namespace_unseen", node=node, namespace=settings.namespace)


def _unreachable(exc: errors.DelayBridgeError, url: str) -> Finding:
    _, answers, why = _reason(exc).rpartition("not ready: ")
    if answers or isinstance(exc, errors.StoreFull):
        return trouble("store_refuses_writes", server="Redis", why=why)
    return trouble("store_unreachable", why=why, url=url)


def _reason(exc: errors.DelayBridgeError) -> str:
    return str(exc).removeprefix("redis: ").rstrip(".")


def clock(store: Store) -> Iterator[Finding]:
    """Latency, and the difference between the clocks."""
    trip_ms, ahead_ms = measured(store)
    fact = f"latency {trip_ms:.2f} ms"
    is_far = trip_ms > _MAX_LATENCY_MS
    yield trouble("store_far", latency=f"{trip_ms:.2f} ms") if is_far else ok("redis", fact)
    side = "ahead of" if ahead_ms > 0 else "behind"
    fact = f"this host's clock is {abs(ahead_ms):.0f} ms {side} that of Redis"
    is_off = abs(ahead_ms) > MOST_SKEW_MS
    yield trouble("host_clock_off", fact) if is_off else ok("clock", fact)


def _rights(store: Store, settings: Settings) -> Iterator[Finding]:
    """Rights that the Redis user lacks as a client, as a worker, or for this command line."""
    from delaybridge.operate.doctor.selftest import run_scripts
    from delaybridge.operate.parts.rights import ROLES, lacking_for

    lacking = {name: store.complete(lacking_for(settings.namespace, name, store)) for name in ROLES}
    for name, missing in lacking.items():
        if missing:
            what = f"the user lacks rights of the role {name}: {', '.join(missing)}"
            code = "rights_missing" if all(lacking.values()) else "rights_few"
            yield trouble(code, what)
    if able := [name for name, missing in lacking.items() if not missing]:
        yield ok("rights", f"the user has the rights of: {', '.join(able)}")
    if lacking["operator"]:
        return
    try:
        yield ok("redis", f"all {run_scripts(store, settings.namespace)} scripts run")
    except (errors.StoreUnavailable, errors.StoreFull):
        raise
    except errors.StoreError as exc:
        yield trouble("scripts_fail", why=_reason(exc))


def _ledger(settings: Settings) -> Iterator[Finding]:
    """Whether the ledger's database answers, and has the tables of this version."""
    if not settings.ledger.url:
        return
    from delaybridge.ledger.sql.opening import open_ledger
    from delaybridge.store.protocol.verbs import Work

    try:
        timeout_s = settings.redis.timeout_s
        with closing(open_ledger(settings.ledger.url, timeout_s=timeout_s)) as ledger:
            ledger.run(Work(lambda on: None))
    except (errors.ConfigError, errors.StoreError) as exc:
        yield trouble("ledger_unreachable", why=str(exc).removeprefix("ledger: "))
        return
    yield ok("ledger", f"{settings.ledger.url} answers, and has the tables it needs")
    if settings.durability != Keeping.LEDGER:
        yield trouble("ledger_unused", durability=settings.durability)
