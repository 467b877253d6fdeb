"""Regular expressions that are compiled when they are first used."""

from __future__ import annotations

import re
from typing import Any, AnyStr, cast


class _LatePattern:
    def __init__(self, text: Any, flags: int) -> None:
        self._made_of = text, flags

    def __getattr__(self, name: str) -> Any:
        found = getattr(re.compile(*self._made_of), name)
        setattr(self, name, found)
        return found


def pattern(text: AnyStr, flags: int = 0) -> re.Pattern[AnyStr]:
    """As `re.compile`, for what few commands use: to compile all takes a twentieth of a start."""
    return cast("re.Pattern[AnyStr]", _LatePattern(text, flags))
