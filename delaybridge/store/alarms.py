"""The alarm: what workers noticed of losses in Redis, until an operator clears it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from delaybridge.store import repairs, setbacks
from delaybridge.store.command import Steps
from delaybridge.store.orphans import Orphans
from delaybridge.store.setbacks import Setback


class Losses(NamedTuple):
    """setbacks: Redis came back with an older past, or empty. mended: bucket -> what was found
    when its keys contradicted one another.
    """

    setbacks: Sequence[Setback]
    mended: Mapping[int, Orphans]

    @property
    def text(self) -> str:
        """In words; empty if there is none."""
        return "; ".join(filter(None, [setbacks.told(self.setbacks), repairs.told(self.mended)]))

    @property
    def data(self) -> dict[str, Any]:
        """As JSON."""
        mended = {str(bucket): each._asdict() for bucket, each in self.mended.items()}
        kept = [each._asdict() for each in self.setbacks]
        return {"alarm": self.text or None, "setbacks": kept, "mended": mended}


def read(namespace: str) -> Steps[Losses]:
    """The alarm; writes nothing, and does not create the namespace."""
    (found,) = yield [setbacks.read(namespace)]
    return Losses(found, (yield from repairs.read(namespace)))


def clear(namespace: str) -> Steps[bool]:
    """Forget it; whether there was one."""
    (cleared,) = yield [setbacks.clear(namespace)]
    return (yield from repairs.clear(namespace)) or bool(cleared)
