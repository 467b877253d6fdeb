"""The list of troubles: everything that can be wrong, as `list.toml` has it.

Made from it: what `health`, `doctor`, `stats` and `top` print, the banners of the console, the
alert rules of Prometheus, and docs/troubleshooting.md.
"""

from __future__ import annotations

import shlex
from functools import cache
from importlib.resources import files
from typing import Any, Literal

import msgspec

from delaybridge.errors import TROUBLESHOOTING
from delaybridge.operate.troubles.finding import FAIL, WARN, WARNING, Finding
from delaybridge.store.namespace.translatable import Sentence


class AlertRule(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A rule of Prometheus: its name, when it fires, for how long that must last, what it says."""

    name: str
    expr: str
    summary: str
    severity: Literal["page", "ticket"] = "page"
    lasting: str = ""
    comment: str = ""


class ListedTrouble(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A thing that can be wrong.

    about: what `doctor` calls its subject. says: the sentence, with `{name}` for what is found;
    `{what}` alone: others make the sentence. when: the threshold. means, cause: unless they are
    plain. remedy: each `words: command`, which works when it is pasted. words: what the log and
    errors call it. page: of the console; `{place}`: the destination's. is_red: `health` fails.
    """

    code: str = ""
    severity: Literal["severe", "error", "warning"]
    about: str
    says: str
    when: str
    means: str = ""
    cause: str = ""
    words: list[str] = []
    remedy: list[str] = []
    page: str = "store"
    is_red: bool = True
    alerts: list[AlertRule] = []

    @property
    def link(self) -> str:
        """Where the page about troubles explains it."""
        return f"{TROUBLESHOOTING}#{self.code}"


@cache
def listed() -> dict[str, ListedTrouble]:
    """Every trouble by its code, in the order of the page."""
    text = files("delaybridge.operate.troubles").joinpath("list.toml").read_bytes()
    found = msgspec.toml.decode(text, type=dict[str, ListedTrouble])
    return {code: msgspec.structs.replace(each, code=code) for code, each in found.items()}


def trouble(
    code: str,
    said: Sentence | str | None = None,
    /,
    *,
    about: str = "",
    remedy: str | None = None,
    is_red: bool | None = None,
    **values: Any,
) -> Finding:
    """The finding that something listed is wrong; the values fill its sentence and its remedy.

    said: the sentence, if others made it. about, remedy, is_red: instead of those listed.
    """
    of = listed()[code]
    if said is None:
        said = Sentence(of.says, values)
    quoted = {name: shlex.quote(str(value)) for name, value in values.items()}
    if remedy is None:
        remedy = ". ".join(each.format_map(quoted) for each in of.remedy)
    red = of.is_red if is_red is None else is_red
    # A listed error fails a check also where `health` stays green; a caller's word counts for both.
    fails = red or (is_red is None and of.severity != WARNING)
    return Finding(
        FAIL if fails else WARN,
        about or of.about.format_map(values),
        said,
        remedy,
        of,
        red,
    )
