"""Checks of the namespace: its buckets and workers, rules, recurring messages."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from typing import TYPE_CHECKING

import delaybridge
from delaybridge import errors
from delaybridge.message import PULL
from delaybridge.operate.doctor.checks import recurring_definitions
from delaybridge.operate.notices.silent_buckets import numbers
from delaybridge.operate.troubles.finding import Finding, ok
from delaybridge.operate.troubles.found import Thresholds, damaged, troubles
from delaybridge.operate.troubles.fronts import fronts
from delaybridge.operate.troubles.listed import trouble
from delaybridge.operate.troubles.sources import reading
from delaybridge.operate.views.described import unowned
from delaybridge.operate.views.facts import fullest
from delaybridge.recurring.summary import DefinitionCounts, count_definitions
from delaybridge.store.namespace import damage, history_alarm, registry
from delaybridge.store.namespace.translatable import some

if TYPE_CHECKING:
    from delaybridge.settings.settings import Settings
    from delaybridge.store.redis.store import Store

_MAX_OVERDUE_MS = 2000
_NAMED = 5


def namespace(
    store: Store, settings: Settings
) -> Generator[Finding, None, delaybridge.Stats | None]:
    """Bucket count, owners, lateness. Checking does not create the namespace."""
    (record,) = store.run_each([registry.read_layout(settings.namespace)])
    if isinstance(record, errors.StoreError):
        newer = isinstance(record, errors.StoreNewer) and str(record).removeprefix("redis: ")
        of_birth = damage.of_birth(settings.namespace)
        yield trouble("namespace_newer", why=newer) if newer else damaged("key_damaged", of_birth)
        return None
    if record is None:
        noticed = history_alarm.kept(store.run_each([history_alarm.read(settings.namespace)])[0])
        if noticed:
            yield trouble("store_went_back", history_alarm.setbacks_text(noticed))
        yield ok("namespace", f"{settings.namespace} is new: it has not been used yet")
        return None
    layout, asked = record[0], settings.buckets
    if asked not in layout.counts:
        about = {"namespace": settings.namespace, "count": layout.here.size, "asked": asked}
        yield trouble("bucket_count_differs", **about)
        return None
    # Not with the durability that is asked for: what contradicts it is another finding.
    with delaybridge.Client.from_settings(settings.reading()) as client:
        found = client.stats()
        definitions = client.run(count_definitions) or DefinitionCounts()
        memory = client.run(lambda calls: fullest(calls.placement))
    alone = unowned(found.buckets)
    if not alone:
        seen = len(found.buckets) - len(numbers(found.unseen))
        yield ok("workers", f"all {seen} buckets have an owner; running: {len(found.workers)}")
    thresholds = Thresholds(overdue_ms=_MAX_OVERDUE_MS)
    yield from troubles(found, memory, settings=settings, thresholds=thresholds)
    yield from _unwatched(found)
    yield from _unserved(found, settings)
    yield from _rules(found, settings)
    yield from recurring_definitions(definitions)
    yield from reading(found)
    yield from fronts(found)
    if found.dead:
        yield trouble("messages_dead", count=f"{found.dead:,}")
    return found


def _unwatched(found: delaybridge.Stats) -> Iterator[Finding]:
    """Workers whose end the others would not see."""
    for why in sorted({each.unwatched for each in found.workers} - {""}):
        names = [each.name for each in found.workers if each.unwatched == why]
        what = "is killed, its buckets wait until its lease runs out"
        yield ok("workers", f"if {some(names, _NAMED)} {what}; its connection is not seen: {why}")


def _unserved(found: delaybridge.Stats, settings: Settings) -> Iterator[Finding]:
    """Brokers of the settings that no worker serves; those with messages are told as such."""
    from delaybridge.store.protocol.record import LACKING, first_word

    serving = [each.said.brokers for each in found.workers if each.said.brokers is not None]
    served = {name for brokers in serving for name in brokers}
    lacking = {t.destination.rstrip(":") for t in found.troubles if first_word(t.reason) == LACKING}
    for name in sorted(settings.brokers.keys() - served - lacking) if serving else ():
        yield trouble("broker_unserved", broker=name)


def _rules(found: delaybridge.Stats, settings: Settings) -> Iterator[Finding]:
    """Rules for brokers that are not known here."""
    served = {name for each in found.workers for name in each.said.brokers or {}}
    for place in found.rules.by_place:
        if (name := place.partition(":")[0]) not in served.union(settings.brokers, (PULL,)):
            yield trouble("rule_for_unknown_broker", place=place, broker=name)
