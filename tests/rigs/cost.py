"""How the cost of an act grows with its input, in processor time: a busy machine does not count."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from itertools import pairwise
from typing import Any

_SMALL, _LARGE = 512, 8192  # characters
_FACTOR = 3  # of an input that is doubled; 2 is linear, 4 the square
_NOISE_S = 0.0005
_TRIES = 3


def is_linear(act: Callable[[Any], object], make: Callable[[int], Any]) -> bool:
    """Whether twice the input costs less than three times as much. What `act` raises is ignored.

    make: an input of so many characters. In most cases one look tells: a character of a large input
    costs no more than one of a small input. Else two doublings are looked at, because a limit that
    lies between two sizes makes one of them dear.
    """
    small_s, large_s = cost_s(act, make(_SMALL)), cost_s(act, make(_LARGE))
    if large_s < _NOISE_S or large_s / _LARGE < _FACTOR * small_s / _SMALL:
        return True
    inputs = [make(_LARGE // 4), make(_LARGE // 2), make(_LARGE)]
    return any(_has_cheap_step([cost_s(act, each) for each in inputs]) for _ in range(_TRIES))


def _has_cheap_step(costs_s: list[float]) -> bool:
    return any(after_s < _FACTOR * before_s for before_s, after_s in pairwise(costs_s))


def cost_s(act: Callable[[Any], object], given: Any) -> float:
    """The processor time that this thread spends on it."""
    began_s = time.thread_time()
    with suppress(Exception):
        act(given)
    return time.thread_time() - began_s
