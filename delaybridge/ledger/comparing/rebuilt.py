"""The end of an alarm: what Redis had lost is rebuilt from the ledger."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from delaybridge.errors import StoreError
from delaybridge.ledger.comparing import healing
from delaybridge.store.namespace import history_alarm, registry
from delaybridge.store.namespace.history_alarm import Setback
from delaybridge.store.protocol.bucket import Bucket
from delaybridge.store.protocol.verbs import Each, Steps


def end_rebuilt(namespace: str, node_of: Callable[[str], str]) -> Steps[list[Setback]]:
    """Forget the setbacks whose buckets agree with the ledger again; which they were.

    What is lost for good stays, and with it that the namespace was wiped.
    """
    (found,) = yield [history_alarm.read(namespace)]
    if not found:
        return []
    turns: dict[int | None, int] = {}
    for each in found:  # a bucket may have two: what is lost for good stands by itself
        turns[each.bucket] = max(each.to_turn, turns.get(each.bucket, 0))
    sound = yield from _rebuilt(namespace, turns, node_of)
    if any(each.is_for_good for each in found):
        sound[None] = False
    ended = [each for each in found if sound.get(each.bucket) and not each.is_for_good]
    if ended:
        yield [history_alarm.end(namespace, ended)]
    return ended


def _rebuilt(
    namespace: str, turns: Mapping[int | None, int], node_of: Callable[[str], str]
) -> Steps[dict[int | None, bool]]:
    """Which of these buckets (None: all) were compared under the runs of their servers.

    turns: those that they went back to: a session that began later must have compared them.
    """
    buckets = yield from registry.buckets_of(namespace)
    asked = [each for each in buckets if None in turns or each.number in turns]
    nodes = {each.number: node_of(_lease(each)) for each in asked}
    first = {nodes[each.number]: each for each in asked}
    abouts = yield Each([registry.info("server", _lease(each)) for each in first.values()])
    standings = yield Each([healing.standing(each) for each in asked])
    runs = {
        node: "" if isinstance(about, StoreError) else about.get("run_id", "")
        for node, about in zip(first, abouts, strict=True)
    }
    found: dict[int | None, bool] = {
        each.number: not isinstance(stands, StoreError)
        and stands.is_healed_since(runs[nodes[each.number]], turns.get(each.number, 0))
        for each, stands in zip(asked, standings, strict=True)
    }
    return {**found, None: len(found) == len(buckets) > 0 and all(found.values())}


def _lease(bucket: Bucket) -> str:
    return bucket.key("lease")
