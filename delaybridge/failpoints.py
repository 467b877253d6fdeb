"""Failpoints: the fault suite (tests/chaos) stops a process at a named place on a message's path.

`DELAYBRIDGE_FAILPOINTS="claim.after=exit:1;publish.after_write=stop;settle.before=sleep:5000"`.
Each acts once: `exit:N` ends the process the N-th time that the place is reached, as SIGKILL would;
`stop:N` stops it (SIGSTOP); `sleep:MS` blocks it for so long the first time.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable

VARIABLE = "DELAYBRIDGE_FAILPOINTS"
EXIT_CODE = 137
NAMES = (
    "claim.before",
    "claim.after",
    "fire.after",
    "publish.after_write",
    "settle.before",
    "settle.after",
    "ingest.stored",
    "ledger.added",  # the row is committed, and Redis does not know of it
    "ledger.answered",  # Redis has answered, and the row does not say it
    "ledger.sealed",  # a worker has read what left a bucket
    "ledger.told",  # the ledger has it, and Redis does not know that
    "ledger.promoted",  # cold messages are in Redis, and their rows do not say it
    "ledger.restored",  # a part of what a bucket lacked is there
)


def read(text: str) -> dict[str, tuple[str, int]]:
    """Place -> (action, number). ValueError if it is not understood."""
    found = {}
    for each in filter(None, text.split(";")):
        name, _, what = each.strip().partition("=")
        action, _, number = what.partition(":")
        if name not in NAMES or action not in ("exit", "stop", "sleep"):
            raise ValueError(f"{VARIABLE}: {each!r} is not NAME=exit|stop|sleep[:NUMBER]")
        found[name] = action, int(number or 1)
    return found


_left = read(os.environ.get(VARIABLE, ""))


def _act(name: str) -> None:
    """Do what is set for this place."""
    action, number = _left.get(name, ("", 0))
    if action and action != "sleep" and number > 1:
        _left[name] = action, number - 1
        return
    _left.pop(name, None)
    if action == "exit":
        os._exit(EXIT_CODE)
    elif action == "stop":
        os.kill(os.getpid(), signal.SIGSTOP)
    elif action == "sleep":
        time.sleep(number / 1000)


reach: Callable[[str], object] = _act if _left else str
"""The process is at this place. Without failpoints that costs the call of a builtin."""
