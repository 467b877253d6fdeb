"""The pump: moves committed rows of the outbox into Redis."""

from __future__ import annotations

import logging
import math
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence

from sqlalchemy.exc import DBAPIError, SQLAlchemyError

from delaybridge.backoff import Backoff
from delaybridge.client.client import Client
from delaybridge.errors import ConfigError, NotDurable, StoreError, StoreWiped
from delaybridge.message import Answer, OnConflict, destination_text
from delaybridge.outbox.causes import cause_of, is_of_server, unconfirmed
from delaybridge.outbox.database import OutboxBatch, OutboxCall, OutboxTable
from delaybridge.outbox.table import MOST_ROWS
from delaybridge.store.calls import Calls
from delaybridge.store.messages.scheduling import Receipt
from delaybridge.store.protocol.verbs import bucket_of

Say = Callable[..., None]  # called with a level, an event's name and its fields
Outcome = Receipt | Answer | Exception
_Row = tuple[int, bytes]  # number and stamp: a promoted replica gives numbers a second time
_RETRY_S = (0.1, 2.0)  # pause after a failure: first, longest
_STEADY_S = 10.0
_LATE_S = (0.02, 0.2)  # until rows are tried again whose ids are in flight: first, longest
_HEARD_POLL_S = 1.0  # while a listener tells of new rows
_PAGES = 4  # of a transaction
_PAUSE = 5  # rows that stay are tried again after this many times what their last try took


class Pump:
    """Moves the committed rows of one namespace into Redis, in the order in which they were made.

    A row is deleted after Redis has its message, both before the next batch. If the process dies in
    between, the row is sent again with the same stamp: a message that is still pending is not
    doubled; one that was published meanwhile comes a second time. Nothing is lost.

    A transaction has at most one call for each id. So a call that is sent again is never later
    than another one for its id. One pump works at a time; further ones take over when it ends.

    A row whose id is in flight stays until that message is settled; one whose destination is full,
    whose bucket is damaged, or whose server, of several, is silent or confirms nothing, until that
    is over. Others go on: new rows are looked at alone. Now and then all are, from the first one,
    in transactions of a few pages each.

    If Redis or the database fails, it says so once, and tries again until stopped. Rows that Redis
    has are not sent again for that. is_told: while it returns True, a listener calls `wake` when
    rows were committed.
    """

    def __init__(
        self,
        rows: OutboxTable,
        client: Client,
        say: Say,
        *,
        poll_s: float,
        is_told: Callable[[], bool] = lambda: False,
    ) -> None:
        self._rows, self._client, self._say = rows, client, say
        self._poll_s, self._is_told = poll_s, is_told
        self._bell, self._stopping = threading.Event(), threading.Event()
        self._silent: set[str] = set()  # what has failed, and was said
        self._causes = set[str]()  # why rows are held up, as far as it was said
        self._is_unsure = False  # a server did not answer, or did not confirm
        self._unsure: Sequence[Exception | None] = ()  # of each bucket, when that was asked last
        self._stored = set[_Row]()  # which Redis has, and whose transaction may have failed
        self._late, self._held = Backoff(*_LATE_S), Backoff(*_RETRY_S)
        self._seen = set[str]()  # ids of the rows that stay
        self._due_s = self._ready_s = 0.0  # when those are tried again; not before `ready`
        self._begin(0)

    def _begin(self, after: int) -> None:
        """Look at the rows after this one next, up to the newest; 0: at those that stay, too."""
        self._after = self._last = after  # last: the last row that was looked at
        self._newest: int | None = None
        self._took_s = 0.0
        self._is_late = False  # a row stays, since the message of its id is being delivered
        self._is_held = False  # a row stays for another reason of its own
        if not after:
            self._seen.clear()
            self._is_unsure |= any(self._unsure)
            self._met = set[str]()  # why rows are held up

    def wake(self) -> None:
        """Look for rows now, and not after a pause. May be called from any thread."""
        self._bell.set()

    def stop(self) -> None:
        """End after the batch under way. May be called from any thread."""
        self._stopping.set()
        self._bell.set()

    def run(self) -> None:
        """Move rows until stopped. StoreWiped, ConfigError: a restart is needed."""
        backoff = Backoff(*_RETRY_S, _STEADY_S)
        began_s = time.monotonic()
        while not self._stopping.is_set():
            try:
                is_over = self._look()
                self._succeed()
                if is_over:
                    self._wait()
            except (ConfigError, StoreWiped):
                raise
            except (StoreError, SQLAlchemyError) as exc:
                self._fail("store_silent" if isinstance(exc, StoreError) else "outbox_silent", exc)
                self._begin(0)
                self._stopping.wait(backoff.next_s(time.monotonic() - began_s))
                began_s = time.monotonic()

    def _wait(self) -> None:
        """Wait until it is time to look again, or the bell rings."""
        poll_s = _HEARD_POLL_S if self._is_told() else self._poll_s
        if not self._seen:
            self._bell.wait(poll_s)
            self._bell.clear()
            self._begin(0)
        while self._seen and not self._stopping.is_set():
            left_s = max(self._due_s, self._ready_s) - time.monotonic()
            if left_s <= 0:
                self._begin(0)
                return
            has_rung = self._bell.wait(min(left_s, poll_s))
            self._bell.clear()
            if self._rows.newest(self._last):
                self._late = Backoff(*_LATE_S)  # a new row may stay for a moment only
                return
            if has_rung:  # for a row with a lower number
                self._due_s = 0.0

    def _look(self) -> bool:
        """Move what is there, one transaction; whether that was all."""
        if self._is_unsure:  # sent again each time, rows might be published each time
            since_s = time.monotonic()
            self._unsure = self._client.run(unconfirmed)
            self._took_s += time.monotonic() - since_s  # the longer, the more seldom: others wait
            self._is_unsure = False
        elif "store_silent" in self._silent:
            self._client.run(lambda calls: calls.now_ms())  # before rows are locked again
        self._newest = self._newest or self._rows.newest(self._after)
        if self._newest is None:
            self._end()
            return True
        since_s = time.monotonic()
        is_over = self._batch(self._newest)
        if is_over is None:  # another pump does it
            self._begin(0)
            return True
        took_s = time.monotonic() - since_s
        self._took_s += took_s
        if self._seen:
            self._stopping.wait(took_s)  # others need the lock, too
        if is_over:
            self._end()
        return is_over

    def _end(self) -> None:
        """All were looked at: say when those that stay are next."""
        now_s, is_whole = time.monotonic(), not self._after
        if is_whole:
            self._tell_free()
            self._stored.clear()  # other rows are not there any more
            self._unsure = self._unsure if self._seen else ()  # no server is asked in vain
            self._ready_s, self._due_s = now_s + _PAUSE * self._took_s, math.inf
            self._held = self._held if self._is_held else Backoff(*_RETRY_S)
        if self._is_late:
            self._due_s = min(self._due_s, now_s + self._late.next_s())
        if self._is_held and is_whole:
            self._due_s = min(self._due_s, now_s + self._held.next_s())
        self._begin(self._last)

    def _batch(self, newest: int) -> bool | None:
        """Move one batch, up to this row; whether that was all. None: another pump has one.

        Raises what concerns the whole store: some rows stay then, the others are done.
        """
        moved = _Moved()
        try:
            with self._rows.batch(newest) as batch:
                if batch is None:
                    return None
                is_over = self._pages(batch, moved)
                batch.finish([number for number, _ in moved.done], moved.refused)
        except SQLAlchemyError:
            self._stored.update(moved.done)
            raise
        self._stored.difference_update(moved.done)
        for number, reason in moved.refused.items():
            self._say(logging.WARNING, "outbox_refused", number=number, reason=reason)
        if moved.done:
            self._say(logging.DEBUG, "outbox_moved", n=len(moved.done))
        if moved.count:
            self._late = Backoff(*_LATE_S)
        self._tell_held(moved.held)
        if moved.failure is not None:
            raise moved.failure
        return is_over

    def _pages(self, batch: OutboxBatch, moved: _Moved) -> bool:
        """Move a few pages; whether those were all rows."""
        for _ in range(_PAGES):
            if self._stopping.is_set() or moved.failure or moved.count > MOST_ROWS // 2:
                return False
            page = batch.page(self._last)
            self._see_earlier(page, batch)
            if not self._page(page, moved) or self._is_unsure:
                return False
            if len(page) < MOST_ROWS:
                return True
        return False

    def _page(self, page: Sequence[OutboxCall], moved: _Moved) -> bool:
        """Move a page; False: up to a row that follows one of this transaction, and is next."""
        calls = _first_of_each_id((c for c in page if c.id not in self._seen), moved.ids)
        self._move(calls, moved)
        numbers = {call.number for call in calls}
        for call in page:
            if call.number not in numbers and call.id not in self._seen:
                return False
            self._last = call.number
        return True

    def _see_earlier(self, page: Sequence[OutboxCall], batch: OutboxBatch) -> None:
        """Rows stay that follow one which had a lower number than others, and was committed later.

        Such a one is only met when all are looked at.
        """
        if self._after and (ids := {call.id for call in page} - self._seen):
            earlier = batch.with_rows(ids, self._after)
            self._seen |= earlier
            self._due_s = 0.0 if earlier else self._due_s

    def _move(self, calls: Sequence[OutboxCall], moved: _Moved) -> None:
        try:
            for call, outcome in self._sent(self._unsent(calls, moved)):
                if isinstance(outcome, Exception):
                    self._keep(call, outcome, moved)
                elif outcome == Answer.IN_FLIGHT and call.accepted is not None:
                    self._is_late = True
                    self._seen.add(call.id)
                elif outcome == Answer.CONFLICT:
                    moved.refused[call.number] = "conflict: the id is pending with other content"
                else:
                    moved.done.append(_row(call))
        except (ConfigError, StoreError) as exc:  # what was moved before is done
            self._is_unsure |= isinstance(exc, NotDurable)
            moved.failure = moved.failure or exc

    def _unsent(self, calls: Iterable[OutboxCall], moved: _Moved) -> list[OutboxCall]:
        """The calls but for those that Redis has, and those that stay since their server fails."""
        found = list[OutboxCall]()
        for call in calls:
            if _row(call) in self._stored:
                moved.done.append(_row(call))
            elif error := self._known(call):
                self._stays(call, error, moved)
            else:
                found.append(call)
        return found

    def _known(self, call: OutboxCall) -> Exception | None:
        """Why a call is not sent: its server is known not to answer, or not to confirm."""
        key = call.key if call.accepted is None else call.accepted.shard_key
        if key is None or not self._unsure:
            return None
        return self._unsure[bucket_of(key, len(self._unsure))]

    def _keep(self, call: OutboxCall, error: Exception, moved: _Moved) -> None:
        """A row stays: alone if the error is its destination's, its bucket's or its server's."""
        self._is_unsure |= isinstance(error, NotDurable)
        if not is_of_server(error):
            is_alone = bool(cause_of(error))
        elif is_alone := self._client.run(Calls.servers) > 1:
            self._is_unsure = True
        if is_alone:
            self._stays(call, error, moved)
        else:
            moved.failure = moved.failure or error

    def _stays(self, call: OutboxCall, error: Exception, moved: _Moved) -> None:
        self._is_held = True
        self._seen.add(call.id)
        moved.held.setdefault(cause_of(error), (call, error))

    def _sent(self, calls: Iterable[OutboxCall]) -> Iterable[tuple[OutboxCall, Outcome]]:
        """Each call with its outcome. Their ids differ, so their order does not matter."""
        by_policy, cancels = defaultdict[str, list[OutboxCall]](list), list[OutboxCall]()
        for call in calls:
            if call.accepted is None:
                cancels.append(call)
            else:
                by_policy[call.policy].append(call)
        for policy, some in by_policy.items():
            yield from zip(some, self._schedule(some, OnConflict(policy)), strict=True)
        if cancels:
            yield from zip(cancels, self._cancel(cancels), strict=True)

    def _schedule(self, calls: Iterable[OutboxCall], policy: OnConflict) -> Iterable[Outcome]:
        messages = [(call.stamp, call.accepted) for call in calls if call.accepted is not None]
        return self._client.run(lambda on: on.schedule_each(messages, policy))

    def _cancel(self, calls: Sequence[OutboxCall]) -> Sequence[Outcome]:
        named = [(call.id, call.key) for call in calls]
        outcomes = self._client.run(lambda on: on.cancel_each(named))
        found = zip(calls, outcomes, strict=True)
        late = [call.id for call, outcome in found if outcome is Answer.IN_FLIGHT]
        if late:
            shown = ",".join(late)
            self._say(logging.WARNING, "outbox_cancel_too_late", n=len(late), ids=shown)
        return outcomes

    def _tell_held(self, held: Mapping[str, tuple[OutboxCall, Exception]]) -> None:
        """Say once why rows are held up, with one of them."""
        for cause, (call, error) in held.items():
            if cause not in self._causes:
                to = call.accepted and {"destination": destination_text(call.accepted.payload)}
                self._say(
                    logging.WARNING, "outbox_held", number=call.number, id=call.id, **to or {},
                    reason=str(error), hint="it is tried again; others go on",
                )  # fmt: skip
        self._causes.update(held)
        self._met.update(held)

    def _tell_free(self) -> None:
        """Say for what no row is held up any more."""
        for cause in sorted(self._causes - self._met):
            self._say(logging.INFO, "outbox_goes_on", reason=f"no row stays for {cause}")
        self._causes &= self._met

    def _fail(self, event: str, exc: Exception) -> None:
        if event in self._silent:
            return
        self._silent.add(event)
        own = exc.orig if isinstance(exc, DBAPIError) and exc.orig is not None else exc
        text = " ".join(str(own).split()) or type(own).__name__  # no parameters: they are messages
        self._say(logging.WARNING, event, reason=text, hint="it tries again; no row is lost")

    def _succeed(self) -> None:
        for event in sorted(self._silent):
            what = "redis" if event == "store_silent" else "the database"
            self._say(logging.INFO, "outbox_goes_on", reason=f"{what} answers again")
        self._silent.clear()


class _Moved:
    """What became of the rows of a transaction.

    ids: of which a call was made. held: a row for each reason why some stay. failure: the first of
    the whole store.
    """

    def __init__(self) -> None:
        self.done, self.refused = list[_Row](), dict[int, str]()  # refused: by their numbers
        self.ids = set[str]()
        self.held = dict[str, tuple[OutboxCall, Exception]]()
        self.failure: Exception | None = None

    @property
    def count(self) -> int:
        return len(self.done) + len(self.refused)


def _row(call: OutboxCall) -> _Row:
    return call.number, call.stamp


def _first_of_each_id(calls: Iterable[OutboxCall], seen: set[str]) -> list[OutboxCall]:
    """The calls whose order does not matter; the others wait for the next transaction.

    Two for one id in one transaction, sent again after a crash, would undo each other: a cancel
    would hit the message that was scheduled after it. seen: the ids so far; grows.
    """
    first: dict[str, OutboxCall] = {}
    for call in calls:
        if call.id not in seen:
            first.setdefault(call.id, call)
    seen.update(first)
    return list(first.values())
