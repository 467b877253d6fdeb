"""`delaybridge.testing` beside the engine on a real Redis: the same calls, the same answers.

Both clocks begin at `NOW_MS` and are set by the test. Times are absolute where they are compared:
calls of clients read the clock of the real Redis.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import datetime, timedelta
from typing import Any

import pytest

from delaybridge import AsyncClient, DelayBridgeError, Message, Settings
from delaybridge.publish import Fault, Outcome, Verdict
from delaybridge.store.namespace import rules
from delaybridge.store.protocol.stored import Stored
from delaybridge.testing import Bridge
from tests.rigs.scanner import BROKERS, NOW_MS, Rig, RigFactory, when

NO = "unroutable: 312 NO_ROUTE"
RATE = 2.0
Call = Callable[[AsyncClient], Awaitable[Any]]


def at(seconds: float) -> datetime:
    return when(NOW_MS + round(seconds * 1000))


class Both:
    """The two bridges, and a client of each."""

    def __init__(self, rig: Rig, bridge: Bridge, client: AsyncClient) -> None:
        self.rig, self.bridge = rig, bridge
        self.brokers = {"memory": rig.memory, "b": rig.other, "rabbit": rig.rabbit}
        self._clients = rig.client, client

    async def ask(self, call: Call) -> Any:
        """What both answer, which must be equal."""
        real, mine = [await answer(call, client) for client in self._clients]
        assert mine == real
        return mine

    async def schedule(self, id: str, to: str = "memory:q", **options: Any) -> Any:
        body = options.pop("body", b"x")
        return await self.ask(lambda client: client.schedule(to, body, id=id, **options))

    def fail(self, broker: str, times: int, error: str = NO) -> None:
        outcome = Outcome(Verdict.REFUSED, error, Fault.MESSAGE, answered=True)
        self.brokers[broker].next_outcomes.extend([outcome] * times)
        self.bridge.fail(broker, times=times, error=error)

    async def live_until(self, seconds: float, *, slack_ms: int = 0) -> list[tuple[str, int]]:
        """Let time pass; the ids that arrived in all, with their attempt, in order by broker.

        slack_ms: at a rate, a pass of the scanner more or less moves a message by some ms.
        """
        (stored,) = await self.rig.store.run([rules.read(self.rig.namespace)])
        self.rig.lanes.rules_changed(rules.understood(stored))
        self.rig.scanner.wake_all()
        await self.rig.live_until(NOW_MS + round(seconds * 1000))
        self.bridge.advance_to(at(seconds))
        arrived = self.bridge.delivered()
        found: list[tuple[str, int]] = []
        for name, broker in self.brokers.items():
            mine = [each for each in arrived if each.destination.startswith(f"{name}:")]
            real = {(p.id, p.attempt): when(p.at_ms) for p in broker.taken}
            confirmed = [(d.id, d.attempt) for d in broker.published]
            assert [(each.id, each.attempt) for each in mine] == confirmed
            for each in mine:
                assert abs(each.at - real[each.id, each.attempt]) <= timedelta(
                    milliseconds=slack_ms
                )
            found += [(each.id, each.attempt) for each in mine]
        return found


async def answer(call: Call, client: AsyncClient) -> Any:
    try:
        found = await call(client)
    except DelayBridgeError as error:
        return type(error), str(error), getattr(error, "field", None)
    return plain(found)


def plain(value: Any) -> Any:
    """A value that can be compared, without the time of the call."""
    if isinstance(value, rules.Rule):
        return value.paused, value.rate
    if isinstance(value, Stored):
        return {name: getattr(value, name) for name in value.__dataclass_fields__}
    if hasattr(value, "due_ms") and isinstance(value, str):
        return value, value.id, value.due_ms, value.bucket
    return [plain(each) for each in value] if isinstance(value, list | tuple) else value


@pytest.fixture
async def both(rig_of: RigFactory, namespace: str) -> AsyncIterator[Both]:
    settings = Settings(
        namespace=namespace, buckets=4, brokers=BROKERS, retry={"max_attempts": 3},
        dead={"dead_letter": ["b:letters"]},
    )  # fmt: skip
    with Bridge(settings, now=at(0)) as bridge:
        client = bridge.async_client()
        async with rig_of(dead_letters={"b": "b:letters"}) as rig, client:
            yield Both(rig, bridge, client)


async def test_what_a_client_asks_is_answered_alike(both: Both) -> None:
    await both.schedule("a", at=at(60), headers={"h": 1}, properties=None, key="k", priority=7)
    await both.schedule("a", at=at(60), headers={"h": 1}, key="k", priority=7)  # a duplicate
    await both.schedule("a", at=at(61), body=b"other", key="k")  # a conflict
    await both.schedule("a", at=at(61), body=b"other", key="k", on_conflict="keep")
    await both.schedule("a", at=at(62), body=b"other", key="k", on_conflict="replace")
    await both.schedule("t", "rabbit:x/y", at=at(60), properties={"content_type": "text/plain"})
    many = [Message("memory:q", b"1", at=at(9), id=f"m{n}", ttl="1m") for n in range(20)]
    await both.ask(lambda client: client.schedule_many(many))
    await both.ask(
        lambda client: client.schedule_many([many[3], Message("memory:", b"", at=at(1))])
    )
    for id, key in (("a", "k"), ("a", None), ("m3", None), ("nothing", None)):
        await both.ask(lambda client, id=id, key=key: client.get(id, key=key))
    await both.ask(lambda client: client.reschedule("m3", at=at(100)))
    await both.ask(lambda client: client.touch("m3", ttl="5m"))
    await both.ask(lambda client: client.get("m3"))
    await both.ask(lambda client: client.cancel("m4"))
    await both.ask(lambda client: client.cancel("m4"))
    await both.ask(lambda client: client.cancel("a", key="k"))
    await both.ask(lambda client: client.cancel_many(["m5", "m6", "m4"]))
    await both.ask(lambda client: client.reschedule("m6", at=at(100)))
    await both.ask(lambda client: client.dead.kick("m7"))
    arrived = await both.live_until(30)
    assert len(arrived) == 16
    await both.ask(lambda client: client.schedule("memory:q", b"1", at=at(40), id="m7"))
    await both.ask(lambda client: client.counts())


WRONG: list[Call] = [
    lambda client: client.schedule("memory:q", b"", delay=-1),
    lambda client: client.schedule("memory:q", b"", delay="1x"),
    lambda client: client.schedule("memory:q", b"", delay="1m", at=at(1)),
    lambda client: client.schedule("memory:q", b""),
    lambda client: client.schedule("memory:q", b"", at="2030-01-01T00:00:00"),
    lambda client: client.schedule("memory:q", b"", at="9999-01-01T00:00:00Z"),
    lambda client: client.schedule("rabbit:orders", b"", delay=1),
    lambda client: client.schedule("rabit:orders/a", b"", delay=1),
    lambda client: client.schedule("memory:q", b"", delay=1, id="x" * 300),
    lambda client: client.schedule("memory:q", b"", delay=1, priority=256),
    lambda client: client.schedule("memory:q", b"", delay=1, retry={"atempts": 1}),
    lambda client: client.schedule("rabbit:x/y", b"", delay=1, headers={"a": object()}),
    lambda client: client.schedule("memory:q", b"", delay=1, on_conflict="perhaps"),
    lambda client: client.cancel(""),
    lambda client: client.reschedule("x", delay=1, at=at(1)),
    lambda client: client.destinations.limit("memory:q", -1),
    lambda client: client.destinations.pause("memory:"),
    lambda client: client.topics.receive("", limit=1),
    lambda client: client.recurring.add("job", "memory:q", b"", cron="every day"),
]


async def test_what_is_wrong_is_refused_in_the_same_words(both: Both) -> None:
    for call in WRONG:
        assert isinstance(await both.ask(call), tuple)


async def test_what_fails_is_tried_again_and_given_up_at_the_same_times(both: Both) -> None:
    await both.schedule("twice", at=at(10))
    await both.schedule("late", "rabbit:x/y", at=at(20), ttl="30s")
    await both.schedule("letter", "b:q", at=at(30), retry={"max_attempts": 1})
    await both.schedule("once", at=at(40), at_most_once=True)
    await both.schedule("dead", at=at(100), retry={"max_attempts": 2, "base_ms": 7000})
    both.fail("memory", 2)
    await both.live_until(19)
    both.rig.rabbit.unavailable = "not_connected: away"
    both.bridge.down("rabbit", "not_connected: away")
    both.fail("b", 1)
    await both.live_until(39)
    both.fail("memory", 1)
    await both.live_until(90)
    both.rig.rabbit.unavailable = None
    both.bridge.up("rabbit")
    await both.live_until(99)
    both.fail("memory", 2)
    arrived = await both.live_until(130)
    assert arrived == [("twice", 3), ("letter", 1)]
    for id in ("late", "once", "dead", "letter"):
        await both.ask(lambda client, id=id: client.get(id))
    await both.ask(lambda client: client.dead.discard("late"))
    await both.ask(lambda client: client.dead.kick("dead"))
    assert ("dead", 1) in await both.live_until(140)


async def test_rules_keys_and_priorities_give_the_same_order(both: Both) -> None:
    for n in range(6):
        await both.schedule(f"k{n}", at=at(10 + n % 2), key="one", priority=n)
    for n in range(8):
        await both.schedule(f"r{n}", "b:q", at=at(10), priority=200 - n)
    await both.ask(lambda client: client.destinations.limit("b:q", RATE))
    await both.ask(lambda client: client.destinations.pause("memory"))
    few = await both.live_until(12.2, slack_ms=50)
    assert 0 < len(few) < 8
    assert few == [(f"r{n}", 1) for n in range(len(few))]  # the highest priority goes first
    await both.ask(lambda client: client.destinations.resume("memory"))
    arrived = await both.live_until(30, slack_ms=50)
    assert [id for id, _ in arrived[:6]] == ["k4", "k2", "k0", "k5", "k3", "k1"]
    assert len(arrived) == 14
