"""Checks of the namespace: its buckets and workers, rules, recurring messages."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from typing import TYPE_CHECKING

import delaybridge
from delaybridge import errors
from delaybridge.message import PULL
from delaybridge.operate.doctor.checks import (
    clocks,
    definitions_of,
    problems,
    recurring_definitions,
)
from delaybridge.operate.doctor.finding import FAIL, OK, WARN, Finding
from delaybridge.operate.doctor.fronts import fronts
from delaybridge.operate.doctor.sources import reading
from delaybridge.operate.notices.silent_buckets import numbers
from delaybridge.operate.views.alerts import paused_text
from delaybridge.operate.views.described import unowned
from delaybridge.store.namespace import damage, history_alarm, registry

if TYPE_CHECKING:
    from delaybridge.settings.settings import Settings
    from delaybridge.store.redis.store import Store

_MAX_OVERDUE_MS = 2000
_DAY_MS = 86_400_000


def namespace(
    store: Store, settings: Settings
) -> Generator[Finding, None, delaybridge.Stats | None]:
    """Bucket count, owners, lateness. Checking does not create the namespace."""
    (record,) = store.run_each([registry.read_birth(settings.namespace)])
    if isinstance(record, errors.StoreError):
        broken = damage.of_birth(settings.namespace)
        yield Finding(FAIL, "damage", str(broken), f"Repair it to resume: {broken.remedy}")
        return None
    if record is None:
        noticed = history_alarm.kept(store.run_each([history_alarm.read(settings.namespace)])[0])
        if noticed:
            remedy = "Restore a backup of Redis, or go on: delaybridge alarm clear"
            yield Finding(FAIL, "store", history_alarm.setbacks_text(noticed), remedy)
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
    yield from problems(found, settings, alone=alone, max_overdue_ms=_MAX_OVERDUE_MS)
    yield from clocks(found)
    yield from _unserved(found, settings)
    yield from _rules(found, settings)
    yield from recurring_definitions(definitions)
    yield from reading(found)
    yield from fronts(found)
    if found.dead:
        remedy = "See: delaybridge dead ls --by-reason"
        yield Finding(WARN, "dead", f"{found.dead} messages are dead", remedy)
    return found


def _unserved(found: delaybridge.Stats, settings: Settings) -> Iterator[Finding]:
    """Brokers that no worker serves; FAIL if messages are parked for it."""
    from delaybridge.store.protocol.record import LACKING, first_word

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
