"""`delaybridge size`: how much of everything a load needs, from measured figures."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import click

from delaybridge.operate.terminal.failure import refused
from delaybridge.operate.terminal.grammar import DURATION, Command, Value, option, pass_call
from delaybridge.operate.terminal.invocation import Invocation
from delaybridge.operate.terminal.quantities import number_of, per_second
from delaybridge.operate.views.described import size_text
from delaybridge.times import roughly

if TYPE_CHECKING:
    from delaybridge.operate.sizing.sizing import Demand

_KEPT = "How long it keeps rows of the past. [default: ledger.retention_s]"


def _number(name: str, low: int, high: int) -> Value:
    def within(text: str, flag: str) -> int:
        found = number_of(text)
        if found is None or not low <= found <= high:
            what = f"{low:,} to {high:,}, as 500, 20k, 10M or 64KiB"
            raise refused(flag, f"got {text[:80]!r}; allowed: {what}")
        return round(found)

    return Value(name, within)


def _rate(text: str, flag: str) -> float:
    found = per_second(text, flag)
    if not 0 < found <= 10**7:
        raise refused(flag, f"got {text[:80]!r}; allowed: above 0, up to 10,000,000/s")
    return found


_WRITTEN: dict[str, Callable[[float], str]] = {  # by the unit at the end of a name
    "bytes": lambda number: size_text(round(number)),
    "s": lambda number: roughly(round(number * 1000)),
    "cores": "{:,.2f}".format,
}
_MESSAGES = _number("N", 0, 10**11)


@click.command("size", cls=Command)
@option("--pending", "Messages that wait, as 10M.", type=_MESSAGES, required=True)
@option("--rate", "Scheduled, and delivered, a second.", type=Value("N/s", _rate), required=True)
@option("--body", "Bytes of a body, as 500.", type=_number("BYTES", 0, 2**29), required=True)
@option("--headers", "Headers of each, of 30 bytes.", type=_number("N", 0, 1000), default="0")
@option("--id-bytes", "Of each id; drawn: 26.", type=_number("BYTES", 1, 255), default="26")
@option("--burst", "Messages due at one instant.", type=_MESSAGES, default="0")
@option("--cluster", "A Redis Cluster, also where one Redis would do.", to="is_cluster")
@option("--ledger", "With a ledger, on PostgreSQL.", to="has_ledger")
@option("--retention", _KEPT, type=DURATION, to="retention_ms")
@pass_call
def size(call: Invocation, retention_ms: int | None, **given: Any) -> None:
    """Say how much of Redis, workers, database and brokers a load needs.

    No server is asked: the figures were measured, and settings in force count. FROM and TO are
    what it takes at best and at worst: engines, allocators, small or large batches, busy hosts.
    """
    from delaybridge.operate.sizing.sizing import TABLES, Demand, needs

    given["has_ledger"] |= call.settings.has_ledger
    if retention_ms is not None and not given["has_ledger"]:
        raise refused("--retention", "only a ledger keeps rows; give --ledger as well")
    kept_s = call.settings.ledger.retention_s if retention_ms is None else retention_ms / 1000
    load = Demand(**given, retention_s=kept_s)
    found = needs(load, call.settings)
    if call.output.json:
        call.output.result({"load": load._asdict(), "needs": found}, "")
        return
    labels = TABLES["needs"]
    call.output.table(found, lambda name: _row(labels[name], name, found[name]))
    about = {name: need["about"] for name, need in found.items()}
    call.output.line("\n".join(["", *_notes(load, about)]))


def _row(label: str, name: str, need: Mapping[str, float]) -> dict[str, str]:
    write = _WRITTEN.get(name.rpartition("_")[2], "{:,.0f}".format)
    about, low, high = map(write, need.values())
    low, high = (low, high) if low != high else ("", "")
    return {"WHAT": label, ">ABOUT": about, ">FROM": low, ">TO": high}


def _notes(load: Demand, about: Mapping[str, float]) -> Iterator[str]:
    """What a table cannot say."""
    yield f"A message waits {_WRITTEN['s'](load.pending / load.rate)} on average."
    if max(about["redis_masters"], about["worker_processes"]) > about["buckets"]:
        yield "That is more than the buckets of one namespace can be spread over: use several."
    if about["redis_masters"] > 1:
        yield "More than one master is a Redis Cluster: redis+cluster://HOST:PORT,..."
    yield "Each master needs a replica on a host as large, each worker process a core."
    if load.has_ledger:
        yield "The database has all messages, Redis those due within ledger.hot_window_s."
        kept = f"{load.retention_s / 86_400:g} days" if load.retention_s else "for ever: a day here"
        yield f"Rows of messages that left are kept {kept}."
    yield "Where this was measured, and what is not in it: docs/deploy.md#size-it"
