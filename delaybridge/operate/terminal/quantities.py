"""Amounts and rates as command lines write them: `10M`, `64KiB`, `2000/s`, `120k/m`."""

from __future__ import annotations

import re
from contextlib import suppress

from delaybridge.operate.terminal.failure import refused

_UNITS = {"": 1, "k": 10**3, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}
_UNITS |= {"Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40}
_AMOUNT = re.compile(r"([0-9.]+(?:e[0-9]+)?)([kKMGT]?|[KMGT]i)B?", re.ASCII)
_PER_S = {"s": 1, "m": 60, "h": 3600}


def number_of(text: str) -> float | None:
    """`10M`, `1.5k`, `64KiB`; None if it is something else."""
    found = _AMOUNT.fullmatch(text) if text.isascii() and len(text) <= 80 else None
    with suppress(ValueError):
        return float(found[1]) * _UNITS[found[2]] if found else float(text)
    return None


def per_second(text: str, flag: str = "--rate") -> float:
    """`500/s`, `500`, `120k/m` or `10/h`, in messages a second."""
    number, slash, unit = text.partition("/")
    seconds, found = _PER_S.get(unit if slash else "s"), number_of(number)
    if seconds is None or found is None:
        raise refused(flag, f"got {text[:80]!r}; write 500/s, 120k/m or 10/h", "bad_rate")
    return found / seconds
