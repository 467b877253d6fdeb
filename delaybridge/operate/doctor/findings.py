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
from delaybridge.operate.doctor.finding import FAIL, OK, WARN, Finding, check
from delaybridge.operate.doctor.namespace import namespace
from delaybridge.operate.doctor.servers import servers
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
    from delaybridge.store.redis.store import Store

    for caution in settings.cautions():
        yield Finding(WARN, "settings", caution)
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
                yield from _rights(store, settings)
                found = yield from namespace(store, settings)
        except errors.DelayBridgeError as exc:
            yield Finding(FAIL, "redis", f"{_reason(exc)} ({settings.redis.url})")
    yield from _ledger(settings)
    if settings.brokers:
        yield from asyncio.run(brokers(settings))
    else:
        remedy = "Add --broker amqp://HOST or [brokers]"
        yield Finding(WARN, "brokers", "none is configured: workers serve pull topics only", remedy)
    yield from delay_exchanges(settings, found)


def _without_home(store: Store, settings: Settings) -> Finding | None:
    """The finding if the server of the namespace's own keys is silent, and others are not."""
    (record,) = store.run_each([registry.read_birth(settings.namespace)])
    if not isinstance(record, errors.StoreUnavailable):
        return None
    node = store.node_of(keys.birth(settings.namespace)) or "redis"
    what = f"{node} has the record of {settings.namespace} and does not answer"
    return Finding(FAIL, "namespace", what, "Start it again; running workers serve the rest")


def _reason(exc: errors.DelayBridgeError) -> str:
    return str(exc).removeprefix("redis: ").rstrip(".")


def clock(store: Store) -> Iterator[Finding]:
    """Latency, and the difference between the clocks."""
    trip_ms, ahead_ms = measured(store)
    fact, is_near = f"latency {trip_ms:.2f} ms", trip_ms <= _MAX_LATENCY_MS
    fault = "every due message waits for it. Bring workers and Redis closer together"
    yield check("redis", is_near, fact, fault, level=WARN)
    side = "ahead of" if ahead_ms > 0 else "behind"
    fact = f"this host's clock is {abs(ahead_ms):.0f} ms {side} that of Redis"
    fault = "times given by --at are wrong by as much. Fix NTP"
    yield check("clock", abs(ahead_ms) <= MOST_SKEW_MS, fact, fault, level=WARN)


def _rights(store: Store, settings: Settings) -> Iterator[Finding]:
    """Rights that the Redis user lacks as a client, as a worker, or for this command line."""
    from delaybridge.operate.doctor.selftest import run_scripts
    from delaybridge.operate.parts.rights import ROLES, lacking_for

    lacking = {name: store.complete(lacking_for(settings.namespace, name, store)) for name in ROLES}
    for name, missing in lacking.items():
        if missing:
            what = f"the user lacks rights of the role {name}: {', '.join(missing)}"
            level = FAIL if all(lacking.values()) else WARN
            yield Finding(level, "rights", what, "See docs/security.md")
    if able := [name for name, missing in lacking.items() if not missing]:
        yield Finding(OK, "rights", f"the user has the rights of: {', '.join(able)}")
    if lacking["operator"]:
        return
    try:
        yield Finding(OK, "redis", f"all {run_scripts(store, settings.namespace)} scripts run")
    except errors.StoreUnavailable:
        raise
    except errors.StoreFull as exc:
        yield Finding(FAIL, "redis", _reason(exc))
    except errors.StoreError as exc:
        yield Finding(FAIL, "redis", _reason(exc), "Check the version and the user's rights")


def _ledger(settings: Settings) -> Iterator[Finding]:
    """Whether the ledger's database answers, and has the tables of this version."""
    if not settings.ledger.url:
        return
    from delaybridge.ledger.sql.opening import open_ledger
    from delaybridge.store.protocol.verbs import Work

    try:
        ledger = open_ledger(settings.ledger.url, timeout_s=settings.redis.timeout_s)
        ledger.run(Work(lambda on: None))
        ledger.close()
    except (errors.ConfigError, errors.StoreError) as exc:
        yield Finding(FAIL, "ledger", str(exc).removeprefix("ledger: "))
        return
    yield Finding(OK, "ledger", f"{settings.ledger.url} answers, and has the tables it needs")
    if settings.durability != Keeping.LEDGER:
        what = f"durability is {settings.durability}: messages are not recorded"
        yield Finding(WARN, "ledger", what, "Set: durability = ledger")
