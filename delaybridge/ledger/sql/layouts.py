"""The layout of a namespace in the ledger: a Redis that was wiped does not know it any more."""

from __future__ import annotations

from sqlalchemy import Connection, insert, select, update
from sqlalchemy.exc import IntegrityError

from delaybridge.errors import LedgerUnavailable
from delaybridge.ledger.sql.engines import attempted
from delaybridge.ledger.sql.tables import namespace
from delaybridge.store.protocol.layout import Epoch, Layout, parse_record, record_text

_MOST = 64  # characters in the column `birth`

Known = tuple[Layout, str]


def settle(on: Connection, name: str, layout: Layout, birth: str) -> Known:
    """The layout and the birth id that a namespace has; these, if it is new."""
    if (found := known(on, name)) is None:
        values = {"namespace": name, "buckets": layout.here.size, "birth": _kept(layout, birth)}
        try:
            with attempted(on):
                on.execute(insert(namespace), values)
        except IntegrityError:  # another process was faster
            found = known(on, name)
        else:
            return layout, birth
    before, of_before = found or (layout, birth)
    if _spread(of_before) != _spread(birth):  # it has moved to another kind of Redis
        own = update(namespace).where(namespace.c.namespace == name)
        on.execute(own.values(birth=_kept(before, birth)))
        return before, birth
    return before, of_before


def grow(on: Connection, name: str, layout: Layout, birth: str) -> Known:
    """Know this layout from now on; LedgerUnavailable: another one is known, which Redis forgot."""
    before, _ = settle(on, name, layout, birth)
    if before.epochs[-1] not in layout.epochs:
        what = "Redis has forgotten a resize, which workers tell it soon"
        raise LedgerUnavailable(f"ledger: {what}; nothing was changed: call again")
    own = update(namespace).where(namespace.c.namespace == name)
    on.execute(own.values(buckets=layout.here.size, birth=_kept(layout, birth)))
    return layout, birth


def known(on: Connection, name: str) -> Known | None:
    """The layout and the birth id that a namespace has; None if it is new."""
    own = select(namespace.c.buckets, namespace.c.birth).where(namespace.c.namespace == name)
    if (row := on.execute(own).first()) is None:
        return None
    birth = str(row.birth)
    return parse_record(birth) or (Layout((Epoch(0, int(row.buckets)),)), birth)


def _kept(layout: Layout, birth: str) -> str:
    """What stands in the column `birth`: of a namespace that was resized its record."""
    if layout == Layout((Epoch(0, layout.here.size),)):
        return birth
    while len(text := record_text(layout, birth)) > _MOST and layout.at:
        layout = layout._replace(epochs=layout.epochs[1:], at=layout.at - 1)
    return text


def _spread(birth: str) -> tuple[str, bool]:
    """How the keys of a namespace with this birth id are spread over a Cluster, if it is one."""
    parts = birth.partition(":")
    return parts[1], parts[2].endswith("s")
