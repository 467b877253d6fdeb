"""Faults that show only when settings are compared with each other: one line each."""

from __future__ import annotations

import operator
from collections.abc import Iterator
from importlib import import_module
from typing import TYPE_CHECKING

from delaybridge.errors import MessageError
from delaybridge.message import PULL
from delaybridge.settings.durability import Keeping
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
    yield from _of_ingest(settings, "contradictions")
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


def _of_ingest(settings: Settings, check: str) -> Iterator[str]:
    """What the annex that reads the section [ingest] says about it, if anything is set there."""
    if settings.ingest == type(settings.ingest)():
        return
    try:
        checks = import_module("delaybridge.ingest.checks")
    except ModuleNotFoundError:
        yield "ingest: these settings need the package delaybridge.ingest, which is not installed"
    else:
        yield from getattr(checks, check)(settings)


def cautions(settings: Settings) -> Iterator[str]:
    """A warning for each setting of ingest that has no effect."""
    return _of_ingest(settings, "idle_tenant_rules")


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
