"""The messages that a bulk verb applies to: ids or filters on the command line."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import click

from delaybridge.operate.terminal import grammar
from delaybridge.operate.terminal.failure import refused
from delaybridge.operate.terminal.grammar import Decorator, option, options

if TYPE_CHECKING:
    from delaybridge import Selection

PENDING_STATES = ("delayed", "in_flight", "parked")


class Targets:
    """Ids or filters, and how to apply the verb. Failure if they contradict each other.

    over: the ms to spread the messages over. everything: all messages in the default states,
    without a filter. confirmed_by: the option that stands for "yes". repeated: until nothing is
    left that can be changed. filters: fields of a
    `Selection`; empty ones are not given. destination: the one among them. from_file: names them.
    """

    def __init__(
        self,
        *,
        ids: tuple[str, ...] = (),
        key: bytes | None = None,
        yes: bool = False,
        dry_run: bool = False,
        over: int | None = None,
        everything: bool = False,
        default_states: tuple[str, ...] = PENDING_STATES,
        confirmed_by: str = "--yes",
        repeated: bool = False,
        from_file: Iterable[bytes] | None = None,
        **filters: Any,
    ) -> None:
        chosen = {name: value for name, value in filters.items() if value}
        self.ids, self.key, self.yes, self.dry_run = ids, key, yes, dry_run
        self.over_ms, self.confirmed_by, self.repeated = over or 0, confirmed_by, repeated
        self.destination: str | None = chosen.get("destination") or chosen.get("place")
        self._filters = {"states": default_states, **chosen}
        self.from_file = from_file
        if from_file is not None and (ids or chosen or everything or key or over):
            raise refused("--from-file", "given together with ids, --key, --over or a filter")
        if not ids and not chosen and not everything and from_file is None:
            what = "missing; give ids, or choose messages: --destination, --id-prefix, ..."
            raise refused("ID", what)
        for given, flag in ((ids, "ID"), (key, "--key")):
            if given and (chosen or everything):
                raise refused(flag, "given together with a filter; give one of them")

    @property
    def selection(self) -> Selection:
        """The filters as the client takes them."""
        from delaybridge.message import State
        from delaybridge.store.messages.selection import PENDING, Selection

        names = self._filters["states"]
        states = tuple(state for state in (*PENDING, State.DEAD) if state in names)
        return Selection(**{**self._filters, "states": states})


_EXCHANGE_HELP = "Only messages to this exchange, with any routing key, or to this topic."
EXCHANGE = option("--exchange [BROKER:]X", _EXCHANGE_HELP)
_STATE_HELP = "Only messages in this state; once for each state. [default: all three]"
_STATE_CHOICE = click.Choice(PENDING_STATES)
_STATES = option("--state", _STATE_HELP, to="states", type=_STATE_CHOICE, multiple=True)
_ALL = option("--all", "All dead messages.", to="everything")
_OVER_HELP = "Spread them evenly over this span, in their order."
_OVER = option("--over", _OVER_HELP, type=grammar.DURATION)
_DRY_HELP = "Change nothing: count the messages that match, or answer for each ID."
_DRY_RUN = option("--dry-run", _DRY_HELP)
_YES = option("--yes", "Do not ask.")
_FROM_FILE_HELP = (
    "The messages named in a file, or in stdin, `-`: by ids, or by an import's receipt."
)
_FROM_FILE = option("--from-file FILE", _FROM_FILE_HELP, type=click.File("rb"))


def target_options(*, dead: bool = False, over: bool = False) -> Decorator:
    """ID..., -k and the filters of a bulk verb: the fields of `Targets`."""
    return options(
        click.argument("ids", nargs=-1, metavar="[ID...]"),
        grammar.key_option,
        grammar.destination_option,
        EXCHANGE,
        _ALL if dead else _STATES,
        grammar.reason_option,
        grammar.id_prefix_option,
        grammar.record_options,
        grammar.due_options,
        *([_OVER] if over else []),
        _FROM_FILE,
        _DRY_RUN,
        _YES,
    )


purge_options = options(
    option("--confirm D", "The destination once more: do not ask."),
    option("--dry-run", "Only count its messages."),
)


def check_confirmed(destination: str, confirm: str | None) -> str:
    """The option that stands for "yes". Failure if it was given with another destination."""
    if confirm not in (None, destination):
        what = f"got {confirm!r}, but {destination!r} is to be purged; nothing was done"
        raise refused("--confirm", what, "confirm")
    return f"--confirm {destination}"
