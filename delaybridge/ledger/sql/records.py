"""What is written to the ledger, and read from it, in transactions of the caller.

Live rows are those whose message is still to be delivered, or is dead. No statement names more than
a few hundred messages; PostgreSQL takes any number at once, as arrays.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

from sqlalchemy import (
    ColumnElement,
    Connection,
    Row,
    Select,
    delete,
    insert,
    literal,
    select,
    text,
    tuple_,
    update,
)
from sqlalchemy.exc import IntegrityError

from delaybridge.errors import printable
from delaybridge.ledger.sql import layouts
from delaybridge.ledger.sql.arrays import arguments, array
from delaybridge.ledger.sql.engines import attempted
from delaybridge.ledger.sql.numbering import Numbering
from delaybridge.ledger.sql.rows import (
    FINISHED,
    HOT,
    OVER,
    LedgerRow,
    Life,
    Name,
    RowName,
    Step,
    noted,
)
from delaybridge.ledger.sql.tables import message, namespace, transition
from delaybridge.store.protocol.layout import Layout

T = TypeVar("T")
_WORKER_CHARS = 255
_AT_ONCE = 400  # names in one statement
_ARRAYS = {"bucket": "integer", "id": "text", "stamp": "bigint"}
_COLUMNS = {
    **_ARRAYS, "due_ms": "bigint", "priority": "smallint", "destination": "text",
    "payload": "bytea", "state": "text", "error": "text", "created_ms": "bigint",
    "updated_ms": "bigint", "tier": "smallint",
}  # fmt: skip
_STEPS = {
    "id": "text", "from": "text", "to": "text", "at_ms": "bigint", "worker": "text",
    "bucket": "integer", "attempt": "integer", "error": "text",
}  # fmt: skip
_LOOKUPS = {
    "postgresql": "number = ANY(ARRAY(SELECT found.number FROM {source}, LATERAL (SELECT m.number "
    "FROM message AS m WHERE m.namespace = :of_namespace AND {same} OFFSET 0) AS found))",
    "sqlite": "number IN (SELECT m.number FROM {source} CROSS JOIN message AS m "
    "WHERE m.namespace = :of_namespace AND {same})",
}
_UNPACKED = {
    "bucket": "CAST(substr(given.value, {}) AS INTEGER)",
    "id": "substr(given.value, {})",
    "stamp": "CAST(substr(given.value, {}) AS INTEGER)",
}
ROW = [message.c[name] for name in (*_COLUMNS, "number")]
_BRIEF = [literal(b"").label("payload") if each is message.c.payload else each for each in ROW]


class Records:
    """The records of one namespace."""

    def __init__(self, name: str) -> None:
        self.namespace = name
        self.numbers = Numbering()

    # written before Redis

    def settle(self, on: Connection, layout: Layout, birth: str) -> tuple[Layout, str]:
        """The layout and the birth id that the namespace has; these, if it is new."""
        return layouts.settle(on, self.namespace, layout, birth)

    def grow(self, on: Connection, layout: Layout, birth: str) -> tuple[Layout, str]:
        """Know this layout from now on, in which messages move to other buckets."""
        return layouts.grow(on, self.namespace, layout, birth)

    def known(self, on: Connection) -> tuple[Layout, str] | None:
        """The layout and the birth id that the namespace has; None if it is new."""
        return layouts.known(on, self.namespace)

    def touch(self, on: Connection) -> None:
        """Write a step, and remove it: raises unless the ledger takes what is written to it.

        MySQL would write nothing of a row that stays as it is, and answer though its disk is full.
        """
        step = dict(zip(_STEPS, Step("", "", "", 0, "", 0), strict=True))
        made = on.execute(insert(transition).values(namespace=self.namespace, **step))
        number = made.inserted_primary_key
        on.execute(delete(transition).where(transition.c.number == (number and number[0])))

    def note_told(self, on: Connection, least_ms: int, at_ms: int) -> int:
        """When a worker told last what had left, on Redis' clock; 0: it is not known.

        If that is this time or later, one has told it now.
        """
        found = on.execute(select(namespace.c.told_ms).where(self._namespace)).scalar() or 0
        if least_ms <= found < at_ms:
            earlier = namespace.c.told_ms < at_ms
            on.execute(update(namespace).where(self._namespace, earlier).values(told_ms=at_ms))
        return int(found)

    def add(self, on: Connection, rows: Sequence[LedgerRow]) -> set[RowName]:
        """Add rows; the names of those that were not there before."""
        try:
            with attempted(on):
                self._insert(on, "message", _COLUMNS, rows)
        except IntegrityError:  # some calls were made before
            known = self.states(on, [row.name for row in rows])
            rows = list({row.name: row for row in rows if row.name not in known}.values())
            self._insert(on, "message", _COLUMNS, rows)
        return {row.name for row in rows}

    def _insert(
        self, on: Connection, table: str, columns: Mapping[str, str], rows: Sequence[Sequence[Any]]
    ) -> None:
        if not rows:
            return
        given: dict[str, Any] = {"namespace": self.namespace}
        if on.dialect.name == "postgresql":
            values = dict(zip(columns, map(list, zip(*rows, strict=False)), strict=False))
            given |= {name: values[name][0] for name in columns if _is_same(values[name])}
            given.pop("id", None)  # one array at least
            arrays = {name: kind for name, kind in columns.items() if name not in given}
            sent = arguments(columns, {name: values[name] for name in arrays})
            on.execute(text(_inserted(table, given, arrays)), given | sent)
            return
        # Past SQLAlchemy's own way for many rows, which takes as long as SQLite itself.
        quote = on.dialect.identifier_preparer.quote
        into = ", ".join(quote(name) for name in ("namespace", *columns))
        marks = ", ".join(["%s" if on.dialect.paramstyle != "qmark" else "?"] * (len(columns) + 1))
        many = [(self.namespace, *row[: len(columns)]) for row in rows]
        on.exec_driver_sql(f"INSERT INTO {table} ({into}) VALUES ({marks})", many)

    # written after Redis has answered

    def withdraw(self, on: Connection, names: Sequence[RowName]) -> None:
        """Remove rows of calls that scheduled nothing."""
        for some in parts(on, names):
            live = message.c.tier > 0
            on.execute(delete(message).where(live, self.named(on, some)))

    def change(
        self,
        on: Connection,
        names: Sequence[Name] | Sequence[RowName],
        state: str,
        now_ms: int,
        *,
        error: str = "",
        **more: Any,
    ) -> int:
        """Bring live rows into a state: those named, or all of messages; how many there were.

        more: `due_ms`, `payload`; None changes nothing.
        """
        values: dict[str, Any] = {"state": state, "error": noted(error), "updated_ms": now_ms}
        if state in OVER:
            values["tier"] = FINISHED
        values |= {name: value for name, value in more.items() if value is not None}
        count = 0
        for some in parts(on, names):
            asked = update(message).where(message.c.tier > 0, self.named(on, some)).values(values)
            count += on.execute(asked).rowcount
        return count

    def note(self, on: Connection, steps: Sequence[Step]) -> None:
        """Add these steps to the history."""
        self._insert(on, "transition", _STEPS, [*map(_printable, steps)])

    # read

    def states(self, on: Connection, names: Sequence[RowName]) -> dict[RowName, tuple[str, int]]:
        """The state and the due time in ms of each of these rows that there is."""
        columns = [message.c[name] for name in (*_ARRAYS, "state", "due_ms")]
        found: dict[RowName, tuple[str, int]] = {}
        for some in parts(on, names):
            asked = self.numbers.asked_as(some)
            for row in on.execute(select(*columns).where(self.named(on, some))):
                found |= dict.fromkeys(asked(row), (row.state, row.due_ms))
        return found

    def first_calls(self, on: Connection, names: Sequence[Name]) -> dict[Name, int]:
        """The stamp of the first live row of each message: the others wait until it has ended."""
        found: dict[Name, int] = {}
        columns = [message.c[name] for name in _ARRAYS]
        for some in parts(on, names):
            query = select(*columns).where(message.c.tier > 0, self.named(on, some))
            asked = self.numbers.asked_as(some)
            for row in on.execute(query.order_by(message.c.number.desc())):
                found |= dict.fromkeys(asked(row), row.stamp)
        return found

    def live(self, on: Connection, ids: Iterable[str]) -> list[LedgerRow]:
        """The live rows of these ids in any bucket, in the order of their calls."""
        found: list[LedgerRow] = []
        for some in parts(on, list(ids), 1):
            which = message.c.id.in_(some), message.c.tier > 0
            found += self.read(on, select(*ROW).where(self.is_own, *which))
        return found

    def page(
        self,
        on: Connection,
        bucket: int,
        after: tuple[int, int],
        limit: int,
        *,
        is_brief: bool = False,
        to: str | None = None,
    ) -> list[LedgerRow]:
        """Live rows of a bucket that are to be in Redis, by due time and call, after these two.

        is_brief: without their payloads. to: a destination, or what begins it, as an exchange.
        """
        place = tuple_(message.c.due_ms, message.c.number)
        which = [self.is_own, message.c.bucket == bucket, place > tuple_(*after)]
        if to is not None:
            which.append(message.c.destination.startswith(printable(to), autoescape=True))
        query = select(*(_BRIEF if is_brief else ROW)).where(at_tier(on, HOT), *which)
        order = query.order_by(message.c.due_ms, message.c.number)
        return self.read(on, order.limit(limit), in_order=False)

    def of_numbers(self, on: Connection, numbers: Sequence[int]) -> list[LedgerRow]:
        """The rows with these numbers, in the order of their calls."""
        found: list[LedgerRow] = []
        for some in parts(on, numbers, 1):
            found += self.read(on, select(*ROW).where(numbered(on, some)))
        return found

    def life(self, on: Connection, id: str, limit: int = 1000) -> Life:
        """What is known of an id: the latest rows and steps."""
        rows = select(*ROW).where(self.is_own, message.c.id == id)
        columns = [transition.c[name] for name in _STEPS]
        steps = select(*columns).where(
            transition.c.namespace == self.namespace, transition.c.id == id
        )
        latest = on.execute(steps.order_by(transition.c.number.desc()).limit(limit))
        found = [Step(*row)._replace(error=row.error or "") for row in latest]
        return Life(self.read(on, rows)[-limit:], found[::-1])

    def read(self, on: Connection, query: Select[Any], *, in_order: bool = True) -> list[LedgerRow]:
        """The rows that a query of the columns ROW finds; by call, unless it has its own order."""
        found = on.execute(query.order_by(message.c.number) if in_order else query)
        return [_row(row) for row in found]

    def forget(self, on: Connection, before_ms: int, after: int, limit: int) -> int | None:
        """Delete finished rows, and the history of their ids, that have not changed since then.

        after: number of the last row looked at. Returns that of this call; None: there are no more.
        """
        order = select(message.c.number, message.c.tier, message.c.updated_ms, message.c.id)
        looked = on.execute(
            order.where(self.is_own, message.c.number > after)
            .order_by(message.c.number)
            .limit(limit)
        ).all()
        old = [row for row in looked if row.tier == FINISHED and row.updated_ms < before_ms]
        for some in parts(on, old, 1):
            ids = [row.id for row in some]
            which = transition.c.namespace == self.namespace, transition.c.id.in_(ids)
            on.execute(delete(transition).where(*which, transition.c.at_ms < before_ms))
            on.execute(delete(message).where(numbered(on, [row.number for row in some])))
        return looked[-1].number if looked else None

    @property
    def _namespace(self) -> ColumnElement[bool]:
        return namespace.c.namespace == self.namespace

    @property
    def is_own(self) -> ColumnElement[bool]:
        """Whether a row is of this namespace."""
        return message.c.namespace == self.namespace

    def named(
        self, on: Connection, names: Sequence[tuple[Any, ...]], *, tier: int = FINISHED
    ) -> ColumnElement[bool]:
        """Whether a row is one of these in this namespace; names of one length.

        Each name is looked up. With a join PostgreSQL would read the whole namespace, as long as
        its statistics are older than a burst; OFFSET 0 keeps it from making one. tier: others than
        those of this tier or a higher one may be left out.
        """
        columns = [*_ARRAYS][: len(names[0])]
        if self.numbers.of_resized is None:
            return self._exactly(on, names, columns, tier)
        own = [message.c[column] for column in ("number", *_ARRAYS)]
        rest = [name[1:] for name in names]
        same = self._exactly(on, names if on.dialect.name in _LOOKUPS else rest, columns[1:], tier)
        rows, asked = on.execute(select(*own).where(same)).all(), self.numbers.asked_as(names)
        return numbered(on, [row.number for row in rows if asked(row)])

    def _exactly(
        self, on: Connection, names: Sequence[tuple[Any, ...]], columns: Sequence[str], tier: int
    ) -> ColumnElement[bool]:
        """Whether a row has these columns of one of these names."""
        if on.dialect.name not in _LOOKUPS:
            return self.is_own & tuple_(*(message.c[column] for column in columns)).in_(names)
        source, same, given = self.source(on, names, columns)
        same += f" AND m.tier + 0 >= {tier}" if tier else ""
        clause = text(_LOOKUPS[on.dialect.name].format(source=source, same=same))
        return clause.bindparams(**given)  # type: ignore[return-value]

    def source(
        self, on: Connection, names: Sequence[tuple[Any, ...]], columns: Sequence[str]
    ) -> tuple[str, str, dict[str, Any]]:
        """Names as a table `given`; what joins it with `message AS m`, and the values in both.

        columns: by which they are joined, the first of each name. Not of MySQL.
        """
        given: dict[str, Any] = {"of_namespace": self.namespace}
        if on.dialect.name == "sqlite":
            # As texts of bucket, stamp and id: a list would be parsed for each value in it.
            has_stamp = len(names[0]) > 2
            given["of_names"] = json.dumps([_packed(*name) for name in names])
            source = "json_each(:of_names) AS given"
            parts = {"bucket": "1, 10", "stamp": "11, 10", "id": "21" if has_stamp else "11"}
            values = [_UNPACKED[column].format(parts[column]) for column in columns]
        else:
            sent = [*_ARRAYS][: len(names[0])]
            given |= arguments(_ARRAYS, dict(zip(sent, zip(*names, strict=True), strict=True)))
            arrays = ", ".join(f"CAST(:of_{column} AS {_ARRAYS[column]}[])" for column in sent)
            source = f"unnest({arrays}) AS given({', '.join(sent)})"
            values = [f"given.{column}" for column in columns]
        same = " AND ".join(f"m.{c} = {value}" for c, value in zip(columns, values, strict=True))
        return source, same, given


def at_tier(on: Connection, tier: int) -> ColumnElement[bool]:
    """Whether a row is of this live tier, so that its index is taken, which has live rows only.

    It is written out: no database takes the index for a value that comes later. SQLite takes it
    only if the query says what the index does; that alone it would look up, without `likely`.
    """
    is_live = f" AND likely(tier > {FINISHED})" if on.dialect.name == "sqlite" else ""
    return text(f"tier = {tier}{is_live}")  # type: ignore[return-value]


def _row(found: Row[Any]) -> LedgerRow:
    row = LedgerRow._make(found)
    return row if row.error else row._replace(error="")


def _printable(step: Step) -> Step:
    worker = printable(step.worker)[:_WORKER_CHARS]
    return step._replace(worker=worker, error=noted(step.error))


def numbered(on: Connection, numbers: Sequence[int]) -> ColumnElement[bool]:
    """Whether a row has one of these numbers; any number of them but on MySQL: see `parts`."""
    if on.dialect.name == "postgresql":
        found = "number = ANY(CAST(:of_numbers AS bigint[]))"
        clause = text(found).bindparams(of_numbers=array("bigint", numbers))
    elif on.dialect.name == "sqlite":
        found = "number IN (SELECT value FROM json_each(:of_numbers))"
        clause = text(found).bindparams(of_numbers=json.dumps(numbers))
    else:
        return message.c.number.in_(numbers)
    return clause  # type: ignore[return-value]


def _packed(bucket: int, id: str, stamp: int | None = None) -> str:
    return f"{bucket:010}{id}" if stamp is None else f"{bucket:010}{stamp:010}{id}"


def _inserted(table: str, given: Mapping[str, Any], columns: Mapping[str, str]) -> str:
    """An INSERT of rows that have these values in common; the other columns are arrays."""
    arrays = ", ".join(f"CAST(:of_{name} AS {kind}[])" for name, kind in columns.items())
    quoted = [f'"{name}"' for name in columns]
    into = ", ".join([*(f'"{name}"' for name in given), *quoted])
    values = ", ".join([*(f":{name}" for name in given), *quoted])
    return (
        f"INSERT INTO {table} ({into}) SELECT {values} "
        f"FROM unnest({arrays}) AS given({', '.join(quoted)})"
    )


def _is_same(column: Sequence[Any]) -> bool:
    """One value is sent, not as many: a driver takes long to write an array."""
    return column[0] is not None and column.count(column[0]) == len(column)


def parts(on: Connection, names: Sequence[T], at_once: int = 0) -> Iterator[Sequence[T]]:
    """Names for one statement each. at_once: 1 if they are not passed as arrays."""
    size = _AT_ONCE if at_once or on.dialect.name not in _LOOKUPS else max(1, len(names))
    return (names[i : i + size] for i in range(0, len(names), size))
