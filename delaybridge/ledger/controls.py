"""Controls in the ledger: rules of destinations, and recurring definitions.

Redis numbers all changes of a namespace (`lua/set_rule.lua`, `lua/define.lua`): of two records of
one control, that with the higher time is the later. What was removed stays as a record without a
value, or a Redis with an older past would bring it back.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from sqlalchemy import ColumnElement, Connection, and_, delete, insert, or_, select, update
from sqlalchemy.exc import IntegrityError

from delaybridge.ledger.engines import attempted
from delaybridge.ledger.rows import DEFINITION, Control, ControlName
from delaybridge.ledger.tables import control


class ControlRecords:
    """The controls of one namespace, written and read in transactions of the caller."""

    def __init__(self, namespace: str) -> None:
        self._own = control.c.namespace == namespace
        self._namespace = namespace

    def record(self, on: Connection, found: Iterable[Control]) -> None:
        """Write each down, unless the ledger has a later change of it."""
        for each in sorted(found):  # in one order: two who do it at once lock no row crosswise
            if not self._change(on, each):
                self._add(on, each)

    def _change(self, on: Connection, each: Control) -> bool:
        """Whether there is a row of it; it has the later change now."""
        which, columns = self._named(each.key), (control.c.value, control.c.changed_ms)
        # Locked: another process may write it, too.
        known = on.execute(select(*columns).where(which).with_for_update()).first()
        if known is None:
            return False
        if each.wins(Control(*each.key, known.value or b"", known.changed_ms)):
            values = {"value": each.value or None, "changed_ms": each.changed_ms}
            on.execute(update(control).where(which).values(values))
        return True

    def _add(self, on: Connection, each: Control) -> None:
        values = {
            "namespace": self._namespace, "kind": each.kind, "name": each.name,
            "value": each.value or None, "changed_ms": each.changed_ms,
        }  # fmt: skip
        try:
            with attempted(on):
                on.execute(insert(control), values)
        except IntegrityError:  # another process was faster
            self._change(on, each)

    def made(self, on: Connection, name: bytes, birth: str, made_ms: int) -> None:
        """The runs of a plan are made up to this one: told with their rows."""
        later = or_(control.c.birth != birth, control.c.made_ms < made_ms)
        which = and_(self._named((DEFINITION, name)), later)
        on.execute(update(control).where(which).values(birth=birth, made_ms=made_ms))

    def all(self, on: Connection) -> Sequence[Control]:
        """Every control, also those that were removed."""
        columns = [control.c[name] for name in Control._fields]
        found = on.execute(select(*columns).where(self._own))
        return [Control._make(row)._replace(value=row.value or b"") for row in found]

    def forget(self, on: Connection, before_ms: int) -> None:
        """Delete what was removed before this time."""
        old = control.c.changed_ms < before_ms
        on.execute(delete(control).where(self._own, control.c.value.is_(None), old))

    def _named(self, key: ControlName) -> ColumnElement[bool]:
        kind, name = key
        return and_(self._own, control.c.kind == kind, control.c.name == name)
