"""The cold tier: rows of messages that are in the ledger alone, because they are due much later."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import NamedTuple

from sqlalchemy import (
    ColumnElement,
    Connection,
    String,
    and_,
    collate,
    func,
    or_,
    select,
    text,
    tuple_,
    type_coerce,
    update,
)

from delaybridge.ledger.sql.records import ROW, Records, at_tier, numbered, parts
from delaybridge.ledger.sql.rows import COLD, DELAYED, FINISHED, HOT, OVER, LedgerRow, Name, RowName
from delaybridge.ledger.sql.tables import message

_AT_ONCE = 200  # spans in one statement
# By the index of calls: without the sum SQLite takes that of live rows.
_LIVE = f"m.namespace = :of_namespace AND {{same}} AND m.tier + 0 > {FINISHED}"
_ALONE = {
    "postgresql": f"SELECT count(*), count(*) FILTER (WHERE m.stamp = given.stamp AND m.tier = "
    f"{COLD}) FROM {{source}}, LATERAL (SELECT m.stamp, m.tier FROM message AS m WHERE {_LIVE} "
    "OFFSET 0) AS m",
    "sqlite": "SELECT count(*), count(*) FILTER (WHERE "
    f"m.stamp = CAST(substr(given.value, 11, 10) AS INTEGER) AND m.tier = {COLD}) "
    f"FROM {{source}} CROSS JOIN message AS m WHERE {_LIVE}",
}

_IN_SPAN = (
    "FROM message AS m WHERE m.namespace = :of_namespace AND {tier} AND m.bucket = given.bucket "
    "AND m.due_ms >= given.low_ms AND m.due_ms < given.high_ms"
)
_COUNTED = (
    f"SELECT CASE given.is_first WHEN 1 THEN (SELECT min(m.due_ms) {_IN_SPAN}) "
    f"ELSE (SELECT count(*) {_IN_SPAN}) END FROM ({{given}}) AS given ORDER BY given.place"
)
_EVER_MS = 2**62


class ColdSpan(NamedTuple):
    """Messages of a bucket due from `low_ms` on and before `high_ms`; None: without a bound.

    is_first: not their number is asked, but when the first is due, for which none is counted.
    """

    bucket: int
    low_ms: int | None = None
    high_ms: int | None = None
    is_first: bool = False


class ColdSlice(NamedTuple):
    """Which part of a bucket's cold messages is read, in the order of score and id.

    low, high: bounds of the score, both included. after: the (score, id) to begin after.
    """

    bucket: int
    limit: int
    low: float | None = None
    high: float | None = None
    after: tuple[float, str] | None = None


class ColdRecords:
    """What is read and changed of the cold tier, in transactions of the caller."""

    def __init__(self, records: Records) -> None:
        self.records = records

    def _own(self, on: Connection) -> ColumnElement[bool]:
        return and_(self.records.is_own, at_tier(on, COLD))

    def calls(
        self, on: Connection, names: Sequence[Name], *, tier: int = COLD
    ) -> dict[Name, list[tuple[int, int]]]:
        """(stamp, tier) of the live rows of these messages, of this tier or a higher one."""
        found = defaultdict[Name, list[tuple[int, int]]](list)
        columns = [message.c[name] for name in ("bucket", "id", "stamp", "tier")]
        for some in parts(on, names):
            which = message.c.tier >= tier, self.records.named(on, some, tier=tier)
            asked = self.records.numbers.asked_as(some)
            for row in on.execute(select(*columns).where(*which)):
                for name in asked(row):
                    found[name].append((row.stamp, row.tier))
        return dict(found)

    def are_alone(self, on: Connection, names: Sequence[RowName]) -> bool:
        """Whether these rows are cold, and no message has another live one; False: perhaps not.

        An answer for all of them: to read them takes four times as long.
        """
        if on.dialect.name not in _ALONE or len({name[:2] for name in names}) < len(names):
            return False
        columns = ("id",) if self.records.numbers.of_resized else ("bucket", "id")
        source, same, given = self.records.source(on, names, columns)
        asked = text(_ALONE[on.dialect.name].format(source=source, same=same))
        live, own = on.execute(asked, given).one()
        return bool(live == own == len(names))

    def warm(self, on: Connection, names: Sequence[RowName]) -> None:
        """These rows are to be in Redis from now on."""
        for some in parts(on, names):
            which = message.c.tier == COLD, self.records.named(on, some)
            on.execute(update(message).where(*which).values(tier=HOT))

    def first(self, on: Connection, names: Sequence[Name]) -> dict[Name, LedgerRow]:
        """The row of the first live call of each of these messages, a cold one if there is any."""
        found: dict[Name, LedgerRow] = {}
        for some in parts(on, names):
            which = message.c.tier > 0, self.records.named(on, some)
            asked = self.records.numbers.asked_as(some)
            rows = self.records.read(on, select(*ROW).where(*which))
            for row in sorted(rows, key=_by_tier):
                for name in asked(row):
                    found.setdefault(name, row)
        return found

    def due(
        self, on: Connection, bucket: int, until_ms: int, after: tuple[int, int], limit: int
    ) -> list[LedgerRow]:
        """Cold rows of a bucket due by then, by due time and call, after these two.

        Only rows of calls that are the first of their message.
        """
        place, other = tuple_(message.c.due_ms, message.c.number), message.alias("other")
        earlier = select(other.c.number).where(
            other.c.namespace == message.c.namespace, other.c.bucket == message.c.bucket,
            other.c.id == message.c.id, other.c.number < message.c.number, other.c.tier + 0 > 0,
        )  # fmt: skip
        # By its name: without the sum SQLite takes the index of live rows; and with the offset
        # PostgreSQL looks each one up, and joins nothing.
        is_first = ~earlier.offset(0).correlate(message).exists()
        which = message.c.bucket == bucket, message.c.due_ms <= until_ms, place > tuple_(*after)
        query = select(*ROW).where(self._own(on), *which, is_first)
        order = query.order_by(message.c.due_ms, message.c.number).limit(limit)
        return self.records.read(on, order, in_order=False)

    def arrived(self, on: Connection, rows: Sequence[LedgerRow]) -> None:
        """Note that these messages are in Redis now."""
        for some in parts(on, [row.number for row in rows if row.tier == COLD]):
            which = numbered(on, some), message.c.tier == COLD
            on.execute(update(message).where(*which).values(tier=HOT))

    def revive(self, on: Connection, name: RowName, *, error: str) -> None:
        """A row that was ended for this reason is live after all: its message is in Redis."""
        which = message.c.state.in_(OVER), message.c.error == error, self.records.named(on, [name])
        values = {"state": DELAYED, "tier": HOT, "error": ""}
        on.execute(update(message).where(*which).values(values))

    def is_empty(self, on: Connection) -> bool:
        """Whether there is no cold message."""
        # In the order of the index: else PostgreSQL may read all rows, to find the first of none.
        order = message.c.bucket, message.c.due_ms, message.c.number
        found = select(message.c.number).where(self._own(on)).order_by(*order)
        return on.execute(found.limit(1)).first() is None

    def counted(self, on: Connection, spans: Sequence[ColdSpan]) -> list[int | None]:
        """How many messages are in each span: one look into the index each.

        Or when its first is due, in epoch milliseconds; None: it has none.
        """
        found: list[int | None] = []
        for first in range(0, len(spans), _AT_ONCE):
            some = enumerate(spans[first : first + _AT_ONCE])
            given = " UNION ALL ".join(_given(place, span) for place, span in some)
            # As text: SQLAlchemy takes 3 ms to write what is counted in a span.
            asked = text(_COUNTED.format(given=given, tier=at_tier(on, COLD)))
            values = {"of_namespace": self.records.namespace}
            found += on.scalars(asked, values)
        return found

    def slice(
        self, on: Connection, asked: ColdSlice, max_bytes: int
    ) -> tuple[list[LedgerRow], bool]:
        """A part of a bucket, at most this many bytes of records (one at least); and if more is."""
        id = _bytewise(on)
        which = [self._own(on), message.c.bucket == asked.bucket]
        if asked.low is not None:
            which.append(message.c.due_ms >= int(asked.low))
        if asked.high is not None:
            which.append(message.c.due_ms <= int(asked.high))
        if asked.after is not None:
            which.append(_behind(asked.after, id))
        order = message.c.due_ms, message.c.priority.desc(), id
        sizes = select(message.c.number, func.length(message.c.payload)).where(*which)
        found = on.execute(sizes.order_by(*order).limit(asked.limit + 1)).all()
        size, numbers = 0, list[int]()
        for number, length in found[: asked.limit]:
            size += length
            if numbers and size > max_bytes:
                break
            numbers.append(number)
        rows: list[LedgerRow] = []
        for some in parts(on, numbers):
            rows += self.records.read(on, select(*ROW).where(numbered(on, some)))
        place = {number: i for i, number in enumerate(numbers)}
        rows.sort(key=lambda row: place[row.number])
        return rows, len(numbers) < len(found)

    def drawn(self, on: Connection, bucket: int, numbers: Sequence[int]) -> list[LedgerRow]:
        """The cold messages of a bucket among the rows with these numbers."""
        found: list[LedgerRow] = []
        for some in parts(on, numbers):
            which = self._own(on), message.c.bucket == bucket, numbered(on, some)
            found += self.records.read(on, select(*ROW).where(*which))
        return found

    def numbers(self, on: Connection) -> tuple[int, int]:
        """Between which numbers all rows of the database are."""
        first, last = on.execute(
            select(func.min(message.c.number), func.max(message.c.number))
        ).one()
        return int(first or 0), int(last or 0)


def _given(place: int, span: ColdSpan) -> str:
    low_ms = -_EVER_MS if span.low_ms is None else span.low_ms
    high_ms = _EVER_MS if span.high_ms is None else span.high_ms
    return (
        f"SELECT {place} AS place, {span.bucket} AS bucket, {low_ms} AS low_ms, "
        f"{high_ms} AS high_ms, {int(span.is_first)} AS is_first"
    )


def _by_tier(row: LedgerRow) -> int:
    return -row.tier


def _bytewise(on: Connection) -> ColumnElement[str]:
    """Ids in the order of their bytes, as in Redis; PostgreSQL goes by the database's locale."""
    if on.dialect.name != "postgresql":
        return type_coerce(message.c.id, String)
    return collate(message.c.id, "C")


def _behind(after: tuple[float, str], id: ColumnElement[str]) -> ColumnElement[bool]:
    score, last = after
    due_ms, priority = int(score), 255 - round(score % 1 * 256)
    at = message.c.due_ms == due_ms
    return or_(
        message.c.due_ms > due_ms,
        and_(at, message.c.priority < priority),
        and_(at, message.c.priority == priority, id > last),
    )
