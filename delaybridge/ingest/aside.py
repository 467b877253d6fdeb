"""Messages that cannot be stored at present. The others go on without them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Hashable, Iterable, Sequence
from typing import Generic, Protocol, Self, TypeVar

from delaybridge.backoff import Backoff
from delaybridge.errors import StoreUnavailable
from delaybridge.ingest.entries import Entry, Quarantine
from delaybridge.ingest.storing import AGAIN_S, EntryStore, Found, OverLimit, id_of, shard_key_of
from delaybridge.store.protocol import verbs

_PAUSE_S, _LONGEST_PAUSE_S = 0.2, 2.0


class _Held(Protocol):
    """origin: its partition, of which no bucket may pass a record that waits; None: it may.

    blocks: while it waits, all that comes later from its origin does, too.
    """

    entry: Entry

    @property
    def origin(self) -> Hashable: ...

    @property
    def blocks(self) -> bool: ...


H = TypeVar("H", bound=_Held)
Late = tuple[H, Found]


class Aside(Generic[H]):
    """Messages that wait until their bucket is mended, or takes more for them, in their order.

    Whatever comes later and must not overtake joins them: the same id; the same bucket, if that
    refuses all or it is of the same origin; and a change that has to ask such a bucket. They are
    tried again in calls of their own, so that no other waits for the time-out of a silent server.
    """

    def __init__(self, store: EntryStore, tell: Callable[[], object]) -> None:
        """tell: called whenever what the messages wait for may have changed."""
        self.messages: list[H] = []
        self._store, self._tell = store, tell
        # By bucket; None: of changes that ask all; of a limit: by origin and text.
        self._errors: dict[Hashable, Exception] = {}
        self._ids: set[str] = set()
        self._lanes: set[Hashable] = set()  # buckets, each with an origin; origins
        self._blocked: set[Hashable] = set()  # origins

    @property
    def stuck(self) -> Exception | None:
        """What an operator has to mend; None if nothing, or if some errors may end without that."""
        errors = [*self._errors.values()]
        if not errors or any(isinstance(error, StoreUnavailable | OverLimit) for error in errors):
            return None
        return errors[0]

    def split(self, held: Sequence[H]) -> list[H]:
        """Take those that may not overtake; returns the others.

        Those before them join, too, if they may not be overtaken: they may have to wait as well.
        """
        if not self._ids:
            return [*held]
        for each in held:
            if self._joins(each):
                self.mark(each)
        free: list[H] = []
        for each in held:
            (self._add if self._joins(each) else free.append)(each)
        return free

    def take_refused(self, late: Sequence[Late[H]]) -> list[H]:
        """Take the messages that are refused; returns those to be tried as before."""
        self._note(late)
        return self.split([each for each, _ in late])

    def hold(self, late: Sequence[Late[H]]) -> Self:
        """Take all of these, also those for an id in flight."""
        self._note(late)
        for each, _ in late:
            self._add(each)
        return self

    async def empty(
        self,
        store: Callable[[list[H]], Awaitable[Aside[H]]],
        moved: Callable[[], object] = lambda: None,
    ) -> None:
        """Try them again and again until all are stored.

        store: returns those that are not. moved: called when some may be.
        """
        backoff = Backoff(_PAUSE_S, _LONGEST_PAUSE_S)
        while self.messages:
            self._tell()
            await self._store.pause(self._errors, backoff.next_s() if self._errors else AGAIN_S)
            tried, known = len(self.messages), dict(self._errors)
            left = await store([*self.messages])
            joined = self.messages[tried:]
            fresh = {n: error for n, error in self._errors.items() if known.get(n) is not error}
            self.messages, self._errors = left.messages, left._errors | fresh
            self._ids, self._lanes, self._blocked = left._ids, left._lanes, left._blocked
            if len(self.messages) < tried:
                backoff = Backoff(_PAUSE_S, _LONGEST_PAUSE_S)
            for each in joined:
                self._add(each)
            moved()
        self._tell()

    def faults(self, waiting: Iterable[H]) -> list[str]:
        """What some of the messages wait for, for people."""
        if not self._errors:
            return []
        found = {way for each in waiting for way in (each.origin, self._number_of(each))}
        errors = self._errors.items()
        return sorted(
            {_fault(e) for way, e in errors if (way[0] if type(way) is tuple else way) in found}
        )

    def mark(self, held: H) -> None:
        """Have what may not overtake this one join it, once it is taken itself."""
        self._ids.add(id_of(held.entry))
        if held.origin is not None:
            self._lanes |= {held.origin, (held.origin, self._number_of(held))}
            if held.blocks:
                self._blocked.add(held.origin)

    def _joins(self, held: H) -> bool:
        if id_of(held.entry) in self._ids or held.origin in self._blocked:
            return True
        number = self._number_of(held)
        if number is None:  # it asks all
            return held.origin in self._lanes or any(type(way) is not tuple for way in self._errors)
        if number in self._errors:
            return True
        # No bucket remembers the offset of a quarantined record.
        return type(held.entry) is not Quarantine and (held.origin, number) in self._lanes

    def _note(self, late: Sequence[Late[H]]) -> None:
        for each, answer in late:
            if isinstance(answer, Exception):
                self.mark(each)
                is_limit = isinstance(answer, OverLimit)
                way = (each.origin, str(answer)) if is_limit else self._number_of(each)
                self._errors[way] = answer

    def _add(self, held: H) -> None:
        self.mark(held)
        self.messages.append(held)

    def _number_of(self, held: H) -> int | None:
        """Its bucket; None if it asks all."""
        shard_key = shard_key_of(held.entry)
        return None if shard_key is None else verbs.bucket_of(shard_key, self._store.buckets)


def _fault(error: Exception) -> str:
    until = "until some have gone out" if isinstance(error, OverLimit) else "until it is mended"
    return (
        f"messages that this concerns are not stored {until}, and nothing more is read of their "
        f"source once they fill an eighth of the window: {error}"
    )
