"""`delaybridge doctor`: checks everything a deployment needs, and names what to change."""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

from delaybridge.cli.failure import Exit
from delaybridge.cli.fleet import failing_text, ingest_numbers, overdue_text, unowned
from delaybridge.cli.grammar import Command, pass_session
from delaybridge.cli.measure import measured, server_name
from delaybridge.cli.output import FAIL, OK, WARN
from delaybridge.cli.session import Session
from delaybridge.errors import (
    ConfigError,
    DelayBridgeError,
    PublishError,
    StoreError,
    StoreUnavailable,
)
from delaybridge.store import damage, registry

if TYPE_CHECKING:
    from delaybridge.settings.settings import Settings
    from delaybridge.store.announcements import SourceInfo
    from delaybridge.store.damage import Damage
    from delaybridge.store.stats import Stats
    from delaybridge.store.store import Store

_OLDEST_REDIS = (6, 2)
# Release line -> the first release with the fixes of October 2025 for four holes in Lua. The worst,
# CVE-2025-49844, lets every user who may run a script run code on the server.
_LUA_FIXED: dict[str, dict[tuple[int, int], int]] = {
    "redis": {(6, 2): 20, (7, 2): 11, (7, 4): 6, (8, 0): 4, (8, 2): 2},
    "valkey": {(7, 2): 11, (8, 0): 6, (8, 1): 4},
}
_MAX_SKEW_MS = 2000
_MAX_LATENCY_MS = 20.0
_CONNECT_TIMEOUT_S = 10.0
_CLOSE_TIMEOUT_S = 1.0
_PROPERTIES_BYTES = 4096  # about the most that properties take in a frame


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the report. about: `redis`, `clock`, `broker NAME`, ..."""

    level: str
    about: str
    text: str


@click.command("doctor", cls=Command)
@pass_session
def doctor(session: Session) -> int:
    """Check Redis, brokers, clock and workers; say what to change. Exits with 1 if a check fails.

    Changes nothing: scripts are tried on a bucket of their own, which is removed.
    """
    settings = session.settings
    if session.verbose:
        from delaybridge.cli.logs import configure

        configure(as_json=session.output.json, verbose=True)
    else:
        logging.basicConfig(handlers=[logging.NullHandler()])
    failed = False
    for finding in _findings(settings):
        failed |= finding.level == FAIL
        data = {"level": finding.level.lower(), "about": finding.about, "text": finding.text}
        session.output.verdict(data, finding.level, f"{finding.about}: {finding.text}")
    return Exit.FAILED if failed else Exit.DONE


def _findings(settings: Settings) -> Iterator[Finding]:
    for caution in settings.cautions():
        yield Finding(WARN, "settings", caution)
    announced: list[SourceInfo] = []
    yield from _redis(settings, announced)
    yield from _brokers(settings)
    yield from _delay_exchanges(settings, announced)


def _redis(settings: Settings, announced: list[SourceInfo]) -> Iterator[Finding]:
    """Fills `announced` with the sources that ingest processes read."""
    from delaybridge.store.store import Store

    with closing(Store(settings.redis.url, timeout_s=settings.redis.timeout_s)) as store:
        try:
            yield from _server(store)
            yield from _clock(store)
            yield from _rights(store, settings)
            yield from _namespace(store, settings, announced)
        except DelayBridgeError as exc:
            yield Finding(FAIL, "redis", f"{_reason(exc)} ({settings.redis.url})")


def _reason(exc: DelayBridgeError) -> str:
    return str(exc).removeprefix("redis: ").rstrip(".")


def _server(store: Store) -> Iterator[Finding]:
    sections = [registry.info(name) for name in ("server", "memory", "persistence")]
    server, memory, persistence = store.run(sections)
    name = server_name(server)
    if _numbers(server.get("redis_version", "")) < _OLDEST_REDIS:
        yield Finding(FAIL, "redis", f"{name} is too old; 6.2 or newer is needed")
    else:
        yield Finding(OK, "redis", name)
    if (fixed := lua_fixed_in(name)) is not None:
        what = (
            "this release has known holes in Lua (CVE-2025-49844), unless your distribution has "
            f"fixed them. Upgrade: {fixed}"
        )
        yield Finding(WARN, "redis", what)
    policy = memory.get("maxmemory_policy", "?")
    if policy == "noeviction":
        yield Finding(OK, "redis", "maxmemory-policy noeviction")
    else:
        what = f"maxmemory-policy is {policy}: a full Redis would drop messages. Set: noeviction"
        yield Finding(FAIL, "redis", what)
    if persistence.get("aof_enabled") == "1":
        yield Finding(OK, "redis", "appendonly yes")
    else:
        what = "appendonly is no: a restart loses delayed messages. Set: appendonly yes"
        yield Finding(WARN, "redis", what)


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".")[:2] if part.isdigit())


def lua_fixed_in(name: str) -> str | None:
    """The release that fixes the holes in a server such as `redis 7.2.4`; None if it has none."""
    found = re.fullmatch(r"(\w+) (\d+)\.(\d+)\.(\d+).*", name)
    lines = _LUA_FIXED.get(found[1], {}) if found else {}
    if found is None or not lines:
        return None
    line, patch = (int(found[2]), int(found[3])), int(found[4])
    if line > max(lines) or patch >= lines.get(line, patch + 1):
        return None
    # A release line without a fix: upgrade to the next line that has one.
    major, minor = line if line in lines else min(known for known in lines if known > line)
    return f"{found[1]} {major}.{minor}.{lines[major, minor]} or newer"


def _clock(store: Store) -> Iterator[Finding]:
    """Latency, and the difference between the clocks."""
    trip_ms, ahead_ms = measured(store)
    latency = f"latency {trip_ms:.2f} ms"
    if trip_ms > _MAX_LATENCY_MS:
        latency += ": every due message waits for it. Bring workers and Redis closer together"
    yield Finding(WARN if trip_ms > _MAX_LATENCY_MS else OK, "redis", latency)
    side = "ahead of" if ahead_ms > 0 else "behind"
    difference = f"this host's clock is {abs(ahead_ms):.0f} ms {side} that of Redis"
    if abs(ahead_ms) > _MAX_SKEW_MS:
        what = f"{difference}, and so are times given by --at. Fix NTP"
        yield Finding(WARN, "clock", what)
    else:
        yield Finding(OK, "clock", difference)


def _rights(store: Store, settings: Settings) -> Iterator[Finding]:
    """Rights that the Redis user lacks as a client, as a worker, or for this command line."""
    from delaybridge.store.rights import ROLES, lacking_for

    lacking = {
        name: store.complete(lacking_for(settings.namespace, role)) for name, role in ROLES.items()
    }
    level = FAIL if all(lacking.values()) else WARN
    for name, missing in lacking.items():
        if missing:
            what = f"the user lacks rights of the role {name}: {', '.join(missing)}"
            yield Finding(level, "rights", f"{what}. See docs/keys.md")
    if able := [name for name, missing in lacking.items() if not missing]:
        yield Finding(OK, "rights", f"the user has the rights of: {', '.join(able)}")
    if not lacking["operator"]:
        yield from _scripts(store, settings)


def _scripts(store: Store, settings: Settings) -> Iterator[Finding]:
    from delaybridge.cli.selftest import run_scripts

    try:
        count = run_scripts(store, settings.namespace)
        yield Finding(OK, "redis", f"all {count} scripts run")
    except StoreUnavailable:
        raise
    except StoreError as exc:
        yield Finding(FAIL, "redis", f"{_reason(exc)}. Check the version and the user's rights")


def _namespace(store: Store, settings: Settings, announced: list[SourceInfo]) -> Iterator[Finding]:
    """Bucket count, owners, lateness. Checking does not create the namespace."""
    from delaybridge.client import Client

    (record,) = store.run_each([registry.read_birth(settings.namespace)])
    if isinstance(record, StoreError):
        yield _damaged(damage.of_birth(settings.namespace))
        return
    if record is None:
        yield Finding(OK, "namespace", f"{settings.namespace} is new: it has not been used yet")
        return
    count = record[0]
    if count != settings.buckets:
        what = f"{settings.namespace} was created with {count} buckets. Set: buckets = {count}"
        yield Finding(FAIL, "namespace", what)
        return
    with Client.from_settings(settings) as client:
        found = client.stats()
    announced += [source for ingest in found.ingests for source in ingest.sources]
    alone = unowned(found)
    held = f"{count - len(alone)} of {count} buckets owned by {len(found.workers)} workers"
    if not alone:
        yield Finding(OK, "workers", held)
    else:
        pending = found.delayed + found.in_flight
        what = f"{held}, {pending} messages pending. Start a worker: delaybridge scan"
        yield Finding(FAIL if pending else WARN, "workers", what)
    yield from map(_damaged, found.all_damage)
    yield from _ingests(found, settings)
    if found.overdue_ms > _MAX_SKEW_MS:
        what = f"the oldest message is {overdue_text(found)} overdue. See: delaybridge bucket ls"
        yield Finding(WARN, "lateness", what)
    yield from _troubles(found, settings)
    if found.dead:
        what = f"{found.dead} messages are dead. See: delaybridge dead ls --by-reason"
        yield Finding(WARN, "dead", what)


def _troubles(found: Stats, settings: Settings) -> Iterator[Finding]:
    """Publishes that fail, what is parked and why, and brokers that no worker serves."""
    from delaybridge.store.troubles import LACKING, first_word

    for each in found.retrying:
        what = f"{failing_text(each, found)}. See: delaybridge message ls, delaybridge stats"
        yield Finding(WARN, "retrying", what)
    serving = [each.said.brokers for each in found.workers if each.said.brokers is not None]
    served = {name for brokers in serving for name in brokers}
    lacking = {t.destination.rstrip(":") for t in found.troubles if first_word(t.reason) == LACKING}
    for name in sorted(lacking - served):
        what = f"no worker serves broker {name}, its messages are parked. Add it to their [brokers]"
        yield Finding(FAIL, "workers", what)
    for name in sorted(settings.brokers.keys() - served - lacking) if serving else ():
        what = f"no worker serves broker {name}. Add it to their [brokers]"
        yield Finding(WARN, "workers", what)
    for trouble in found.troubles:
        what = f"{trouble.worker} parks messages to {trouble.destination} {trouble.reason}"
        yield Finding(FAIL, "workers", what)


def _damaged(one: Damage) -> Finding:
    what = f"{one}: its bucket waits, the others go on. Repair it to resume: {one.remedy}"
    return Finding(FAIL, "damage", what)


def _ingests(found: Stats, settings: Settings) -> Iterator[Finding]:
    """Which sources are read, and the obstacles; nothing if ingest is not used."""
    from delaybridge.cli.sources import is_stalled, unread

    if named := unread(found, settings):
        what = f"nobody reads {', '.join(named)}. Start: delaybridge ingest, or scan --with-ingest"
        yield Finding(WARN, "ingest", what)
    sources = [(each, process) for process in found.ingests for each in process.sources]
    for each, process in sources:
        told = f"{each.source} -> {each.target}: {each.state}, {ingest_numbers(each)}"
        if is_stalled(each, process, found.now_ms):
            yield Finding(FAIL, "ingest", told)
        elif each.quarantined:
            what = f"{told}. See: delaybridge dead ls --by-reason"
            yield Finding(WARN, "ingest", what)
        else:
            yield Finding(OK, "ingest", told)
        for hint in _hints(each):
            yield Finding(WARN, "ingest", f"{each.source}: {hint}")


def _hints(each: SourceInfo) -> Iterator[str]:
    """Changes that the producers of a source should make."""
    if each.near_misses:
        yield (
            f"{each.near_misses} messages with a misspelt header, as X-Delay for x-delay; "
            "they were not delayed by it"
        )
    if each.without_id:
        yield (
            f"{each.without_id} messages without an id: after a crash each may arrive twice. "
            "Set message_id"
        )
    if each.refused:
        yield (
            f"{each.refused} cancels or reschedules of messages to other destinations "
            "were refused. See: ingest.trust"
        )


def _delay_exchanges(settings: Settings, announced: list[SourceInfo]) -> Iterator[Finding]:
    """Whether queues are bound to a delay exchange: they would get its messages undelayed.

    Checks the exchanges that the settings name, and those that ingest processes read.
    """
    from delaybridge.cli.sources import delay_exchanges

    try:
        routes = delay_exchanges(settings, announced)
    except ConfigError as exc:
        yield Finding(FAIL, "ingest", str(exc))
        return
    if not routes:
        return
    from delaybridge.ingest.rabbitmq.ingest import look_for_others
    from delaybridge.worker.ingester import options_of

    for route, others, why in asyncio.run(look_for_others(options_of(settings, routes).values())):
        if others:
            yield Finding(FAIL, "ingest", f"{route}: {others}")
        elif why:
            what = f"{route}: cannot list its bindings: {why}. Set: ingest.management"
            yield Finding(WARN, "ingest", what)
        else:
            yield Finding(OK, "ingest", f"{route}: nothing else is bound to {route.source}")


def _brokers(settings: Settings) -> Iterator[Finding]:
    if not settings.brokers:
        what = "none is configured; a worker needs one. Add --broker amqp://HOST or [brokers]"
        yield Finding(WARN, "brokers", what)
    for name, url in settings.brokers.items():
        yield from asyncio.run(_broker(name, url, settings))


async def _broker(name: str, url: str, settings: Settings) -> list[Finding]:
    from delaybridge import publish

    options, about = publish.PublishOptions.of(settings.publish), f"broker {name}"
    nothing: Callable[..., Any] = lambda *_: None  # noqa: E731
    try:
        publisher = publish.connect(name, url, report=nothing, on_change=nothing, options=options)
    except ConfigError as exc:
        return [Finding(FAIL, about, str(exc).removeprefix(f"brokers.{name}: "))]
    try:
        async with asyncio.timeout(_CONNECT_TIMEOUT_S):
            await publisher.connect()
            asked = getattr(publisher, "limits", None)  # not every kind of broker has limits
            limits = {} if asked is None else await asked()
        found = [Finding(OK, about, publisher.describe())]
        return found + [Finding(WARN, about, what) for what in too_small(limits, settings)]
    except TimeoutError:
        what = f"no answer within {_CONNECT_TIMEOUT_S:.0f} s ({url}). Check host, port and firewall"
        return [Finding(FAIL, about, what)]
    except PublishError as exc:
        reason = str(exc).removeprefix(f"{name}: ")
        return [Finding(FAIL, about, f"{reason} ({url})")]
    finally:
        await publisher.close(_CLOSE_TIMEOUT_S)


def too_small(limits: Mapping[str, int], settings: Settings) -> Iterator[str]:
    """A broker's limits below ours: it would refuse messages that we accept, when they are due."""
    ours = settings.limits
    whole = ours.body_bytes + ours.headers_bytes
    if limits.get("record", whole) < whole:
        yield (
            f"it takes records of up to {limits['record']:,} bytes, limits.body_bytes and "
            f"headers_bytes allow {whole:,}. Lower them, or raise message.max.bytes"
        )
    headers = ours.headers_bytes + _PROPERTIES_BYTES
    if 0 < limits.get("frame", 0) < headers:
        yield (
            f"its frame_max is {limits['frame']:,} bytes, headers and properties may take "
            f"{headers:,}. Raise frame_max, or lower limits.headers_bytes"
        )
