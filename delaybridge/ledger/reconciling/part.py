"""The ledger's part of a worker: what lives as long as the worker does, and what each run has."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from typing import Any

from delaybridge.ledger.reconciling.agreed_rules import AgreedDestinations
from delaybridge.ledger.reconciling.agreeing import Agreeing
from delaybridge.ledger.reconciling.alarms import end_alarms
from delaybridge.ledger.reconciling.happened import Happened
from delaybridge.ledger.reconciling.reconciling import Reconciling
from delaybridge.ledger.recording.recorder import recorder_in
from delaybridge.ledger.sql.rows import Control, ControlName
from delaybridge.settings.settings import Settings
from delaybridge.store.protocol.verbs import RedisCommand
from delaybridge.worker.parts import LedgerPart, RunView
from delaybridge.worker.service import Identity


class WorkerLedger(LedgerPart):
    """Keeps Redis and the ledger in agreement: rules, definitions, and the buckets held.

    happened, unrecorded: what this worker knows, and the ledger may lack; kept from run to run.
    side: None while the worker does not run.
    """

    name = "agreeing"
    side: Agreeing

    def __init__(
        self, settings: Settings, identity: Identity, definitions_agree: Callable[[], bool]
    ) -> None:
        """definitions_agree: whether those of recurring messages were the ledger's, at last."""
        self._settings, self._definitions_agree = settings, definitions_agree
        self.happened = Happened(identity.name)
        self.unrecorded: dict[ControlName, Control] = {}
        self.destinations: AgreedDestinations = AgreedDestinations(
            settings.namespace, self.unrecorded
        )
        self._runs = False

    def begin(self, run: RunView) -> None:
        """Nothing is compared yet: each lease is, before its first claim."""
        past, recorder = run.past, recorder_in(run.store.recorder)
        assert recorder is not None, "the worker has opened it"
        self._reconciling = Reconciling(
            run.store, recorder, self.happened,
            sessions=run.sessions, marks=lambda: past.marks, doubt=past.doubt,
        )  # fmt: skip
        self.side = Agreeing(
            run.store, recorder, run.calls, self.destinations, self._reconciling,
            self.unrecorded, self._definitions_agree,
        )  # fmt: skip
        self._store, self._namespace = run.store, run.calls.namespace

    def rowless(self) -> Mapping[int, int]:
        """How many messages of each bucket held lack a row, as compared last."""
        return {n: each.compared.without_row for n, each in self._reconciling.drift.items()}

    def commands(self) -> Sequence[RedisCommand[Any]]:
        """A look at the changes of rules and definitions that the ledger may lack."""
        return self.side.commands()

    def take_replies(self, replies: Sequence[Any]) -> None:
        """What has changed is recorded soon."""
        self.side.take_replies(replies)

    def tasks(self) -> Iterable[Coroutine[Any, Any, None]]:
        """Tell, promote, reconcile, forget; record and compare rules; end alarms."""
        self._runs = True
        yield from self.side.tasks(self._settings.ledger)
        yield end_alarms(self._store, self._namespace)

    def announce(self, about: dict[str, Any]) -> None:
        """What differed, and why the ledger does not answer."""
        about["ledger"] = self.side.announced()

    def report(self, said: dict[str, Any]) -> None:
        """The same, while the tasks of a run work."""
        if self._runs:
            said["ledger"] = self.side.announced()

    async def close(self) -> None:
        """The report says nothing of the ledger until the next run works."""
        self._runs = False
