"""Messages that move to another bucket: each promise, and the rules that keep it."""

from __future__ import annotations

import pytest

from tests.protocol.resize import Item, MoveRules, Resize, Task, explore_resize, shown

Bounds = tuple[tuple[Item, ...], tuple[Task, ...], int]
X, Y = Item("x", 1, 2), Item("y", 2, 2)
CANCEL: Bounds = (X,), (Task("cancel", "x"),), 2
CREATE: Bounds = (X,), (Task("schedule", "x", 1),), 2
FIRST: Bounds = (), (Task("schedule", "x", 1),), 1
FALLS: Bounds = (Item("x", 1, 1), Item("z", 2, 3)), (Task("schedule", "y", 2, True),), 2
LATER: Bounds = (Item("x", 1, 1),), (Task("schedule", "y", 2),), 2
ONE: Bounds = (X,), (), 2
TWO: Bounds = (Item("x", 1, 1), Y), (), 2
TWICE: Bounds = (), (Task("schedule", "x", 1), Task("schedule", "x", 2)), 1
WITHOUT: dict[str, tuple[Bounds, int]] = {
    "refused": (CANCEL, 3),
    "source_first": (CANCEL, 3),
    "helped": (CANCEL, 3),
    "one_page": (ONE, 1),
    "ack_named": (ONE, 1),
    "landed_once": (ONE, 1),
    "landed_lately": (ONE, 1),
    "elsewhere": (FIRST, 6),
    "known_moved": (CREATE, 4),
    "gate": (TWO, 5),
    "gate_falls": (FALLS, 5),
    "cut_ends": (LATER, 5),
    "closed_again": (TWO, 5),
    "stops": (TWO, 5),
    "in_flight": (TWO, 5),
}


@pytest.mark.parametrize(
    "bounds",
    [
        pytest.param(ONE, id="one message"),
        pytest.param(FIRST, id="one is scheduled"),
        pytest.param(TWO, id="two messages", marks=pytest.mark.slow),
        pytest.param(CANCEL, id="one is cancelled", marks=pytest.mark.slow),
        pytest.param(CREATE, id="one is scheduled again", marks=pytest.mark.slow),
        pytest.param(TWICE, id="one is scheduled twice", marks=pytest.mark.slow),
        pytest.param(LATER, id="another is scheduled", marks=pytest.mark.slow),
        pytest.param(FALLS, id="one is scheduled between two", marks=pytest.mark.slow),
    ],
)
def test_messages_move_and_every_promise_holds(bounds: Bounds) -> None:
    states, broken = explore_resize(Resize(MoveRules(), *bounds))
    assert {promise: shown(way) for promise, way in broken.items()} == {}
    assert states > 5000


@pytest.mark.slow_with("gate_falls", "elsewhere", "closed_first")
@pytest.mark.parametrize("rule", MoveRules._fields)
def test_without_a_rule_a_promise_breaks(rule: str) -> None:
    bounds, promise = WITHOUT[rule]
    model = Resize(MoveRules(**{rule: False}), *bounds)
    _, broken = explore_resize(model, stop=promise)
    assert promise in broken
