"""What a call acted on, as Redis names it: so the rows of other calls for the id are left alone.

The scripts name it if they are asked to. A call that removed or replaced a message, and is sent
again since its reply was lost, is not told; but Redis keeps which calls it has undone.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from delaybridge.errors import StoreError
from delaybridge.ledger.recording.ledger_rows import STAMP_BYTES, bucket_in, named, replaced_by
from delaybridge.ledger.recording.tiers import REPLACE, replaces
from delaybridge.ledger.sql.rows import HOT, LedgerRow, Name, RowName
from delaybridge.message import Answer
from delaybridge.store.protocol.verbs import GATHERED, LedgerSteps, RedisCommand, Work, plain

if TYPE_CHECKING:
    from delaybridge.ledger.sql.cold import ColdRecords
    from delaybridge.ledger.sql.records import Records

_ASKED = {"cancel": 8, "reschedule": 11, "kick": 6, "discard": 3}  # places of arguments
_POLICY, _ID = 1, 2
_REPLACE_NAMED = 5  # policy
_NAMED = "?"
_CANCELLED = 6  # in `calls`
DOUBLE_BYTES = 8


class Acted(NamedTuple):
    """A message. stamp: of the call that scheduled it; None: Redis did not say.

    due_ms: of one that was moved.
    """

    stamp: int | None = None
    due_ms: int | None = None


class ActedOn:
    """Which messages the commands of a recording acted on, by their places."""

    def __init__(self, cold: ColdRecords) -> None:
        self._cold = cold
        self._acted: dict[int, Acted] = {}
        self._replaced: dict[int, dict[RowName, int | None]] = {}  # the old messages' stamps
        self._lost: set[int] = set()  # of those that lacked a name
        self._undone: Mapping[Name, Sequence[int]] = {}

    def take_named(self, place: int, acted: Acted) -> None:
        """What a command by id acted on."""
        self._acted[place] = acted
        self._lost.discard(place)

    def take_replaced(
        self, place: int, names: Sequence[RowName], stamps: Sequence[int | None]
    ) -> None:
        """What the messages of a schedule have replaced; names: of those that replaced another."""
        self._replaced[place] = dict(zip(names, stamps, strict=True))
        self._lost.discard(place)

    def take_buried(
        self,
        place: int,
        command: RedisCommand[Any],
        rows: Sequence[LedgerRow],
        answers: Sequence[Answer],
    ) -> None:
        """What the messages of a quarantine have replaced in the dead set."""
        was = replaced_by(command, answers)
        self.take_replaced(place, [rows[at].name for at in was], [*was.values()])

    def lacks(self, place: int) -> bool:
        """Whether a command that has undone calls did not name them all."""
        replaced = self._replaced.get(place)
        if replaced is not None:
            return None in replaced.values()
        return place in self._acted and self._acted[place].stamp is None

    def find_undone(self, commands: Mapping[int, RedisCommand[Any]]) -> LedgerSteps[None]:
        """Look for what these have undone, each of which lacks a name.

        It is among the live rows of calls that Redis has undone: they were cancelled, discarded or
        replaced, by whomever. Another call for the id, which may be under way, is not one of them.
        """
        asked = {name: each for i, each in commands.items() for name in self._unnamed(i, each)}
        rows = yield Work(partial(self._cold.calls, names=[*asked], tier=HOT))
        names = [(*name, stamp) for name, found in rows.items() for stamp, _ in found]
        looks = [(n, look) for n in names for look in _notes(asked[n[:2]], n, self._cold.records)]
        notes = (yield [look for _, look in looks]) if looks else []
        found = defaultdict[Name, list[int]](list)
        for (name, _), note in zip(looks, notes, strict=True):
            if isinstance(note, StoreError):
                raise note
            if float(note or 0) % 1 * 256 == _CANCELLED:
                found[name[:2]].append(name[2])
        self._undone, self._lost = found, {*commands}

    def _unnamed(self, place: int, command: RedisCommand[Any]) -> list[Name]:
        if (replaced := self._replaced.get(place)) is not None:
            return [name[:2] for name, stamp in replaced.items() if stamp is None]
        return [named(command, self._cold.records.namespace)]

    def of_command(self, place: int, command: RedisCommand[Any]) -> list[Acted]:
        """What a command by id acted on."""
        if place not in self._lost:
            return [self._acted[place]] if place in self._acted else []
        name = named(command, self._cold.records.namespace)
        return [Acted(stamp) for stamp in self._undone.get(name, ())]

    def replaced(self, place: int) -> list[RowName]:
        """The rows of the messages that those of a schedule have replaced."""
        found: list[RowName] = []
        for (bucket, id, _), stamp in self._replaced.get(place, {}).items():
            stamps = self._undone.get((bucket, id), ()) if stamp is None else [stamp]
            found += [(bucket, id, each) for each in stamps]
        return found


def naming(command: RedisCommand[Any]) -> RedisCommand[Any]:
    """A command that is to name what it acts on."""
    args: list[Any]
    if place := _ASKED.get(command.name):
        args = [*command.args]
        args[place] = args[place] or _NAMED
    elif replaces(command):
        args = [*command.args]
        policy = int(args[_POLICY])
        args[_POLICY] = _REPLACE_NAMED if policy == REPLACE else policy % GATHERED + 2 * GATHERED
    else:
        return command
    return msgspec.structs.replace(command, args=args)


def read_acted(reply: Any) -> tuple[int, Acted]:
    """The answer to such a command by id, and what it acted on."""
    answer, *found = reply if isinstance(reply, list) else [reply]
    stamp, due_ms = (*found, None, None)[:2]
    return answer, Acted(_stamp_in(stamp), due_ms)


def read_replaced(reply: Any) -> tuple[Any, list[tuple[int | None, bytes]]]:
    """The answer to such a schedule as without a name, and the stamps of what it replaced, each
    with the end that the payload of a debounced message has got."""
    if not reply or not isinstance(reply[-1], list):
        return reply, []
    parts = [(each, len(each) % DOUBLE_BYTES) for each in reply[-1]]
    return reply[:-1], [(_stamp_in(each[:size]), each[size:]) for each, size in parts]


def _stamp_in(reply: bytes | None) -> int | None:
    """The stamp that a script answers with; None: it has none to name."""
    return int.from_bytes(reply, "big") if reply and len(reply) == STAMP_BYTES else None


def _notes(command: RedisCommand[Any], name: RowName, records: Records) -> list[RedisCommand[Any]]:
    """What Redis keeps of a call for a message that a command is about."""
    call = name[2].to_bytes(STAMP_BYTES, "big") + name[1].encode()
    return [plain("ZSCORE", key, call) for key in _keys(command, "calls", records)]


def due_now(command: RedisCommand[Any], records: Records) -> list[RedisCommand[int | None]]:
    """When the message that a command moved is due now; None if it is not delayed any more."""
    id = str(command.args[_ID])
    keys = _keys(command, "due", records)
    return [plain("ZSCORE", key, id, parse=lambda s: s and int(float(s))) for key in keys]


def dues_in(dues: Sequence[Sequence[Any]], answers: Sequence[Any]) -> Iterator[Any]:
    """What the looks of `due_now` found, for each message: a time, None, or an error."""
    found = iter(answers)
    for looks in dues:
        seen = [next(found) for _ in looks]
        yield next((each for each in seen if isinstance(each, int)), seen[-1])


def _keys(command: RedisCommand[Any], name: str, records: Records) -> list[str]:
    """A key of a command's bucket, and of those that its messages may be in by now."""
    number, following = bucket_in(command, records.namespace), records.numbers.following
    if following is None or following.layout is None:
        return [next(key for key in command.keys if key.endswith(f":{name}"))]
    heirs = following.heirs(number)
    left = [n for n in heirs if not following.is_retired(n)] or heirs[-1:]
    return [following.bucket(n).key(name) for n in left]
