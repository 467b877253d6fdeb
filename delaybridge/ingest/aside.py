"""Messages whose bucket takes none at present. The others go on without them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Generic, Protocol, Self, TypeVar

from delaybridge.backoff import Backoff
from delaybridge.errors import StoreUnavailable
from delaybridge.ingest.entries import Entry
from delaybridge.ingest.storing import EntryStore, Found, id_of, shard_key_of
from delaybridge.store import keys

_PAUSE_S, _LONGEST_PAUSE_S = 0.2, 2.0


class _Held(Protocol):
    """blocks: while it waits, everything else does, too."""

    entry: Entry

    @property
    def blocks(self) -> bool: ...


H = TypeVar("H", bound=_Held)
Late = tuple[H, Found]


class Aside(Generic[H]):
    """Messages that wait until their bucket is mended, or its server answers, in their order.

    Whatever comes later for their buckets or ids joins them, and every change that has to ask all
    buckets: none overtakes. They are tried again by themselves, so that nobody waits for the
    time-out of a silent server.
    """

    def __init__(self, store: EntryStore, tell: Callable[[Sequence[str]], object]) -> None:
        """tell: is told what the messages wait for, whenever that changes."""
        self.messages: list[H] = []
        self._store, self._tell = store, tell
        self._errors: dict[int | None, Exception] = {}  # by bucket; None: of changes that ask all
        self._numbers: set[int] = set()
        self._ids: set[str] = set()
        self._blocks = False

    @property
    def stuck(self) -> Exception | None:
        """What somebody has to mend, unless something may also end by itself."""
        errors = [*self._errors.values()]
        if not errors or any(isinstance(error, StoreUnavailable) for error in errors):
            return None
        return errors[0]

    def split(self, held: Sequence[H]) -> list[H]:
        """Take those that may not overtake; returns the others."""
        if not self._ids:
            return [*held]
        free: list[H] = []
        for each in held:
            (self._add if self._joins(each.entry) else free.append)(each)
        return free

    def take(self, late: Sequence[Late[H]]) -> list[H]:
        """Take the messages that their buckets refused; returns those to be tried as before."""
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
            self._tell(self.faults())
            await self._store.pause(self._errors, backoff.next_s())
            tried, known = len(self.messages), dict(self._errors)
            left = await store([*self.messages])
            joined = self.messages[tried:]
            fresh = {n: error for n, error in self._errors.items() if known.get(n) is not error}
            self.messages, self._errors = left.messages, left._errors | fresh
            self._numbers, self._ids, self._blocks = left._numbers, left._ids, left._blocks
            if len(self.messages) < tried:
                backoff = Backoff(_PAUSE_S, _LONGEST_PAUSE_S)
            for each in joined:
                self._add(each)
            moved()
        self._tell(())

    def faults(self) -> list[str]:
        """What the messages wait for, for people."""
        return [
            f"messages that this concerns are not stored until it is mended, and nothing more is "
            f"read once they fill ingest.prefetch or ingest.window_bytes: {reason}"
            for reason in sorted({str(error) for error in self._errors.values()})
        ]

    def _joins(self, entry: Entry) -> bool:
        number = self._number_of(entry)
        return (
            self._blocks or number is None or number in self._numbers or id_of(entry) in self._ids
        )

    def _note(self, late: Sequence[Late[H]]) -> None:
        for each, answer in late:
            if isinstance(answer, Exception):
                self._mark(each)
                self._errors[self._number_of(each.entry)] = answer

    def _add(self, held: H) -> None:
        self._mark(held)
        self.messages.append(held)

    def _mark(self, held: H) -> None:
        number = self._number_of(held.entry)
        if number is not None:
            self._numbers.add(number)
        self._ids.add(id_of(held.entry))
        self._blocks = self._blocks or held.blocks

    def _number_of(self, entry: Entry) -> int | None:
        shard_key = shard_key_of(entry)
        return None if shard_key is None else keys.bucket_of(shard_key, self._store.buckets)
