"""Work for the ledger, and a ledger as other rooms see it: neither needs SQLAlchemy."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

from delaybridge.errors import ConfigError
from delaybridge.settings.extras import remedy_of

if TYPE_CHECKING:
    from sqlalchemy import Connection

T = TypeVar("T")
SLOW_S = 0.05  # a count that takes longer is kept
READ_AGAIN = 20  # times as long as a count took
IN_DOUBT = "it may have been accepted: call again"  # ends the text of an error


@dataclass(frozen=True, slots=True)
class Work(Generic[T]):
    """What is done in one transaction: `run` is called with an open connection, perhaps twice."""

    run: Callable[[Connection], T]


class Ledger(Protocol):
    """The database of a ledger. Any thread may use it."""

    url: str

    def run(self, work: Work[T]) -> T:
        """Do it in a transaction, and commit.

        LedgerUnavailable: no answer in time, or a refusal; the message says whether anything may
        have been written. LedgerRefused: the database does not take a value; nothing was written.
        ConfigError: the tables are missing, or of another version.
        """

    async def run_async(self, work: Work[T]) -> T:
        """The same on an event loop."""

    def close(self) -> None:
        """Close every connection; one that is in use, after its transaction.

        Work under way is done, and so is what the same call asks for later: its caller is to have
        the answer, and a row without its message would be delivered though its call had failed.
        """


def open_ledger(url: str, *, timeout_s: float = 5.0, connections: int = 5) -> Ledger:
    """The ledger at a URL; nothing is connected yet.

    ConfigError: the extra `ledger`, or the driver that the URL names, is not installed.
    """
    try:
        from delaybridge.ledger.sql.database import Database

        made: Any = Database(url, timeout_s=timeout_s, connections=connections)
    except ModuleNotFoundError as exc:
        raise ConfigError(f"ledger.url: {remedy_of(exc) or exc}") from None
    found: Ledger = made
    return found
