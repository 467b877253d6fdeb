"""Which messages a bulk verb is for: those named by id, or those that match filters."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

import click

from delaybridge.cli.failure import Exit, Failure
from delaybridge.cli.grammar import (
    as_duration_ms,
    destination_option,
    due_from_option,
    due_to_option,
    key_option,
)

if TYPE_CHECKING:
    from delaybridge.store.selection import Selection

PENDING_STATES = ("delayed", "in_flight", "parked")


@dataclass(frozen=True, slots=True, kw_only=True)
class Targets:
    """Ids, or filters, and how the verb is to be applied. Failure if they contradict each other.

    default_states: searched if `states` is empty. due_from, due_to: epoch ms. over: the ms to
    spread the messages over. confirmed_by: the option that means yes.
    """

    ids: tuple[str, ...] = ()
    key: bytes | None = None
    destination: str | None = None
    exchange: str | None = None
    states: tuple[str, ...] = ()
    reason: str | None = None
    id_prefix: str | None = None
    due_from: int | None = None
    due_to: int | None = None
    everything: bool = False
    default_states: tuple[str, ...] = PENDING_STATES
    yes: bool = False
    dry_run: bool = False
    over: int | None = None
    confirmed_by: str = "--yes"

    def __post_init__(self) -> None:
        text = self.destination or self.exchange or self.reason or self.id_prefix
        chosen = text or self.states or self.due_from or self.due_to or self.everything
        if not self.ids and not chosen:
            what = "missing; give ids, or choose messages: --destination, --id-prefix, ..."
            raise Failure(Exit.REFUSED, "usage", "ID", what)
        for given, flag in ((self.ids, "ID"), (self.key, "--key")):
            if given and chosen:
                what = "given together with a filter; give one of them"
                raise Failure(Exit.REFUSED, "usage", flag, what)
        if self.dry_run and self.ids:
            raise Failure(Exit.REFUSED, "usage", "--dry-run", "only together with a filter")

    @property
    def selection(self) -> Selection:
        """The filters as the client takes them."""
        from delaybridge.message import State
        from delaybridge.store.selection import PENDING, Selection

        states = self.states or self.default_states
        return Selection(
            states=tuple(state for state in (*PENDING, State.DEAD) if state.value in states),
            destination=self.destination,
            exchange=self.exchange,
            reason=self.reason,
            id_prefix=self.id_prefix or "",
            due_from_ms=self.due_from,
            due_to_ms=self.due_to,
        )


_EXCHANGE = click.option(
    "--exchange",
    metavar="[BROKER:]X",
    help="Only messages to this exchange, with any routing key, or to this topic.",
)
_STATES = click.option(
    "--state",
    "states",
    type=click.Choice(PENDING_STATES),
    multiple=True,
    help="Only messages in this state; once for each state. [default: all three]",
)
_ALL = click.option("--all", "everything", is_flag=True, help="All dead messages.")
_REASON = click.option(
    "--reason", metavar="R", help="Only messages that failed for this reason, as unroutable."
)
_ID_PREFIX = click.option(
    "--id-prefix", metavar="TEXT", help="Only messages whose id begins with this."
)
_OVER = click.option(
    "--over",
    metavar="DURATION",
    callback=as_duration_ms,
    help="Spread them evenly over this span, in their order.",
)
_DRY_RUN = click.option("--dry-run", is_flag=True, help="Only count what a filter matches.")
_YES = click.option("--yes", is_flag=True, help="Do not ask.")


def bulk_options(*, dead: bool = False, over: bool = False) -> Callable[[Callable[..., Any]], Any]:
    """ID..., -k and the filters of a bulk verb; the command gets them as one `Targets`."""
    chosen = [key_option, destination_option, _EXCHANGE, _ALL if dead else _STATES, _REASON]
    chosen += [_ID_PREFIX, due_from_option, due_to_option]
    chosen += [_OVER, _DRY_RUN, _YES] if over else [_DRY_RUN, _YES]
    options = [click.argument("ids", nargs=-1, metavar="[ID...]"), *chosen]
    names = {field.name for field in fields(Targets)}

    def decorate(command: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(command)
        def gathered(*args: Any, **given: Any) -> Any:
            own = {name: given.pop(name) for name in names & given.keys()}
            if dead:
                own["default_states"] = ("dead",)
            return command(*args, targets=Targets(**own), **given)

        for option in reversed(options):
            gathered = option(gathered)
        return gathered

    return decorate
