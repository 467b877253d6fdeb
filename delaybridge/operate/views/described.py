"""The objects of the store as JSON, the same on the command line and over HTTP."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from delaybridge.operate.views.bucket_counts import BucketStats
    from delaybridge.operate.views.destinations import Place, Places
    from delaybridge.operate.views.retrying import Retrying
    from delaybridge.operate.views.series import Rates, Recent
    from delaybridge.operate.views.stats import Stats
    from delaybridge.operate.views.tally import Tally
    from delaybridge.recurring.summary import DefinitionCounts
    from delaybridge.store.namespace.rules import Rule

_COUNTS = ("delayed", "in_flight", "parked", "dead")


def plain(value: Any) -> Any:
    """The value as far as JSON can hold it; named tuples become objects, bytes text."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, bytes):
        return value.decode(errors="backslashreplace")
    if hasattr(value, "_asdict"):
        value = value._asdict()
    if isinstance(value, Mapping):
        return {str(name): plain(inner) for name, inner in value.items()}
    return [plain(inner) for inner in value] if isinstance(value, list | tuple) else str(value)


def moment(at_ms: int | None) -> str | None:
    """A time as RFC 3339; None stays None."""
    from delaybridge.times import format_time  # the command line imports this module at its start

    return None if at_ms is None else format_time(at_ms)


def tally_text(count: Tally) -> str:
    """`1,234`, or `~1,234` for an estimate."""
    return f"{'~' if count.error else ''}{count.messages:,}"


def size_text(count: int) -> str:
    """`213 B`, `1.4 KB`, `2.0 MB`."""
    value, units = float(count), ["B", "KB", "MB", "GB", "TB"]
    while value >= 1000 and len(units) > 1:
        value, units = value / 1024, units[1:]
    return f"{value:.0f} {units[0]}" if units[0] == "B" else f"{value:.1f} {units[0]}"


def stats_data(
    found: Stats, definitions: DefinitionCounts | None, recent: Recent
) -> dict[str, object]:
    """The namespace in numbers. definitions: None if they cannot be read."""
    recurring = None if definitions is None else definitions._asdict()
    return _counts_data(found) | {"recurring": recurring} | _rates_data(recent)


def _counts_data(found: Stats) -> dict[str, object]:
    hidden = ("damage", "buckets", "workers", "rules", "odd_rules", "fronts", "fronted")
    return {
        **{name: plain(value) for name, value in found._asdict().items() if name not in hidden},
        "next_due": moment(found.next_due_ms),
        "buckets": len(found.buckets),
        "buckets_unowned": len(unowned(found.buckets)),
        "buckets_unseen": sum(1 for each in found.buckets if each.unseen),
        "damaged": [str(one) for one in [*found.all_damage, *found.odd_rules]],
        "workers": len(found.workers),
        "fronts": len(found.fronts),
        "orphans": found.orphans._asdict(),
        "ledger": None if found.ledger is None else found.ledger._asdict(),
    }


def unowned(buckets: Sequence[BucketStats]) -> list[int]:
    """The numbers of those without a worker."""
    return [each.bucket for each in buckets if each.owner is None and not each.unseen]


def _rates_data(recent: Recent) -> dict[str, object]:
    """For programs: rates and lateness by window; null where no worker reported."""
    return {
        "rates": {
            window_text(each): {
                "covered_s": each.covered_s,
                "per_s": {name: round(value, 3) for name, value in each.per_s.items()},
                "lateness": plain(each.lateness),
            }
            if each.covered_s
            else None
            for each in recent.rates
        },
        "not_in_rates": dict(recent.silent),
        "rates_missing": recent.missing or None,
    }


def window_text(of: Rates) -> str:
    """The length of a window: `1s`, `1m`, `15m`."""
    return f"{of.window_s}s" if of.window_s < 60 else f"{of.window_s // 60}m"


def place_data(place: Place, found: Places) -> dict[str, Any]:
    """One destination as JSON. ignored_by: workers whose version knows no rules."""
    paused, in_force = place.paused_by, place.in_force.items()
    return {
        "destination": place.place,
        **{name: getattr(place, name).messages for name in _COUNTS},
        "error": error_of(place),
        "next_due_ms": place.next_due_ms,
        "next_due": moment(place.next_due_ms),
        "state": place.state,
        "paused_by": paused and paused[0],
        "paused_since": paused and moment(paused[1]),
        "trouble": place.trouble,
        "retrying": plain(place.retrying),
        "rule": rule_data(place.rule),
        "in_force": {name: {"value": value, "set_by": by} for name, (value, by) in in_force},
        "ignored_by": found.ignoring if place.levels else [],
        "empty": found.is_empty(place),
        "near": found.near,
    }


def retrying_text(each: Retrying, now_ms: int) -> str:
    """`12 to rabbitmq:orders for 5m: unroutable: 312 NO_ROUTE`."""
    from delaybridge.times import roughly

    since = roughly(max(0, now_ms - each.since_ms))
    return f"{each.messages:,} to {each.destination} for {since}: {each.example}"


def rule_data(rule: Rule) -> dict[str, Any]:
    import msgspec

    data: dict[str, Any] = msgspec.to_builtins(rule)
    return data


def error_of(place: Place) -> int:
    """By how much the counts may be wrong."""
    tallies: list[Tally] = [getattr(place, name) for name in _COUNTS]
    return max(tally.error for tally in tallies)
