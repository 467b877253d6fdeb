"""The finding of a check: its level, its subject, the fault and the remedy."""

from __future__ import annotations

from typing import NamedTuple

OK, WARN, FAIL = "ok", "WARN", "FAIL"


class Finding(NamedTuple):
    """The result of one check. about: `redis`, `clock`, `broker NAME`, ..."""

    level: str
    about: str
    what: str
    remedy: str = ""

    @property
    def text(self) -> str:
        """The fault or fact that was found, and the remedy."""
        return f"{self.what}. {self.remedy}" if self.remedy else self.what


def check(about: str, is_well: bool, fact: str, fault: str, *, level: str = FAIL) -> Finding:
    """The fact alone if all is well, else also the fault, as `what is wrong. What to change`."""
    if is_well:
        return Finding(OK, about, fact)
    wrong, _, remedy = fault.partition(". ")
    return Finding(level, about, f"{fact}: {wrong}", remedy)
