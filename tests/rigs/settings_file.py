"""Settings from a file, variables and flags, in a working directory of the test's own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from delaybridge.errors import ConfigError
from delaybridge.settings.settings import Settings

CANARY = "S3CR3T-CANARY-77"


def load(
    text: str | None = None, *, env: dict[str, str] | None = None, flags: Any = None
) -> Settings:
    """Settings from a file with this text, these variables and these flags."""
    if text is not None:
        Path("settings.toml").write_text(text)
    return Settings.load(None if text is None else "settings.toml", flags, environ=env or {})


def refusal(text: str | None = None, **more: Any) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        load(text, **more)
    return str(caught.value).splitlines()
