"""Faults that show only when settings are compared with each other: one line each."""

from __future__ import annotations

import operator
from collections.abc import Iterator
from typing import TYPE_CHECKING

from delaybridge.errors import ConfigError, MessageError
from delaybridge.message import PULL
from delaybridge.settings.durability import Keeping
from delaybridge.settings.globs import fits
from delaybridge.settings.routes import SETTINGS as ROUTE_SETTINGS
from delaybridge.settings.routes import Route, parse_routes
from delaybridge.settings.urls import kinds_of

if TYPE_CHECKING:
    from delaybridge.settings.settings import Settings

# The sum of the first, "<" or "<=", the last; seconds count as milliseconds.
RELATIONS: tuple[tuple[tuple[str, ...], str, str], ...] = (
    (("lease.renew_ms", "redis.timeout_s"), "<", "lease.ttl_ms"),
    (("scan.fire_lead_ms",), "<=", "scan.claim_ahead_ms"),
    (("publish.heartbeat_s",), "<=", "publish.confirm_timeout_s"),
    (("publish.blocked_connection_timeout_s",), "<=", "publish.confirm_timeout_s"),
    (("limits.body_bytes", "limits.headers_bytes"), "<=", "scan.batch_bytes"),
    (("limits.body_bytes", "limits.headers_bytes"), "<=", "scan.wheel_bytes"),
    (("limits.body_bytes", "limits.headers_bytes"), "<=", "publish.window_bytes"),
    (("publish.window_messages",), "<=", "scan.wheel_messages"),
    (("retry.base_ms",), "<=", "retry.max_ms"),
)

_COMPARE = {"<": (operator.lt, "below"), "<=": (operator.le, "at most")}


def contradictions(settings: Settings) -> Iterator[str]:
    """Every fault among settings whose values are valid by themselves."""
    kinds = kinds_of(settings.brokers)
    if PULL in kinds:
        yield f"brokers.{PULL}: the name is that of pull topics; choose another"
    ledger = settings.ledger
    if ledger.hot_window_s and ledger.hot_window_s < 2 * ledger.reconcile_s:
        where = settings.sources()["ledger.hot_window_s"]
        what = f"0, or twice ledger.reconcile_s ({ledger.reconcile_s}) or more"
        yield f"{where}: ledger.hot_window_s ({ledger.hot_window_s}): allowed: {what}"
    if settings.kept.mode is Keeping.LEDGER and not ledger.url:
        yield f"{settings.sources()['durability']}: durability: ledger needs ledger.url"
    yield from _numbers(settings)
    yield from _routes(settings, kinds)
    yield from _destinations(settings, kinds)
    yield from _tenants(settings)
    yield from _dead_letters(settings, kinds)
    yield from _compat(settings, kinds)


def _numbers(settings: Settings) -> Iterator[str]:
    values, sources = dict(settings.items()), settings.sources()
    seconds = [name for name in values if name.endswith("_s") and not name.startswith("brokers.")]
    numbers = values | {name: values[name] * 1000 for name in seconds}
    for left, sign, right in RELATIONS:
        holds, bound = _COMPARE[sign]
        if not holds(sum(numbers[name] for name in left), numbers[right]):
            written = [sources[name] for name in (*left, right) if sources[name] != "default"]
            sum_ = " + ".join(f"{name} ({values[name]})" for name in left)
            allowed = f"{bound} {right} ({values[right]})"
            yield f"{[*written, 'default'][0]}: {sum_}: allowed: {allowed}"


def _routes(settings: Settings, kinds: dict[str, str]) -> Iterator[str]:
    """Routes that ingest would refuse; a kind without a broker here may have one elsewhere."""
    for kind, path in ROUTE_SETTINGS.items():
        try:
            _sources(settings, kinds, kind)
        except ConfigError as exc:
            yield f"{settings.sources()[path]}: {exc}"


def _sources(settings: Settings, kinds: dict[str, str], kind: str) -> list[Route]:
    known = kinds if kind in kinds.values() else {kind: kind, **kinds}
    texts = dict(settings.items())[ROUTE_SETTINGS[kind]]
    return parse_routes(texts, known, kind, settings.brokers)


def idle_tenant_rules(settings: Settings) -> Iterator[str]:
    """A warning for each rule of `ingest.tenants` that fits no source, if the settings name any."""
    kinds = kinds_of(settings.brokers)
    routes = [route for kind in ROUTE_SETTINGS for route in _sources(settings, kinds, kind)]
    for rule in settings.ingest.tenants if routes else ():
        named = rule.partition("=")[0]
        if not any(_may_mean(named, route) for route in routes):
            yield f"ingest.tenants: {rule!r} fits no source in ingest.exchanges or ingest.topics"


def _may_mean(named: str, route: Route) -> bool:
    """Whether a rule fits a source, or one that its pattern may find."""
    return any(
        fits(text, named) or (route.is_pattern and ("*" in named or fits(named, text)))
        for text in (route.source, str(route))
    )


def _destinations(settings: Settings, kinds: dict[str, str]) -> Iterator[str]:
    """Destinations that no message can name, or of a kind of broker that no source is of."""
    values, path = dict(settings.items()), "ingest.destinations"
    read = [kind for kind, sources in ROUTE_SETTINGS.items() if values[sources]]
    for text in settings.ingest.destinations:
        named, colon, address = text.partition(":")
        known = {**kinds, PULL: PULL}
        meant = {kind for name, kind in known.items() if colon and fits(name, named)}
        where = f"{settings.sources()[path]}: {path}: got {text!r}"
        if colon and not address:
            yield f"{where}, which names no exchange, queue or topic; * is any"
        elif "rabbitmq" in meant and "/" in address[1:]:
            yield f"{where}; of RabbitMQ write EXCHANGE, which has all its routing keys, or /QUEUE"
        elif read and meant and meant.isdisjoint(read):
            yield (
                f"{where}, of kind {', '.join(sorted(meant))}; a message that is read from "
                f"{' or '.join(read)} goes to brokers of that kind only; leave it out"
            )


def _tenants(settings: Settings) -> Iterator[str]:
    """Sources and limits of a tenant that does not exist, and two limits of one tenant."""
    limited = [rule.partition("=")[0] for rule in settings.limits.tenants]
    named = [(rule, "ingest.tenants", rule.partition("=")[2]) for rule in settings.ingest.tenants]
    named += [
        (rule, "limits.tenants", tenant)
        for rule, tenant in zip(settings.limits.tenants, limited, strict=True)
    ]
    for rule, path, tenant in named:
        where = f"{settings.sources()[path]}: {path}: got {rule!r}"
        if tenant not in settings.tenants:
            yield f"{where}; {tenant!r} is not among tenants: {', '.join(settings.tenants) or '[]'}"
        elif path == "limits.tenants" and limited.count(tenant) > 1:
            yield f"{where}; each tenant once"


def _dead_letters(settings: Settings, kinds: dict[str, str]) -> Iterator[str]:
    """Dead-letter destinations that name no broker here, or one that has another already."""
    if not settings.dead.dead_letter:
        return
    from delaybridge.accept.destination import parse_destination  # most commands do without

    source, seen = settings.sources()["dead.dead_letter"], set()
    for text in settings.dead.dead_letter:
        where = f"{source}: dead.dead_letter: got {text!r}; "
        try:
            broker = parse_destination(text, kinds).broker
            if broker == PULL:
                raise MessageError("bad_destination", "", "a pull topic takes no dead letters")
        except MessageError as exc:
            yield where + exc.detail
            continue
        if broker in seen:
            yield f"{where}broker {broker!r} has one already"
        seen.add(broker)


def _compat(settings: Settings, kinds: dict[str, str]) -> Iterator[str]:
    """A dialect whose topics go nowhere."""
    text = settings.serve.compat_destination
    if not settings.serve.compat:
        return
    from delaybridge.accept.destination import parse_destination

    where = f"{settings.sources()['serve.compat_destination']}: serve.compat_destination:"
    if "{topic}" not in text:
        yield f"{where} got {text!r}; say where messages of a topic go, as kafka:{{topic}}"
        return
    try:
        parse_destination(text.replace("{topic}", "t").replace("{subtopic}", "s"), kinds)
    except MessageError as exc:
        yield f"{where} got {text!r}; {exc.detail}"
