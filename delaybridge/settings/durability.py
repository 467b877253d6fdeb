"""Durability: what has been done with a write before its caller is told that it is accepted."""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple

from delaybridge import late
from delaybridge.errors import ConfigError, printable, quoted

HOT_WINDOW_S, LEAST_HOT_WINDOW_S = 3600.0, 10.0
DURABILITY_FORM = "memory, aof, aof-fsync, ledger, or replicated:N with N from 1 to 9"
_REPLICATED = late.pattern(r"replicated:([1-9])")


class Keeping(StrEnum):
    """The kinds of durability."""

    MEMORY = "memory"
    AOF = "aof"
    AOF_FSYNC = "aof-fsync"
    REPLICATED = "replicated"
    LEDGER = "ledger"


class Durability(NamedTuple):
    """A mode. replicas: how many have to hold a write, 0 unless the mode is `replicated`."""

    mode: Keeping = Keeping.MEMORY
    replicas: int = 0

    @property
    def is_awaited(self) -> bool:
        """Whether Redis is asked after each write how far it has come."""
        return self.mode in (Keeping.AOF_FSYNC, Keeping.REPLICATED)

    def __str__(self) -> str:
        return f"{self.mode.value}:{self.replicas}" if self.replicas else self.mode.value


MEMORY = Durability()


def read_durability(text: object) -> Durability | None:
    """The durability that a text names, None if it names none."""
    if isinstance(text, str):
        if found := _REPLICATED.fullmatch(text):
            return Durability(Keeping.REPLICATED, int(found[1]))
        if text in {*Keeping} - {Keeping.REPLICATED}:
            return Durability(Keeping(text))
    return None


def check_durability(text: object) -> Durability:
    """The durability that a text names. Raises ConfigError if it names none."""
    found = read_durability(text)
    if found is None:
        raise ConfigError(f"durability: got {printable(quoted(text))}; use {DURABILITY_FORM}")
    return found


def check_hot_window(seconds: float) -> float:
    """The setting; ValueError names the accepted values."""
    is_number = isinstance(seconds, int | float)
    if not is_number or (seconds and not LEAST_HOT_WINDOW_S <= seconds <= 10**9):
        raise ValueError(f"0, or a number from {LEAST_HOT_WINDOW_S:g} to 1e9")
    return seconds
