"""`delaybridge tail`: the events of all workers and ingest processes, as they happen."""

from __future__ import annotations

import asyncio
import logging
import time
from contextlib import aclosing
from typing import TYPE_CHECKING, Any

import click

from delaybridge.operate.terminal.failure import Exit, Failure, refused
from delaybridge.operate.terminal.grammar import Command, option, pass_call
from delaybridge.operate.terminal.invocation import Invocation
from delaybridge.operate.terminal.streams import drop_stdout, stdout_is_closed
from delaybridge.operate.views.described import moment

if TYPE_CHECKING:
    from delaybridge.errors import DelayBridgeError
    from delaybridge.operate.notices.event_channel import Beat, Told
    from delaybridge.store.redis.store import AsyncStore

_TICK_S = 1.0
_SILENT_S = 5.0  # beats come each second
_MANY = ("n", "ids")  # fields of a line with several messages
_WAITING = 1000  # beats that are not printed yet; more wait in Redis
_WORKER_CELLS, _EVENT_CELLS = 16, 15
_COLORS = {logging.WARNING: "yellow", logging.ERROR: "red", logging.DEBUG: "bright_black"}
_PLACE = "Only of this destination, exchange (rabbitmq:orders), broker, or source of ingest."
_EVENT = "Only these events, as published,retried. Repeat or separate by commas."
_GRANT = "grant +subscribe +unsubscribe and the channel: docs/security.md"


@click.command("tail", cls=Command)
@option("--destination D", _PLACE)
@option("--event NAMES", _EVENT, to="events", multiple=True)
@pass_call
def tail(call: Invocation, destination: str | None, events: tuple[str, ...]) -> int:
    """Print the events of all workers and ingest processes as they happen; Ctrl-C ends it.

    Each process tells its events once a second, those of one destination and reason in one line,
    and names up to about 50 messages, by id. What is missing is said: tail was too slow,
    Redis was away, or a process told too much.
    """
    wanted = frozenset(name for given in events for name in given.split(",") if name)
    _check_names(wanted)
    with call.store() as store:  # names Redis' URL and the remedy if it is unreachable
        from delaybridge.store.namespace import registry

        store.run([registry.store_time()])
    if destination is not None:
        from delaybridge.operate.views.destinations import known_place

        with call.client(reads=True) as client:
            destination = client.run(lambda calls: known_place(calls, destination))
    printer = Printer(call, destination, wanted)
    try:
        asyncio.run(_follow(call, printer))
    except KeyboardInterrupt:
        return Exit.DONE  # the usual end
    return Exit.DONE


def _check_names(wanted: frozenset[str]) -> None:
    from delaybridge.events import Event
    from delaybridge.worker.eventlog import name_of

    known = sorted(name_of(kind) for kind in Event.__subclasses__())
    if unknown := sorted(wanted - set(known)):
        raise refused("--event", f"{unknown[0][:40]!r} is not known; use {', '.join(known)}")


async def _follow(call: Invocation, printer: Printer) -> None:
    from delaybridge.store.protocol import keys
    from delaybridge.store.redis.store import AsyncStore

    s = call.settings
    store = AsyncStore(s.redis.url, timeout_s=s.redis.timeout_s)
    heard: asyncio.Queue[str | DelayBridgeError | None] = asyncio.Queue(_WAITING)
    pump = asyncio.create_task(_pump(store, keys.events(s.namespace), heard))
    try:
        while not stdout_is_closed():
            try:
                async with asyncio.timeout(_TICK_S):
                    said = await heard.get()
                printer.hear(said)
            except TimeoutError:
                if pump.done():
                    pump.result()
            printer.tick(time.monotonic())
        drop_stdout()
    finally:
        pump.cancel()
        await asyncio.wait([pump])
        await store.close()


async def _pump(
    store: AsyncStore, channel: str, heard: asyncio.Queue[str | DelayBridgeError | None]
) -> None:
    """Texts of the channel; None once subscribed; an error when the subscription is lost."""

    def lost(error: DelayBridgeError) -> None:
        if not heard.full():  # else the next beat shows that some are missing
            heard.put_nowait(error)

    async with aclosing(store.listen(channel, lost)) as texts:  # type: ignore[type-var]
        async for text in texts:
            await heard.put(text)


class Printer:
    """Prints the lines that are wanted, and says where lines are missing between them."""

    def __init__(self, call: Invocation, destination: str | None, wanted: frozenset[str]) -> None:
        self._output, self._destination, self._wanted = call.output, destination, wanted
        self._numbers: dict[tuple[str, str], int] = {}  # worker, instance -> number of its beat
        self._heard_s: dict[str, float] = {}  # worker -> when it was heard, monotonic
        self._subscribed_s: float | None = None
        self._ticked_s = time.monotonic()
        self._is_lost = False

    def hear(self, heard: str | DelayBridgeError | None) -> None:
        """A text of the channel; None: subscribed; or the error that ended the subscription."""
        from delaybridge.operate.notices.event_channel import read

        if isinstance(heard, str):
            if (beat := read(heard)) is not None:
                self._beat(beat)
        elif heard is None:
            word = "redis_back" if self._is_lost or self._subscribed_s else "listening"
            hint = "events may be missing" if word == "redis_back" else "from now on"
            self._say(logging.WARNING if self._is_lost else logging.INFO, word, hint=hint)
            self._is_lost, self._subscribed_s = False, time.monotonic()
            self._heard_s.clear()
        else:
            self._lost(heard)

    def tick(self, now_s: float) -> None:
        """Name the processes that have fallen silent, or say that none was heard.

        Call it every second.
        """
        if (late_s := now_s - self._ticked_s - _TICK_S) > _TICK_S:
            # It was held up, as by the reader of its output: beats wait that it has not read yet.
            said = self._heard_s.items()
            self._heard_s = {who: min(at + late_s, max(at, now_s)) for who, at in said}
            self._subscribed_s = self._subscribed_s and self._subscribed_s + late_s
        self._ticked_s = now_s
        for worker, heard_s in list(self._heard_s.items()):
            if now_s - heard_s > _SILENT_S:
                del self._heard_s[worker]
                if worker and not self._is_lost:
                    hint = "it stopped, or does not reach Redis"
                    self._say(logging.WARNING, "worker_silent", silent=worker, hint=hint)
        if self._subscribed_s and not self._heard_s and not self._is_lost:
            if now_s - self._subscribed_s > _SILENT_S:
                self._heard_s[""] = float("inf")  # once
                hint = "see: delaybridge worker ls; only workers of this version or later tell"
                self._say(logging.WARNING, "no_worker_heard", hint=hint)

    def _beat(self, beat: Beat) -> None:
        process = beat.worker, beat.instance
        before = self._numbers.get(process)
        if before is not None and beat.number <= before:
            return  # sent again, since the reply was lost
        self._numbers[process] = beat.number
        if beat.worker not in self._heard_s:
            self._heard_s.pop("", None)
        self._heard_s[beat.worker] = time.monotonic()
        if before is not None and (missing := beat.number - before - 1):
            self._say(logging.WARNING, "events_missing", of=beat.worker, seconds=missing)
        for told in beat.lines:
            if self._fits(told):
                self._print(told.at_ms, beat.worker, told.level, told.event, told.named_fields)
        if beat.dropped:
            self._say(logging.WARNING, "events_missing", of=beat.worker, lines=beat.dropped)

    def _lost(self, error: DelayBridgeError) -> None:
        from delaybridge.errors import StoreDenied

        if isinstance(error, StoreDenied):
            raise Failure(Exit.UNREACHABLE, "store_denied", None, f"{error}; {_GRANT}") from error
        if not self._is_lost:
            self._is_lost = True
            hint = "trying again; events may be missing"
            self._say(logging.ERROR, "redis_lost", reason=str(error), hint=hint)

    def _fits(self, told: Told) -> bool:
        from delaybridge.operate.notices.event_channel import is_of

        if self._wanted and told.event not in self._wanted:
            return False
        place = told.fields.get("destination") or told.fields.get("source")
        return self._destination is None or is_of(place, self._destination)

    def _say(self, level: int, event: str, **fields: Any) -> None:
        """A line of tail's own."""
        self._print(time.time_ns() // 1_000_000, "tail", level, event, fields)

    def _print(self, at_ms: int, worker: str, level: int, event: str, fields: Any) -> None:
        at = moment(at_ms) or ""
        if self._output.json:
            data = {"time": at, "worker": worker, "level": logging.getLevelName(level).lower()}
            self._output.result({**data, "event": event, "fields": fields}, "")
            return
        from delaybridge.errors import printable
        from delaybridge.operate.terminal.layout import shortened
        from delaybridge.worker.eventlog import text_of

        if fields.get("n") == 1 and "ids" in fields:  # first, where a narrow terminal has room
            fields = {"id": fields["ids"][0]} | {n: v for n, v in fields.items() if n not in _MANY}
        width = self._output.width
        name = shortened(printable(worker), _WORKER_CELLS) if width else printable(worker)
        columns = [at[11:-1], name.ljust(_WORKER_CELLS), printable(event).ljust(_EVENT_CELLS)]
        line = "  ".join([*columns, printable(text_of(fields))]).rstrip()
        line = shortened(line, width) if width else line
        color = _COLORS.get(level)
        click.echo(self._output.paint(line, fg=color) if color else line, color=self._output.color)
