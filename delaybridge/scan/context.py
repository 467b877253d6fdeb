"""The context that the parts of the scanner share."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from delaybridge.events import Emit
from delaybridge.scan.lanes.lanes import Lanes
from delaybridge.scan.leases.bucket_calls import Asking
from delaybridge.scan.leases.copy import Copy
from delaybridge.scan.leases.exits import ExitReport
from delaybridge.scan.leases.session import Session
from delaybridge.scan.wheel.waiting import WaitingCopies


@dataclass(frozen=True, slots=True, kw_only=True)
class ScanOptions:
    """Bounds of one worker; each is described at the setting of that name."""

    claim_ahead_ms: int = 2000
    wheel_messages: int = 100_000
    wheel_bytes: int = 64 * 2**20
    batch_messages: int = 1000
    batch_bytes: int = 4 * 2**20
    fire_lead_ms: int = 5

    @property
    def pace_ms(self) -> int:
        """The shortest time between two claims from one bucket under load."""
        return self.claim_ahead_ms // 4


class LedgerSide(Protocol):
    """Keeps the ledger and the buckets of a worker in agreement."""

    async def verify(self, session: Session) -> bool:
        """Return when a new session's bucket agrees with the ledger, or the session is over.

        False: Redis refuses the session; its bucket may not agree.
        """

    def told(self, session: Session, report: ExitReport, now_ms: int) -> None:
        """The store has these exits. now_ms: by its clock."""

    def left(self, session: Session, copies: Sequence[Copy], now_ms: int) -> None:
        """The store has settled these, which are to be published at most once, now."""


class Clock(Protocol):
    """The store's time (`StoreClock`); tests pass their own."""

    def now_ms(self) -> int: ...

    def monotonic(self) -> float: ...


@dataclass(frozen=True, slots=True)
class Context:
    """One scanner's parts. sessions: by bucket.

    start: runs a step as a task. ring: makes the scanner do a pass soon. ledger: if there is one.
    """

    sessions: dict[int, Session]
    waiting: WaitingCopies
    lanes: Lanes
    asking: Asking
    clock: Clock
    emit: Emit
    options: ScanOptions
    start: Callable[[Coroutine[Any, Any, None]], None]
    ring: Callable[[], None]
    ledger: LedgerSide | None = None
