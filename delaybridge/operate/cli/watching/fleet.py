"""The fleet: `delaybridge worker ls` and `bucket ls`."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import click

from delaybridge.operate.terminal.failure import Exit, Failure, refused
from delaybridge.operate.terminal.grammar import DURATION, Group, option, pass_call
from delaybridge.operate.terminal.invocation import Invocation
from delaybridge.operate.terminal.output import Row
from delaybridge.operate.terminal.rows import bucket_row
from delaybridge.operate.troubles.sources import number_text, sources_of
from delaybridge.times import format_duration, in_time, roughly

if TYPE_CHECKING:
    import delaybridge
    from delaybridge import Stats
    from delaybridge.operate.notices import announcements
    from delaybridge.operate.notices.announcements import IngestInfo, SourceInfo, WorkerInfo
    from delaybridge.resize.resizing import ResizeProgress

_LOOK_AGAIN_S = 0.2
_LOOK_RESIZE_S = 2.0


@click.group(cls=Group)
def worker() -> None:
    """The running workers: list, drain, reconnect."""


@worker.command("ls")
@pass_call
def worker_ls(call: Invocation) -> int:
    """List the workers and their buckets, the ingest processes and their sources, the fronts."""
    found = _stats(call)
    spare = (">PUBLISHED/S", "HOST", "VERSION", ">PID", "STARTED")
    if not call.output.table(found.workers, lambda each: _worker_row(each, found), spare=spare):
        call.note("no worker runs; start one: delaybridge scan")
    for each in (one for one in found.gone if one.ousted_by):
        call.note(f"{each.name} on {each.host} ended, {each.ousted_by} freed its buckets")
    if found.ingests:
        call.note("")
        show_sources(call, found)
    if found.fronts:
        call.note("")
        call.output.table(
            found.fronts, _front_row, spare=(">TROUBLES", "VERSION", "HOST", ">WAIT", "LISTEN")
        )
    return call.say_unseen(found.unseen)


@worker.command("drain")
@click.argument("name")
@option(
    "--timeout",
    type=DURATION,
    default="60s",
    show_default=True,
    help="How long to wait until its buckets are given back; 0s: only ask.",
)
@pass_call
def worker_drain(call: Invocation, name: str, timeout: int) -> int:
    """Have a worker give its buckets back and end, as SIGTERM does.

    Other workers take its buckets at once. Whatever supervises the process may start it again: to
    stop it for good, stop it there. Exit code 1: it still has buckets after the time-out.
    """
    from delaybridge.operate.views.remote_control import ask_to_drain

    with call.client() as client:
        asked = client.run(lambda calls: ask_to_drain(calls, name))
        until_s = time.monotonic() + timeout / 1000
        while not (left := _has_left(client, asked)) and time.monotonic() < until_s:
            time.sleep(_LOOK_AGAIN_S)
    if timeout and not left:
        why = f"{name} was asked, and still works after {format_duration(timeout)}; ask again"
        raise Failure(Exit.FAILED, "not_drained", None, why)
    data = {"worker": name, "drained": left}
    call.output.result(data, f"{'drained' if left else 'asked'} {name}")
    return Exit.DONE


def _has_left(client: delaybridge.Client, asked: WorkerInfo) -> bool:
    """Whether this process holds nothing any more; another of its name may."""
    found = client.stats()
    of_its_name = [each.instance for each in found.workers if each.name == asked.name]
    if of_its_name:
        return asked.instance not in of_its_name
    return all(bucket.owner != asked.name for bucket in found.buckets)


@worker.command("reconnect")
@click.argument("broker")
@pass_call
def worker_reconnect(call: Invocation, broker: str) -> None:
    """Have all workers connect to a broker again, for example after its address has moved.

    Nothing is lost: buckets stay where they are, and what the broker has not confirmed may still be
    confirmed on the old connection.
    """
    from delaybridge.operate.views.remote_control import ask_to_reconnect

    with call.client() as client:
        asked = client.run(lambda calls: ask_to_reconnect(calls, broker))
    call.output.result({"broker": broker, "workers": asked}, f"asked {', '.join(asked)}")


@click.group(cls=Group)
def bucket() -> None:
    """The buckets and who owns them."""


@bucket.command("ls")
@pass_call
def bucket_ls(call: Invocation) -> int:
    """List the buckets: contents, owner, time left of its lease; on a Cluster its Redis server."""
    found = _stats(call)
    show_buckets(call, found)
    return call.say_unseen(found.unseen)


@bucket.command("resize")
@click.argument("buckets", type=int, required=False)
@option("--dry-run", "Only say what would be moved.", to="is_dry")
@option("--pause", "Let no other bucket begin; those under way are moved to the end.")
@option("--resume", "Go on after a pause.")
@option("--wait", "Return when all messages have moved; Ctrl-C ends the waiting alone.")
@pass_call
def bucket_resize(
    call: Invocation, buckets: int | None, is_dry: bool, pause: bool, resume: bool, wait: bool
) -> None:
    """Give the namespace another number of buckets, while it works; without a number: how far.

    Workers move the messages, a page at a time. To go back, resize to the number of before.
    """
    from delaybridge.resize import resizing

    if pause and resume:
        raise refused("--resume", "give it or --pause, not both")
    settings = call.settings.model_copy(update={"buckets": None})  # which may say the next number
    with call.client_of(settings) as client:
        if buckets is not None:
            client.run(lambda calls: resizing.begin(calls, buckets, dry=is_dry))
        if pause or resume:
            client.run(lambda calls: resizing.pause(calls, paused=pause))
        found = client.run(resizing.progress)
        if is_dry and buckets is not None:
            _say_dry(call, client.stats(), found.buckets, buckets)
            return
        if found.to is not None:
            _warn_waiting(call, client.stats())
        said = None
        while wait and found.to is not None:
            if said != (said := _how_far(found)):
                call.note(said)
            time.sleep(_LOOK_RESIZE_S)
            found = client.run(resizing.progress)
    call.output.result(found._asdict(), _how_far(found))


def _say_dry(call: Invocation, stats: Stats, before: int, after: int) -> None:
    messages = stats.delayed + stats.in_flight + stats.parked + stats.dead
    text = f"would move {messages:,} messages from {before} buckets to {after}"
    call.output.result({"buckets": before, "to": after, "left": messages}, text)


def _warn_waiting(call: Invocation, stats: Stats) -> None:
    if not stats.workers:
        call.note("warning: no worker runs; start one: delaybridge scan")
    for each in stats.workers:
        if why := each.failing.get("resize"):
            call.note(f"warning: {each.name}: {why}")


def _how_far(found: ResizeProgress) -> str:
    if found.to is None:
        return f"{found.buckets} buckets; none is being moved"
    done = f"{found.done} of {found.buckets} buckets have moved"
    then = f", then {found.then}" if found.then else ""
    paused = "; paused: delaybridge bucket resize --resume" if found.is_paused else ""
    return f"{found.buckets} to {found.to}{then}: {done}, {found.left:,} messages left{paused}"


def _stats(call: Invocation) -> Stats:
    with call.client() as client:
        return client.stats()


def _rules_text(each: WorkerInfo, found: Stats) -> str | None:
    if not found.rules.by_place or each.said.paused is None:
        return "ignored" if found.rules.by_place else None
    return f"obeyed, {len(each.said.paused)} paused" if each.said.paused else "obeyed"


def _worker_row(each: WorkerInfo, found: Stats) -> Row:
    started_ms = each.started_ms
    return {
        "NAME": each.name,
        "HOST": each.host,
        ">PID": "?" if each.pid is None else each.pid,
        "VERSION": each.version,
        ">BUCKETS": each.buckets,
        "STARTED": "?" if started_ms is None else in_time(started_ms - found.now_ms),
        "EXPIRES IN": roughly(each.expires_ms - found.now_ms),
        "RULES": _rules_text(each, found),
        ">PUBLISHED/S": number_text(each.pace.published_s),
    }


def show_buckets(call: Invocation, found: Stats) -> None:
    """Print the buckets, a row for each."""
    spare = ("LEASE", ">PARKED", ">DEAD", ">IN FLIGHT")
    call.output.table(found.buckets, lambda each: bucket_row(each, found.now_ms), spare=spare)


def show_sources(call: Invocation, found: Stats) -> None:
    """Print the sources of all ingest processes."""
    call.output.table(
        sources_of(found),
        lambda pair: _source_row(*pair),
        spare=(">TAKEN", "TARGET", ">RATE", "INGEST"),
        data=lambda pair: {"ingest": pair[1].name, **pair[0]._asdict()},
    )


def _front_row(front: announcements.FrontInfo) -> Row:
    return {
        "FRONT": front.name,
        "LISTEN": front.listen,
        "HOST": front.host,
        "VERSION": front.version,
        ">CONNECTIONS": number_text(front.open),
        ">WAIT": sum(each["held_ms"] is not None for each in front.clients),
        ">TROUBLES": len(front.refused),
        "BROKER": front.unreached or ", ".join(front.nodes),
    }


def _source_row(source: SourceInfo, process: IngestInfo) -> dict[str, str]:
    return {
        "INGEST": process.name,
        "SOURCE": source.source,
        "TARGET": source.target,
        ">LAG": number_text(source.lag),
        ">RATE": f"{number_text(source.rate)}/s",
        ">TAKEN": number_text(source.total),
        ">QUARANTINED": number_text(source.quarantined),
        "STATE": source.condition,
    }
