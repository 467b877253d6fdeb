"""How many files this process may have open: each connection is one."""

from __future__ import annotations

import resource
from contextlib import suppress

_UNLIMITED = 2**30


def open_files() -> int:
    """How many this process may have."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return _UNLIMITED if soft == resource.RLIM_INFINITY else soft


def raise_open_files(needed: int) -> None:
    """Raise the limit to this many, as far as it may be raised. It is never lowered."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
    if wanted > open_files():
        with suppress(ValueError, OSError):  # macOS has a lower limit beside this one
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
