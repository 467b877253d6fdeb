"""What a process does besides its own work: parts from other rooms, which `cli` gives it."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from delaybridge.store.protocol.verbs import RedisCommand

if TYPE_CHECKING:
    from delaybridge.scan.leases.bucket_calls import LedgerSide
    from delaybridge.scan.leases.session import Session
    from delaybridge.settings.settings import Settings
    from delaybridge.store.calls import Calls
    from delaybridge.store.protocol.bucket import Bucket
    from delaybridge.store.protocol.verbs import Steps
    from delaybridge.store.redis.store import AsyncStore
    from delaybridge.worker.destinations import Destinations
    from delaybridge.worker.eventlog import Listeners
    from delaybridge.worker.history_check import Past
    from delaybridge.worker.service import Identity


Commands = Sequence[RedisCommand[Any]]


class RunView(NamedTuple):
    """What a run of a worker's scanner shows to its parts.

    past: what Redis says of the buckets held. sessions: returns the leases held; held: the buckets
    of these whose node answered lately. lose: ends a session, and why: nothing that it claimed is
    published. wipe: ends the run, whose namespace is gone. regroup: other buckets are to be held.
    rowless: with a ledger, how many
    messages of a bucket were not in it when they were compared.
    """

    store: AsyncStore
    calls: Calls
    past: Past
    sessions: Callable[[], Iterable[Session]]
    held: Callable[[], Iterable[Bucket]]
    lose: Callable[[Session, str], None]
    wipe: Callable[[], None]
    regroup: Callable[[], None]
    rowless: Callable[[], Mapping[int, int]] | None = None


class Part:
    """A part of a process: made with it, and begun again with each run of a worker's scanner.

    name: for the log. What it does not need, it leaves as it is here.
    """

    name = ""

    def join(self, listeners: Listeners) -> None:
        """The process is made: listen to its events, or keep `listeners` to send some."""

    def check(self, calls: Calls) -> Steps[None]:
        """The namespace is open: raise why the process cannot do its work on this Redis."""
        yield from ()

    def begin(self, run: RunView) -> None:
        """A run of the scanner begins; nothing is leased yet."""

    def commands(self) -> Commands:
        """What to ask Redis in this beat of the pulse, once a second; none if nothing."""
        return ()

    def take_replies(self, replies: Sequence[Any]) -> None:
        """Take the parsed replies to `commands`, in their order; called unless there were none.

        An error stands in its command's place, StoreUnavailable if Redis did not answer: the
        command may have run nevertheless.
        """

    def tasks(self) -> Iterable[Coroutine[Any, Any, None]]:
        """What runs as long as this run does; an error of one of them ends the run."""
        return ()

    def announce(self, about: dict[str, Any]) -> None:
        """Add what it has to say to the announcement of a worker."""

    def report(self, said: dict[str, Any]) -> None:
        """Add what it has to say to the report of the process."""

    async def close(self) -> None:
        """The run ends: no lease is held any more, and one more beat follows."""


class LedgerPart(Part):
    """A worker's side of the ledger, without which it does not work on a namespace that has one.

    destinations: obeys the rules that the ledger has, in each run. side: of the run that was begun
    last; each lease waits for it before its first claim.
    """

    destinations: Destinations
    side: LedgerSide

    def rowless(self) -> Mapping[int, int]:
        """How many messages of a bucket were not in the ledger when they were compared."""
        raise NotImplementedError


MakeParts = Callable[["Settings", "Identity"], Sequence[Part]]
"""Makes the parts of one process. It is pickled by its name, for child processes."""


def no_parts(settings: Settings, identity: Identity) -> Sequence[Part]:
    """None: the process does its own work alone."""
    return ()
