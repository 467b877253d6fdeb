"""Plain commands: each row of the table of verbs that changes many messages has one."""

from __future__ import annotations

from collections.abc import Iterable

import click
import pytest

from delaybridge.client.dead import DeadVerbs
from delaybridge.client.destinations import DestinationVerbs
from delaybridge.client.messages import MessageVerbs
from delaybridge.client.requests import Requests
from delaybridge.client.surface import TABLE
from delaybridge.client.verbs import Scope, verb, verbs_of
from delaybridge.message import Answer, State
from delaybridge.operate.cli.messages.messages import dead, message
from delaybridge.operate.cli.messages.verbs import add_plain_commands
from delaybridge.operate.cli.rules.destination import destination
from delaybridge.operate.terminal.failure import Failure
from delaybridge.operate.terminal.invocation import Invocation
from delaybridge.operate.terminal.output import Output
from delaybridge.store.protocol.verbs import Steps


class Added(Requests):
    """A verb that is added to the table, and to nothing else."""

    @verb(Scope.WRITE, "Touch many messages", is_audited=True, states=(State.DELAYED,))
    def touch_many(
        self, messages: Iterable[str], *, ttl: str, key: bytes | None = None, dry_run: bool = False
    ) -> Steps[list[Answer]]:
        """Nothing is done."""
        yield ()
        return []


@pytest.mark.parametrize(
    ("group", "rows", "elsewhere"), [(message, MessageVerbs, {"move"}), (dead, DeadVerbs, set())]
)
def test_every_row_that_changes_many_messages_has_a_command(
    group: click.Group, rows: type[Requests], elsewhere: set[str]
) -> None:
    many = {n.removesuffix("_many") for n, row in verbs_of(rows).items() if row.states}
    assert many - elsewhere <= group.commands.keys()


def test_every_verb_of_destinations_has_a_command() -> None:
    """retry_plan is `retry`; set_rule, which sets a whole rule, is `definitions import`."""
    assert verbs_of(DestinationVerbs).keys() - {"retry_plan", "set_rule"} <= {*destination.commands}


def added(monkeypatch: pytest.MonkeyPatch) -> click.Command:
    monkeypatch.setitem(TABLE, "touch_many", Added.touch_many)
    group = click.Group()
    add_plain_commands(group, "", Added)
    return group.commands["touch"]


def test_a_new_row_has_its_command_with_its_options(monkeypatch: pytest.MonkeyPatch) -> None:
    command = added(monkeypatch)
    names = {param.name for param in command.params}
    assert {"ids", "key", "ttl", "destination", "dry_run", "yes"} <= names
    assert not names & {"over", "delay", "everything"}
    assert command.get_short_help_str() == "Touch many messages."


def test_an_argument_without_an_option_is_not_overlooked() -> None:
    def colour_many(self: Requests, messages: list[str], *, hue: int) -> Steps[list[Answer]]:
        yield ()
        return []

    row = verb(Scope.WRITE, "Colour many messages", states=(State.DELAYED,))(colour_many)
    rows = type("Coloured", (Requests,), {"colour_many": row})
    with pytest.MonkeyPatch.context() as patch, pytest.raises(TypeError, match="hue.*_KNOWN"):
        patch.setitem(TABLE, "colour_many", row)
        add_plain_commands(click.Group(), "", rows)


def test_an_argument_without_a_default_must_be_given(monkeypatch: pytest.MonkeyPatch) -> None:
    call = Invocation(Output())
    with pytest.raises(Failure, match="--ttl: missing"):
        added(monkeypatch).main(["a"], standalone_mode=False, obj=call)
