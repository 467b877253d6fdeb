"""When to try again what failed: the waits, which grow."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from delaybridge.backoff import ATTEMPTS_LIMIT, FACTOR_LIMIT, WAIT_LIMIT_MS, RetryPlan

Random = Callable[[], float]
"""Draws from [0, 1), as `random.random`; a test passes its own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryPolicy:
    """How often a message is attempted, and how long it waits in between.

    The wait starts at `base_ms`, grows by `factor` with each attempt up to `max_ms`, and is then
    moved by up to a share of `jitter` to either side, so that messages that failed together do not
    come back together. Raises ValueError, naming the field and the values allowed.
    """

    max_attempts: int = 16
    base_ms: int = 1000
    factor: float = 2.0
    max_ms: int = 300_000
    jitter: float = 0.2

    def __post_init__(self) -> None:
        # Conditions state the allowed values, not the refused ones: comparisons with NaN are false.
        if not 1 <= self.max_attempts <= ATTEMPTS_LIMIT:
            raise ValueError(f"max_attempts must be 1 to {ATTEMPTS_LIMIT}, not {self.max_attempts}")
        if not 1 < self.factor <= FACTOR_LIMIT:
            raise ValueError(f"factor must be above 1, at most {FACTOR_LIMIT}, not {self.factor}")
        check_waits(self.base_ms, self.max_ms, self.jitter)

    def with_plan(self, plan: RetryPlan | None) -> RetryPolicy:
        """This policy with the fields that the plan sets; itself if there is none.

        If only one of the waits is set, the other moves out of its way.
        """
        if plan is None:
            return self
        fields = {field: getattr(plan, field) for field in RetryPlan.__struct_fields__}
        fields = {field: value for field, value in fields.items() if value is not None}
        base_ms, max_ms = fields.get("base_ms", self.base_ms), fields.get("max_ms", self.max_ms)
        if base_ms > max_ms:
            moved = "base_ms" if plan.max_ms is not None else "max_ms"
            fields[moved] = max_ms if moved == "base_ms" else base_ms
        return replace(self, **fields)

    def delay_ms(self, attempts: int, random: Random) -> int | None:
        """The wait after that many failed attempts, 1 or more. None: they are used up, bury it."""
        if attempts >= self.max_attempts:
            return None
        return wait_ms(attempts, self.base_ms, self.factor, self.max_ms, self.jitter, random)


def check_waits(base_ms: int, max_ms: int, jitter: float) -> None:
    if not 1 <= max_ms <= WAIT_LIMIT_MS:
        raise ValueError(f"max_ms must be 1 to {WAIT_LIMIT_MS}, not {max_ms}")
    if not 1 <= base_ms <= max_ms:
        raise ValueError(f"base_ms must be 1 to {max_ms} (max_ms), not {base_ms}")
    if not 0 <= jitter <= 1:
        raise ValueError(f"jitter must be 0 to 1, not {jitter}")


def wait_ms(
    failures: int, base_ms: int, factor: float, max_ms: int, jitter: float, random: Random
) -> int:
    if failures < 1:
        raise ValueError(f"the first failure is number 1, not {failures}")
    try:
        grown_ms = base_ms * factor ** (failures - 1)
    except OverflowError:
        grown_ms = max_ms
    # The jitter comes after the limit: it matters most once all waits have reached it.
    return round(min(grown_ms, max_ms) * (1 + jitter * (2 * random() - 1)))
