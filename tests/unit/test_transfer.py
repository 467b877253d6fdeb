"""An import is checked in pieces."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from delaybridge.errors import MessageError
from delaybridge.message import Limits
from delaybridge.operate.views.transfer import Contents, checked
from delaybridge.recurring.definitions import Definitions
from delaybridge.recurring.stored import DEFINITIONS_LIMIT
from delaybridge.settings.durability import MEMORY
from delaybridge.store.calls import Calls
from delaybridge.store.namespace.rules import RULES_LIMIT
from delaybridge.store.protocol.verbs import Steps
from delaybridge.store.redis.store import AsyncStore


class Opened(Calls):
    """Of a namespace that is open. seen: how many definitions were checked before each turn."""

    def __init__(self) -> None:
        super().__init__("n", None, None, Limits(), MEMORY)
        self.checks = 0
        self.seen: list[int] = []

    def open(self, *args: Any, **options: Any) -> Steps[None]:
        return
        yield

    def now_ms(self) -> Steps[int]:
        return 1_800_000_000_000
        yield


@pytest.fixture(autouse=True)
def counting(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = Definitions.check

    def check(self: Definitions, *args: Any) -> Any:
        assert isinstance(self.calls, Opened)
        self.calls.checks += 1
        return plain(self, *args)

    monkeypatch.setattr(Definitions, "check", check)


def document_of(count: int) -> dict[str, Any]:
    fields = {"destination": "kafka:orders", "body": "", "every_ms": 5000}
    return {"delaybridge": 1, "recurring": [{"name": f"n{n}", **fields} for n in range(count)]}


def turns(calls: Opened, steps: Steps[Any]) -> Any:
    """The result of a call that asks Redis nothing."""
    try:
        asked: Sequence[Any] = next(steps)
        while True:
            assert not asked
            calls.seen.append(calls.checks)
            asked = steps.send([])
    except StopIteration as done:
        return done.value


def test_an_import_leaves_others_a_turn_every_50_definitions() -> None:
    calls = Opened()
    found, faults = turns(calls, checked(calls, document_of(500)))
    assert (len(found.definitions), faults) == (500, [])
    assert calls.seen == [*range(0, 500, 50)]


@pytest.mark.parametrize(
    "document",
    [
        document_of(DEFINITIONS_LIMIT + 1),
        {"delaybridge": 1, "destinations": {f"kafka:{n}": {} for n in range(RULES_LIMIT + 1)}},
    ],
)
def test_one_with_too_many_is_refused_before_any_is_checked(document: Any) -> None:
    calls = Opened()
    with pytest.raises(MessageError, match="too_many"):
        turns(calls, checked(calls, document))
    assert calls.checks == 0


async def test_a_call_that_asks_nothing_gives_the_loop_a_turn() -> None:
    store, happened = AsyncStore("redis://127.0.0.1:1"), list[str]()

    def steps() -> Steps[Contents]:
        for word in ("first", "second"):
            happened.append(word)
            assert (yield ()) == []
        return Contents({}, {})

    asyncio.get_running_loop().call_soon(happened.append, "other")
    assert await store.complete(steps()) == Contents({}, {})
    assert happened == ["first", "other", "second"]
    await store.close()
