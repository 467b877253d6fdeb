"""Plain commands: a verb for many messages, applied to ids or to the matches of filters.

Made of the rows of the table of verbs, `cancel_many` and the like: which messages are found, which
options there are, whether people are asked. A new row has its command without a line here.
"""

from __future__ import annotations

import inspect
from collections.abc import Collection
from typing import Any

import click

from delaybridge.client.requests import Requests
from delaybridge.client.verbs import verbs_of
from delaybridge.operate.cli.messages.bulk import BulkVerb, perform
from delaybridge.operate.cli.messages.targets import Targets, target_options
from delaybridge.operate.terminal import grammar
from delaybridge.operate.terminal.failure import refused
from delaybridge.operate.terminal.grammar import Command, Decorator, option, options, pass_call
from delaybridge.operate.terminal.invocation import Invocation

_MANY = "_many"
# Arguments that `target_options` has.
_COMMON = ("messages", "key", "spread_ms", "dry_run", "bound_for")
_TTL_HELP = "How long after its due time it is still worth delivering."
_KNOWN: dict[str, Decorator] = {
    "delay": grammar.in_option,
    "at": grammar.at_option,
    "by_ms": grammar.by_option,
    "ttl": option("--ttl DURATION", _TTL_HELP),
    "to": option("--to D", "The new destination.", required=True),
}
_HELP = """{}

Give ids or filters. Messages that match all filters are counted first, then {} once you
confirm (or with --yes).{}"""


def bulk_command(name: str, bulk: BulkVerb, about: str, done: str, more: str = "") -> Command:
    """The command of a verb. about, done, more: what --help says, `cancelled` for example."""
    parameters = inspect.signature(bulk.row().call).parameters
    own = [each for each in parameters if each not in {"self", *_COMMON, *bulk.fields}]
    if unknown := {*own} - _KNOWN.keys():
        raise TypeError(f"{name}: no option for {sorted(unknown)}; add it to _KNOWN")

    def run(call: Invocation, **given: Any) -> int:
        fields = {name: given.pop(name) for name in own}
        for name, value in fields.items():
            if value is None and parameters[name].default is inspect.Parameter.empty:
                raise refused(f"--{name}", "missing; give it")
        targets = Targets(**given, default_states=tuple(map(str, bulk.row().states)))
        # It is looked at once more when the message is changed.
        fields |= {each: targets.destination for each in parameters if each == "bound_for"}
        return perform(call, targets, bulk._replace(fields={**bulk.fields, **fields}))

    run.__doc__ = _HELP.format(about, done, more and f" {more}")
    shown = target_options(dead=bulk.is_of_dead, over="spread_ms" in parameters)
    with_options = options(*(_KNOWN[each] for each in own), shown)(pass_call(run))
    return click.command(name, cls=Command)(with_options)


def add_plain_commands(
    group: click.Group, prefix: str, rows: type[Requests], by_hand: Collection[str] = ()
) -> None:
    """Give a group the commands of the rows for many messages that have none yet.

    prefix: what stands before the name of a row at a client, `dead.` for example. by_hand: rows
    that another command calls.
    """
    for many, row in verbs_of(rows).items():
        name = many.removesuffix(_MANY).replace("_", "-")
        if many.endswith(_MANY) and row.states and name not in {*group.commands, *by_hand}:
            bulk = BulkVerb(prefix + many, name)
            group.add_command(bulk_command(name, bulk, f"{row.help}.", "changed"))
