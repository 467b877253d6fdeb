"""`delaybridge doctor`: checks everything a deployment needs, and names what to change."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Generator, Iterator, Mapping
from contextlib import closing
from typing import TYPE_CHECKING, Any

import click

import delaybridge
from delaybridge import errors
from delaybridge.cli.checks import (
    Finding,
    check,
    definitions_of,
    is_stalled,
    measured,
    problems,
    recurring_definitions,
)
from delaybridge.cli.durability import disk, durability
from delaybridge.cli.failure import Exit
from delaybridge.cli.fleet import ingest_numbers, paused_text, sources_of
from delaybridge.cli.grammar import Command, pass_call
from delaybridge.cli.invocation import Invocation
from delaybridge.cli.output import FAIL, OK, WARN
from delaybridge.cli.servers import servers
from delaybridge.message import PULL
from delaybridge.settings.durability import Keeping
from delaybridge.store import damage, gate, keys, registry, setbacks
from delaybridge.store.described import unowned
from delaybridge.store.unseen import numbers

if TYPE_CHECKING:
    from delaybridge.settings.routes import Route
    from delaybridge.settings.settings import Settings
    from delaybridge.store.announcements import SourceInfo
    from delaybridge.store.store import Store

_MAX_SKEW_MS = 2000
_MAX_LATENCY_MS = 20.0
_CONNECT_TIMEOUT_S = 10.0
_CLOSE_TIMEOUT_S = 1.0
_DAY_MS = 86_400_000
_PROPERTIES_BYTES = 4096  # about the most that properties take in a frame


@click.command("doctor", cls=Command)
@pass_call
def doctor(call: Invocation) -> int:
    """Check Redis, brokers, clock and workers; say what to change. Exits with 1 if a check fails.

    Changes nothing: scripts are tried on a bucket of their own, which is removed.
    """
    settings = call.settings
    if call.verbose:
        from delaybridge.cli.logs import configure

        configure(as_json=call.output.json, verbose=True)
    else:
        logging.basicConfig(handlers=[logging.NullHandler()])
    has_failed = False
    for finding in _findings(settings):
        has_failed |= finding.level == FAIL
        data = {"level": finding.level.lower(), "about": finding.about, "text": finding.text}
        call.output.verdict(data, finding.level, f"{finding.about}: {finding.text}")
    return Exit.FAILED if has_failed else Exit.DONE


def _findings(settings: Settings) -> Iterator[Finding]:
    from delaybridge.store.store import Store

    for caution in settings.cautions():
        yield Finding(WARN, "settings", caution)
    found = None
    with closing(Store(settings.redis.url, timeout_s=settings.redis.timeout_s)) as store:
        try:
            yield from servers(store, settings)
            yield from _clock(store)
            lacking = store.complete(gate.look(settings.kept, store))
            yield from durability(lacking, settings)
            yield from disk(store, settings)
            if (silent := _without_home(store, settings)) is not None:
                yield silent
            else:
                yield from _rights(store, settings)
                found = yield from _namespace(store, settings)
        except errors.DelayBridgeError as exc:
            yield Finding(FAIL, "redis", f"{_reason(exc)} ({settings.redis.url})")
    yield from _ledger(settings)
    if not settings.brokers:
        remedy = "Add --broker amqp://HOST or [brokers]"
        yield Finding(WARN, "brokers", "none is configured: workers serve pull topics only", remedy)
    for name, url in settings.brokers.items():
        yield from asyncio.run(_broker(name, url, settings))
    announced = [source for source, _ in sources_of(found)] if found else []
    yield from _delay_exchanges(settings, announced)


def _without_home(store: Store, settings: Settings) -> Finding | None:
    """What to say if the server of the namespace's own keys does not answer, but others do."""
    (record,) = store.run_each([registry.read_birth(settings.namespace)])
    if not isinstance(record, errors.StoreUnavailable):
        return None
    node = store.node_of(keys.birth(settings.namespace)) or "redis"
    what = f"{node} has the record of {settings.namespace} and does not answer"
    return Finding(FAIL, "namespace", what, "Start it again; running workers serve the rest")


def _reason(exc: errors.DelayBridgeError) -> str:
    return str(exc).removeprefix("redis: ").rstrip(".")


def _clock(store: Store) -> Iterator[Finding]:
    """Latency, and the difference between the clocks."""
    trip_ms, ahead_ms = measured(store)
    fact, is_near = f"latency {trip_ms:.2f} ms", trip_ms <= _MAX_LATENCY_MS
    fault = "every due message waits for it. Bring workers and Redis closer together"
    yield check("redis", is_near, fact, fault, level=WARN)
    side = "ahead of" if ahead_ms > 0 else "behind"
    fact = f"this host's clock is {abs(ahead_ms):.0f} ms {side} that of Redis"
    fault = "times given by --at are wrong by as much. Fix NTP"
    yield check("clock", abs(ahead_ms) <= _MAX_SKEW_MS, fact, fault, level=WARN)


def _rights(store: Store, settings: Settings) -> Iterator[Finding]:
    """Rights that the Redis user lacks as a client, as a worker, or for this command line."""
    from delaybridge.cli.selftest import run_scripts
    from delaybridge.store.rights import ROLES, lacking_for

    lacking = {
        name: store.complete(lacking_for(settings.namespace, role, store))
        for name, role in ROLES.items()
    }
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
    from delaybridge.ledger import Work, open_ledger

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


def _namespace(
    store: Store, settings: Settings
) -> Generator[Finding, None, delaybridge.Stats | None]:
    """Bucket count, owners, lateness. Checking does not create the namespace."""
    (record,) = store.run_each([registry.read_birth(settings.namespace)])
    if isinstance(record, errors.StoreError):
        broken = damage.of_birth(settings.namespace)
        yield Finding(FAIL, "damage", str(broken), f"Repair it to resume: {broken.remedy}")
        return None
    if record is None:
        noticed = setbacks.kept(store.run_each([setbacks.read(settings.namespace)])[0])
        if noticed:
            remedy = "Restore a backup of Redis, or go on: delaybridge alarm clear"
            yield Finding(FAIL, "store", setbacks.told(noticed), remedy)
        yield Finding(OK, "namespace", f"{settings.namespace} is new: it has not been used yet")
        return None
    count = record[0]
    if count != settings.buckets:
        what = f"{settings.namespace} was created with {count} buckets"
        yield Finding(FAIL, "namespace", what, f"Set: buckets = {count}")
        return None
    # Not with the durability that is asked for: what contradicts it is another finding.
    with delaybridge.Client.from_settings(settings.reading()) as client:
        found = client.stats()
        definitions = definitions_of(client) or []
    alone = unowned(found.buckets)
    if not alone:
        seen = count - len(numbers(found.unseen))
        what = f"{seen} buckets are owned by {len(found.workers)} workers"
        yield Finding(OK, "workers", what)
    yield from problems(found, settings, alone=alone, max_overdue_ms=_MAX_SKEW_MS)
    yield from _unserved(found, settings)
    yield from _rules(found, settings)
    yield from recurring_definitions(definitions)
    yield from _reading(found)
    if found.dead:
        remedy = "See: delaybridge dead ls --by-reason"
        yield Finding(WARN, "dead", f"{found.dead} messages are dead", remedy)
    return found


def _unserved(found: delaybridge.Stats, settings: Settings) -> Iterator[Finding]:
    """Brokers that no worker serves; FAIL if messages are parked for it."""
    from delaybridge.store.troubles import LACKING, first_word

    serving = [each.said.brokers for each in found.workers if each.said.brokers is not None]
    served = {name for brokers in serving for name in brokers}
    lacking = {t.destination.rstrip(":") for t in found.troubles if first_word(t.reason) == LACKING}
    for name in sorted(lacking - served):
        what = f"no worker serves broker {name}, its messages are parked"
        yield Finding(FAIL, "workers", what, "Add it to their [brokers]")
    for name in sorted(settings.brokers.keys() - served - lacking) if serving else ():
        yield Finding(
            WARN, "workers", f"no worker serves broker {name}", "Add it to their [brokers]"
        )


def _rules(found: delaybridge.Stats, settings: Settings) -> Iterator[Finding]:
    """Destinations paused for over a day, rules for unknown brokers, workers that ignore rules."""
    for each in found.paused:
        if each.since_ms is None or found.now_ms - each.since_ms > _DAY_MS:
            remedy = f"Resume it: delaybridge destination resume {each.place}"
            yield Finding(WARN, "destinations", paused_text(each, found.now_ms), remedy)
    served = {name for each in found.workers for name in each.said.brokers or {}}
    for place in found.rules.by_place:
        if (name := place.partition(":")[0]) not in served.union(settings.brokers, (PULL,)):
            what = f"there is a rule for {place}, but no broker named {name} is configured"
            remedy = "See: delaybridge destination show"
            yield Finding(WARN, "destinations", what, f"{remedy} {place}")
    if found.rules.by_place and found.ignoring:
        what = f"the rules are ignored by workers of an older version: {', '.join(found.ignoring)}"
        yield Finding(FAIL, "destinations", what, "Upgrade them")


def _reading(found: delaybridge.Stats) -> Iterator[Finding]:
    """The sources that are read, and what their producers should change."""
    for each, process in sources_of(found):
        what = f"{each.source} -> {each.target}: {each.state}, {ingest_numbers(each)}"
        if each.quarantined:
            yield Finding(WARN, "ingest", what, "See: delaybridge dead ls --by-reason")
        elif not is_stalled(each, process, found.now_ms):
            yield Finding(OK, "ingest", what)
        for count, fault in (
            (each.near_misses, "with a misspelt header, as X-Delay for x-delay, were not delayed"),
            (each.without_id, "without an id may arrive twice after a crash. Set message_id"),
        ):
            if count:
                yield Finding(WARN, "ingest", f"{each.source}: {count} messages {fault}")
        if each.refused:
            what = f"{each.source}: {each.refused} cancels or reschedules of messages to other "
            what += "destinations were refused"
            yield Finding(WARN, "ingest", what, "See: ingest.trust")


def _delay_exchanges(settings: Settings, announced: list[SourceInfo]) -> Iterator[Finding]:
    """Whether queues are bound to a delay exchange: they would get its messages undelayed.

    Checks the exchanges that the settings name, and those that ingest processes read.
    """
    try:
        routes = _exchange_routes(settings, announced)
    except errors.ConfigError as exc:
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
            what = f"{route}: cannot list its bindings: {why}"
            yield Finding(WARN, "ingest", what, "Set: ingest.management")
        else:
            yield Finding(OK, "ingest", f"{route}: nothing else is bound to {route.source}")


def _exchange_routes(settings: Settings, announced: list[SourceInfo]) -> list[Route]:
    """The delay exchanges that the settings name, and those that are read at their brokers."""
    from delaybridge.settings.routes import Route, parse_routes
    from delaybridge.settings.urls import kinds_of

    kinds = kinds_of(settings.brokers)
    routes = {str(r): r for r in parse_routes(settings.ingest.exchanges, kinds, "rabbitmq")}
    for source in announced:
        broker, _, exchange = source.source.partition(":")
        if kinds.get(broker) == "rabbitmq":
            target = source.target.removeprefix(f"{broker}:")
            routes.setdefault(source.source, Route(broker, "rabbitmq", exchange, target))
    return list(routes.values())


async def _broker(name: str, url: str, settings: Settings) -> list[Finding]:
    from delaybridge import publish

    options, about = publish.PublishOptions.of(settings.publish, settings.http), f"broker {name}"
    nothing: Any = lambda *_: None  # noqa: E731
    try:
        publisher = publish.connect(name, url, report=nothing, on_change=nothing, options=options)
    except errors.ConfigError as exc:
        return [Finding(FAIL, about, str(exc).removeprefix(f"brokers.{name}: "))]
    try:
        async with asyncio.timeout(_CONNECT_TIMEOUT_S):
            await publisher.connect()
            asked = getattr(publisher, "limits", None)  # not every kind of broker has limits
            limits = {} if asked is None else await asked()
        return [Finding(OK, about, publisher.describe()), *_too_small(limits, settings, about)]
    except TimeoutError:
        what = f"no answer within {_CONNECT_TIMEOUT_S:.0f} s ({url})"
        return [Finding(FAIL, about, what, "Check host, port and firewall")]
    except errors.PublishError as exc:
        return [Finding(FAIL, about, f"{str(exc).removeprefix(f'{name}: ')} ({url})")]
    finally:
        await publisher.close(_CLOSE_TIMEOUT_S)


def _too_small(limits: Mapping[str, int], settings: Settings, about: str) -> Iterator[Finding]:
    """A broker's limits below ours: it would refuse messages that we accept, when they are due."""
    ours = settings.limits
    whole, headers = ours.body_bytes + ours.headers_bytes, ours.headers_bytes + _PROPERTIES_BYTES
    if limits.get("record", whole) < whole:
        what = f"it takes records of up to {limits['record']:,} bytes, limits.body_bytes and "
        what += f"headers_bytes allow {whole:,}"
        yield Finding(WARN, about, what, "Lower them, or raise message.max.bytes")
    if 0 < limits.get("frame", 0) < headers:
        what = f"its frame_max is {limits['frame']:,} bytes, headers and properties may take "
        what += f"{headers:,}"
        yield Finding(WARN, about, what, "Raise frame_max, or lower limits.headers_bytes")
