"""Controls in the ledger: rules of destinations, and recurring definitions.

Redis numbers all changes of a namespace (`lua/set_rule.lua`, `lua/define.lua`): of two records of
one control, that with the higher time is the later. What was removed stays as a record without a
value, or a Redis with an older past would bring it back.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from contextlib import suppress

from sqlalchemy import ColumnElement, Connection, and_, delete, false, insert, or_, select, update
from sqlalchemy.exc import IntegrityError

from delaybridge.ledger.sql.engines import attempted
from delaybridge.ledger.sql.rows import DEFINITION, Control, ControlName
from delaybridge.ledger.sql.tables import control


class ControlRecords:
    """The controls of one namespace, written and read in transactions of the caller."""

    def __init__(self, namespace: str) -> None:
        self._own = control.c.namespace == namespace
        self._namespace = namespace

    def record(self, on: Connection, found: Iterable[Control]) -> None:
        """Write each down, unless the ledger has a later change of it. Safe to repeat."""
        found = sorted(found)  # in one order: two who do it at once lock no row crosswise
        known = self._known(on, found)
        self._change(on, [(each, known[each.key]) for each in found if each.key in known])
        new = [each for each in found if each.key not in known]
        try:
            with attempted(on):
                self._add(on, new)
        except IntegrityError:  # another process was faster
            for each in new:
                self._add_or_change(on, each)

    def _known(self, on: Connection, found: Iterable[Control]) -> dict[ControlName, Control]:
        """What there is of these. Locked: another process may write it, too."""
        names = defaultdict[str, list[bytes]](list)
        for each in found:
            names[each.kind].append(each.name)
        of_kind = (
            and_(control.c.kind == kind, control.c.name.in_(own)) for kind, own in names.items()
        )
        columns = control.c.kind, control.c.name, control.c.value, control.c.changed_ms
        asked = select(*columns).where(self._own, or_(false(), *of_kind)).with_for_update()
        rows = on.execute(asked.order_by(control.c.kind, control.c.name))
        return {
            (kind, name): Control(kind, name, value or b"", changed_ms)
            for kind, name, value, changed_ms in rows
        }

    def _change(self, on: Connection, found: Iterable[tuple[Control, Control]]) -> None:
        for each, known in found:
            if each.wins(known):
                values = {"value": each.value or None, "changed_ms": each.changed_ms}
                on.execute(update(control).where(self._named(each.key)).values(values))

    def _add(self, on: Connection, found: Iterable[Control]) -> None:
        rows = [
            {
                "namespace": self._namespace, "kind": each.kind, "name": each.name,
                "value": each.value or None, "changed_ms": each.changed_ms,
            }
            for each in found
        ]  # fmt: skip
        if rows:
            on.execute(insert(control), rows)

    def _add_or_change(self, on: Connection, each: Control) -> None:
        with suppress(IntegrityError), attempted(on):
            self._add(on, [each])
            return
        self._change(on, [(each, known) for known in self._known(on, [each]).values()])

    def made(self, on: Connection, name: bytes, birth: str, made_ms: int) -> None:
        """The runs of a plan are made up to this one: told with their rows.

        Of a plan that the definition does not have any more, nothing is written: a worker that acts
        late must not undo how far the present one is.
        """
        which = self._named((DEFINITION, name))
        stored = on.execute(select(control.c.value).where(which).with_for_update()).scalar()
        if birth.encode() in (stored or b""):
            later = or_(control.c.birth != birth, control.c.made_ms < made_ms)
            values = {"birth": birth, "made_ms": made_ms}
            on.execute(update(control).where(which, later).values(values))

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
