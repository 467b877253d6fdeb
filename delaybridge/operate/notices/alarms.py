"""The alarm: what workers noticed of losses in Redis, until an operator clears it.

With a ledger, a setback ends with the rebuild of its bucket, a wipe with that of all: unless
something was lost that the ledger lacks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from delaybridge.operate.notices import repairs
from delaybridge.operate.notices.repairs import Orphans
from delaybridge.store.namespace import history_alarm
from delaybridge.store.namespace.history_alarm import Setback
from delaybridge.store.protocol.verbs import Steps


class Losses(NamedTuple):
    """setbacks: Redis came back with an older past, or empty. mended: bucket -> what was found
    when its keys contradicted one another.
    """

    setbacks: Sequence[Setback]
    mended: Mapping[int, Orphans]

    @property
    def text(self) -> str:
        """The alarm in words; empty if nothing was lost."""
        parts = [history_alarm.setbacks_text(self.setbacks), repairs.mended_text(self.mended)]
        return "; ".join(filter(None, parts))

    @property
    def data(self) -> dict[str, Any]:
        """The alarm as JSON, with its numbers."""
        mended = {str(bucket): each._asdict() for bucket, each in self.mended.items()}
        kept = [each._asdict() for each in self.setbacks]
        return {"alarm": self.text or None, "setbacks": kept, "mended": mended}


def read(namespace: str) -> Steps[Losses]:
    """The alarm; writes nothing, and does not create the namespace."""
    (found,) = yield [history_alarm.read(namespace)]
    return Losses(found, (yield from repairs.read(namespace)))


def clear(namespace: str) -> Steps[bool]:
    """Forget it; whether there was one."""
    (cleared,) = yield [history_alarm.clear(namespace)]
    return (yield from repairs.clear(namespace)) or bool(cleared)
