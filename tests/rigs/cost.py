"""How the cost of an act grows with its input, in processor time: a busy machine does not count."""

from __future__ import annotations

import time
from collections.abc import Callable
from itertools import pairwise
from typing import Any

SMALL, LARGE = 1024, 16 * 1024
_FACTOR = 3.0  # of a doubled input; linear is 2, the square 4
_TRIES = 5
_LEAST_S = 0.001  # less is no more than noise


def is_linear(act: Callable[[Any], object], make: Callable[[int], Any]) -> bool:
    """Whether twice the input costs less than three times as much.

    make: an input of so many characters. One look at a large input tells in most cases: each
    character of it costs no more than one of a small input does.
    """
    once(act, make(64))
    small_s, large_s = once(act, make(SMALL)), once(act, make(LARGE))
    if large_s < _LEAST_S or large_s / LARGE < _FACTOR * small_s / SMALL:
        return True
    # Two doublings: a limit that lies between two sizes makes one of them dear.
    sizes = [make(LARGE // 4), make(LARGE // 2), make(LARGE)]
    return any(_is_cheap([once(act, each) for each in sizes]) for _ in range(_TRIES))


def _is_cheap(costs_s: list[float]) -> bool:
    return any(after < _FACTOR * before for before, after in pairwise(costs_s))


def once(act: Callable[[Any], object], given: Any) -> float:
    """The processor time of this thread for one run, whatever it raises."""
    began_s = time.thread_time()
    try:
        act(given)
    except Exception:
        pass
    return time.thread_time() - began_s
