"""The port of a recorder: what stands beside a store and records the commands that change messages.

The store asks it before each pipeline (`concerns`) and has it run those that it records, step by
step. The ledger is one; the engine knows no other word of it than this page.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any, NamedTuple, Protocol, TypeVar

from delaybridge.errors import ConfigError, LedgerUnavailable, StoreError, StoreWiped
from delaybridge.settings.durability import Durability, Keeping
from delaybridge.store.protocol.bucket import Bucket
from delaybridge.store.protocol.replies import Row
from delaybridge.store.protocol.verbs import LedgerSteps, RedisCommand, Work

T = TypeVar("T")
IN_DOUBT = "it may have been accepted: call again"  # ends the text of an error
WENT_BACK = f"ledger: Redis went back, or was wiped, meanwhile; {IN_DOUBT}"
_LEDGER = "delaybridge.ledger"


class Ledger(Protocol):
    """The database of a recorder. Any thread may use it."""

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


class LostSlice(NamedTuple):
    """Some of a bucket. after: where the next slice begins; None after the last."""

    messages: list[Row]
    after: tuple[int, int] | None


class Recorded(Protocol):
    """Commands that are being recorded, step by step.

    asked: what is to be done next, work for the database or commands for Redis; None: it is done.
    answers: of each command, errors among them.
    """

    answers: list[Any]
    asked: Work[Any] | Sequence[RedisCommand[Any]] | None

    def take_result(self, result: Any) -> None:
        """The result of what was asked."""

    def fail(self, error: Exception) -> None:
        """What was asked could not be done."""

    def result(self) -> list[Any]:
        """The answers; raises the first error."""


class Recorder(Protocol):
    """Records the commands of one namespace in its database, `ledger`."""

    @property
    def ledger(self) -> Ledger:
        """The ledger that it tells; closed with the store."""

    def follow(self, following: Any) -> None:
        """Know where messages go that move to other buckets."""

    def retiring(self, bucket: Bucket) -> LedgerSteps[None]:
        """What is to be done before a bucket ends that has given everything to others."""

    def concerns(self, commands: Sequence[RedisCommand[Any]]) -> bool:
        """Whether it is to know of any of these commands, or has a part in its answer."""

    def record(
        self, commands: Sequence[RedisCommand[Any]], node_of: Callable[[str], str]
    ) -> Recorded:
        """Run these commands, and record them. node_of: the server of a key."""

    def lost(
        self, bucket: Bucket, after: tuple[int, int], to: str | None = None
    ) -> LedgerSteps[LostSlice]:
        """Messages of a bucket that Redis lacks, by due time and call, after these two.

        to: how their destinations begin. Raises why the bucket cannot answer: the caller goes on.
        """


def open_recorder(
    durability: Durability, url: str | None, namespace: str, timeout_s: float, hot_window_s: float
) -> Recorder | None:
    """The recorder that a durability asks for; None: it asks for none.

    url, hot_window_s: as in the settings. ConfigError: there is no URL, or no driver for it, or the
    window is out of range, or the package `delaybridge.ledger` is missing.
    """
    if durability.mode is not Keeping.LEDGER:
        return None
    try:
        found = import_module(f"{_LEDGER}.recording.recorder")
    except ModuleNotFoundError as exc:
        if not (exc.name or "").startswith(_LEDGER):
            raise
        raise ConfigError(f"durability: ledger needs {_LEDGER}, which is not installed") from None
    recorder: Recorder = found.recorder_of(url, namespace, timeout_s, hot_window_s)
    return recorder


def ledger_of(recorder: Recorder | None) -> Ledger:
    """The database of a store's recorder; ConfigError if it has none."""
    if recorder is None:
        raise ConfigError("ledger: not configured; set durability to ledger, and ledger.url")
    return recorder.ledger


def of_ledger(error: StoreError) -> StoreError:
    """The error; a wipe is not one after which anything must be started again."""
    return LedgerUnavailable(WENT_BACK) if isinstance(error, StoreWiped) else error


def in_doubt(error: StoreError) -> StoreError:
    """The error of a call that may take effect: the ledger has its row, or Redis has done it."""
    found = of_ledger(error)
    text = str(found).partition("; nothing")[0].removesuffix(f"; {IN_DOUBT}")
    made = type(found)(f"{text}; {IN_DOUBT}")
    made.__cause__ = found.__cause__
    return made
