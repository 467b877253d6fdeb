"""A recorder with a database in memory, and a Redis that answers what the test says."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import count
from typing import Any
from weakref import finalize

from sqlalchemy import create_engine, text
from sqlalchemy.pool import StaticPool

from delaybridge.accept.accept import Accepted
from delaybridge.errors import LedgerUnavailable
from delaybridge.ledger.comparing.healing import Standing
from delaybridge.ledger.recording.recorder import LedgerRecorder, RecordedSteps
from delaybridge.ledger.sql.tables import metadata
from delaybridge.message import ConflictPolicy, OnConflict
from delaybridge.store.protocol.bucket import Bucket
from delaybridge.store.protocol.verbs import RedisCommand, Work

NOW_MS = 1_800_000_000_000
HOT_MS = 10_000  # messages due later are cold
HOT, COLD = NOW_MS + 1000, NOW_MS + 60_000  # due times
CREATED, DUPLICATE, IN_FLIGHT, REPLACED = 1, 2, 5, 4
UNKNOWN, CANCELLED, RESCHEDULED, KICKED = 0, 6, 8, 11
BUCKETS = [Bucket("ns", number, "birth") for number in range(3)]
BUCKET = BUCKETS[1]
_PAYLOAD = b"\x97\xa7kafka:t"


class ScriptedRedis:
    """Commands and work of calls, one after the other.

    replies: by the name of a command what it answers: each once, the last one for ever; an error, a
    reply as a script makes it, or a function of the command. asked: the commands so far. fails_at:
    the number of the piece of work from which on the ledger is silent.
    """

    def __init__(self) -> None:
        self._engine = create_engine("sqlite://", poolclass=StaticPool)
        finalize(
            self, self._engine.dispose
        )  # Python 3.13 warns of a connection that nothing closed
        metadata.create_all(self._engine)
        ledger: Any = self
        self.recorder = LedgerRecorder(ledger, "ns", HOT_MS)
        self.replies: dict[str, list[Any]] = {
            "TIME": [NOW_MS * 1000], "HMGET": [Standing()], "HGET": [None], "ZCARD": [0],
            "ZSCORE": [None], "HEXISTS": [1], "INFO": [{"run_id": "run"}], "GET": [(3, "birth")],
            "schedule": [_created], "restore": [_restored],
            "cancel": [[CANCELLED, b""]], "reschedule": [RESCHEDULED], "kick": [KICKED],
        }  # fmt: skip
        self.asked, self.works, self.fails_at = list[RedisCommand[Any]](), 0, 1000
        self._stamps = count(1)

    def sent(self, name: str) -> list[RedisCommand[Any]]:
        """The commands of a name that were sent."""
        return [each for each in self.asked if each.name == name]

    def run(
        self, *commands: RedisCommand[Any], node_of: Callable[[str], str] = lambda key: ""
    ) -> list[Any]:
        """The answers to one pipeline, errors among them."""
        return self.recorded(commands, node_of).answers

    def recorded(
        self, commands: Sequence[RedisCommand[Any]], node_of: Callable[[str], str] = lambda key: ""
    ) -> RecordedSteps:
        """One pipeline, done."""
        found = self.recorder.record(commands, node_of)
        while (asked := found.asked) is not None:
            if isinstance(asked, Work):
                try:
                    found.take_result(self._work(asked))
                except LedgerUnavailable as exc:
                    found.fail(exc)
            else:
                found.take_result([self._answer(each) for each in asked])
        return found

    def _work(self, work: Work[Any]) -> Any:
        self.works += 1
        if self.works >= self.fails_at:
            raise LedgerUnavailable("ledger: silent; nothing was written")
        with self._engine.begin() as on:
            return work.run(on)

    def _answer(self, command: RedisCommand[Any]) -> Any:
        self.asked.append(command)
        left = self.replies[command.name]
        reply = left.pop(0) if len(left) > 1 else left[0]
        reply = reply(command) if callable(reply) else reply
        is_read = command.is_plain or isinstance(reply, Exception)
        return reply if is_read else command.parse(reply)

    def ask(self, statement: str, **values: object) -> Sequence[Any]:
        with self._engine.begin() as on:
            found = on.execute(text(statement), values)
            return found.all() if found.returns_rows else ()

    def rows(self) -> list[tuple[Any, ...]]:
        """Id, state and tier of each row, in the order of their calls."""
        return [
            tuple(each) for each in self.ask("SELECT id, state, tier FROM message ORDER BY number")
        ]

    def schedule(
        self, id: str, due_ms: int = HOT, policy: ConflictPolicy = OnConflict.FAIL,
        bucket: Bucket = BUCKET, **fields: Any,
    ) -> RedisCommand[Any]:  # fmt: skip
        accepted = Accepted(id, id.encode(), str(due_ms), 255, _PAYLOAD)
        return bucket.schedule([(self.stamp(), accepted)], policy, **fields)

    def stamp(self) -> bytes:
        return next(self._stamps).to_bytes(4, "big")


def _created(command: RedisCommand[Any]) -> list[int]:
    return [CREATED, HOT, int(command.args[9])]


def _restored(command: RedisCommand[Any]) -> list[int]:
    return [0] * (len(command.args[6:]) // 5)
