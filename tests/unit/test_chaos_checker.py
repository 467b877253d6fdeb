"""The checker of the fault suite: each broken promise is found, and a kept one is not."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from tests.chaos.cells import CELLS
from tests.chaos.changes import MUTATIONS
from tests.chaos.checker import Terms, check, fold
from tests.rigs.history import Delivery

DUE_MS = 1_000_000


# The one message of most tests is due during a fault.
TERMS = Terms(settle_ms=7000, others=["r:x"], faults=[(DUE_MS, DUE_MS + 1)])


def event(f: str, phase: str, at_ms: int = DUE_MS - 5000, **more: Any) -> str:
    return json.dumps({"id": "m", "f": f, "phase": phase, "at_us": at_ms * 1000, **more})


def scheduled(**more: Any) -> list[str]:
    about = {"to": "r:x", "sha": "s", "mark": "k", "once": False, "least": DUE_MS - 10, **more}
    return [event("schedule", "invoke", **about), event("schedule", "ok", due=DUE_MS)]


def came(late_ms: int = 1, **more: Any) -> Delivery:
    about = {"id": "m", "due_ms": DUE_MS, "attempt": 1, "sha": "s", "mark": "k", **more}
    return Delivery(at_us=(DUE_MS + late_ms) * 1000, **about)


def later(**more: Any) -> list[str]:
    """Another message, due 5 ms later."""
    steps = map(json.loads, scheduled(**more))
    return [json.dumps({**each, "id": "later"}) for each in steps]


CANCELLED = event("cancel", "ok", say="cancelled")
MOVED = event("reschedule", "ok", say="rescheduled", due=DUE_MS + 3000)
BROKEN = [
    ("I1", scheduled(), []),
    ("I2", scheduled(), [came(-2)]),
    ("I2", scheduled(), [came(due_ms=DUE_MS - 20)]),
    ("I3", [*scheduled(), CANCELLED], [came()]),
    ("I4", [*scheduled(), MOVED], [came()]),
    ("I5", scheduled(), [came(sha="other")]),
    ("I5", scheduled(), [came(mark=None)]),
    ("I6", [], [came()]),
    ("I7", scheduled(), [came(), came(9)]),
    ("I9", scheduled(), [came(8000)]),
    ("I11", scheduled(once=True), [came(), came(9, attempt=2)]),
    ("I16", scheduled(), [came(1500)]),
    (
        "I18",
        [*scheduled(key="a"), *later(key="a")],
        [came(9), came(8, id="later", due_ms=DUE_MS + 5)],
    ),
    ("I19", [*scheduled(), event("get", "ok", say="unknown")], [came()]),
]


@pytest.mark.parametrize(("invariant", "history", "deliveries"), BROKEN)
def test_a_broken_promise_is_found(
    invariant: str, history: list[str], deliveries: list[Delivery]
) -> None:
    assert check(fold(history, deliveries), set(), TERMS)[invariant]


def test_kept_promises_are_not_complained_about() -> None:
    found = check(fold(scheduled(), [came(), came(9, redelivered=True)]), set(), TERMS)
    assert not any(found.values())


def test_others_are_compared_with_those_that_no_fault_concerned() -> None:
    calm = [line.replace('"m"', '"calm"') for line in scheduled(due=DUE_MS + 5)]
    late = replace(came(1500), id="calm", due_ms=DUE_MS + 5)
    fates = fold([*scheduled(), *calm], [came(1500), late])
    assert not check(fates, set(), TERMS)["I16"]


def test_what_is_unknown_breaks_nothing() -> None:
    history = [scheduled()[0], event("schedule", "info", why="silent")]
    assert not any(check(fold(history, []), set(), Terms()).values())


def test_what_the_store_may_have_forgotten_is_not_lost() -> None:
    terms = Terms(may_lose_s=2, faults=[(DUE_MS - 4000, DUE_MS)])
    assert not check(fold(scheduled(), []), set(), terms)["I1"]


def test_what_came_before_its_forgetful_cancel_breaks_nothing() -> None:
    terms = Terms(cancels_delivered=True)
    late = event("cancel", "ok", DUE_MS + 9, say="cancelled")
    assert not any(check(fold([*scheduled(), late], [came()]), set(), terms).values())
    assert check(fold([*scheduled(), CANCELLED], [came()]), set(), terms)["I3"]


def test_what_was_moved_nearer_may_come_then_though_an_earlier_copy_may_have_come() -> None:
    near = event("reschedule", "ok", say="rescheduled_maybe_delivered", due=DUE_MS - 3000)
    early = came(-2999, due_ms=DUE_MS - 3000)
    assert not check(fold([*scheduled(), near], [early]), set(), TERMS)["I2"]


def test_what_came_too_early_is_not_missed_as_well() -> None:
    found = check(
        fold([*scheduled(), event("get", "ok", say="unknown")], [came(-2000)]), set(), TERMS
    )
    assert found["I2"] and not found["I19"]


def test_mutations_name_cells_that_exist() -> None:
    assert {cell for each in MUTATIONS.values() for cell in each.cells} <= CELLS.keys()
