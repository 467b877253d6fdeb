"""Noting: each change of a rule or of a recurring definition goes into the ledger, too.

Redis has it first, and obeys it, also while the database is down: a pause must not wait for that.
What could not be recorded stays in `unrecorded` until a worker has recorded it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec

from delaybridge.errors import LedgerUnavailable, printable
from delaybridge.ledger.comparing.rule_controls import field_and_place, named
from delaybridge.ledger.sql.rows import DEFINITION, RULE, Control
from delaybridge.recurring.stored import plan_in
from delaybridge.store.namespace.rule_fields import parts
from delaybridge.store.protocol.verbs import LedgerSteps, RedisCommand, Work

if TYPE_CHECKING:
    from delaybridge.ledger.sql.controls import ControlRecords

_NOTED = frozenset(("set_rule", "define"))
_RECORDED = 1  # the last argument: the caller has a ledger
_NAME, _AFTER, _KEPT, _GONE, _SOURCE, _OFFSETS = 0, 2, 5, 6, 6, 7  # places of arguments
_OFFSET_BYTES = 8
_log = logging.getLogger("delaybridge")


def is_noted(command: RedisCommand[Any]) -> bool:
    """Whether a command may change a rule or a definition."""
    return command.name in _NOTED


class Noting:
    """The commands among some that change rules and definitions, and when they did."""

    def __init__(self, records: ControlRecords, asked: list[RedisCommand[Any]]) -> None:
        """asked: those commands are replaced in it."""
        self._records, self._found = records, list[Control]()
        for i, command in enumerate(asked):
            if is_noted(command):
                args = [*command.args[:-1], _RECORDED]
                parse = partial(self._take, command, command.parse)
                asked[i] = msgspec.structs.replace(command, args=args, parse=parse)

    def _take(self, command: RedisCommand[Any], parse: Callable[[Any], Any], reply: Any) -> Any:
        if at_ms := int(reply[1]):
            name, value = map(_bytes, (command.args[_NAME], command.args[_AFTER]))
            if command.name == "set_rule":
                self._found += _fields(command, name, value, at_ms)
            else:
                self._found.append(Control(DEFINITION, name, value, at_ms))
        return parse(reply)

    def record(self) -> LedgerSteps[None]:
        """Record what Redis has changed; a warning, if the ledger does not take it now."""
        found: Sequence[Control] = self._found
        if not found:
            return
        try:
            yield Work(lambda on: self._records.record(on, found))
        except LedgerUnavailable as exc:
            names = ",".join(dict.fromkeys(map(_shown, found)))
            _log.warning(
                "control_not_recorded %s is in force, but not in the ledger: %s; workers record it "
                "when the database answers",
                printable(names)[:200],
                exc,
            )


def _fields(command: RedisCommand[Any], place: bytes, rule: bytes, at_ms: int) -> Iterator[Control]:
    """The fields that a call has set or removed, whose times follow each other."""
    here = parts(rule)
    fields = [*str(command.args[_KEPT]).split(), *str(command.args[_GONE]).split()]
    for number, field in enumerate(fields):
        key = named(field, place)
        yield Control(*key, here.get(field, b""), at_ms + number)


def plans_in(commands: Iterable[RedisCommand[Any]]) -> Iterator[tuple[str, str, int]]:
    """Name, birth and last run of the plans that these commands make runs of."""
    for command in commands:
        if command.name == "schedule" and (plan := plan_in(str(command.args[_SOURCE]))):
            offsets: Any = command.args[_OFFSETS]
            if offsets:
                yield *plan, int.from_bytes(offsets[-_OFFSET_BYTES:])


def _shown(control: Control) -> str:
    """A rule, of which fields may have changed, or a definition."""
    name = control.name
    if control.kind == RULE:
        _, name = field_and_place(name)
    return f"{control.kind}:{name.decode(errors='replace')}"


def _bytes(value: Any) -> bytes:
    return value if isinstance(value, bytes) else str(value).encode()
