"""Debounce and throttle as callers see them: many at once, with workers, and with a ledger."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
import redis

from delaybridge import Debounce, MessageConflict, MessageError, Throttle
from delaybridge.message import Answer, Delivery
from delaybridge.store.protocol.keys import birth
from tests.rigs.crew import CALM, Arrived, Crew
from tests.rigs.ledgers import LedgerProbe
from tests.rigs.stall import Stall
from tests.rigs.waiting import until_async

TO = "memory:q"
OTHERS_SLOW = pytest.mark.slow_with("postgres*", "mariadb*")


@pytest.fixture
def bodies(arrived: Arrived, monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """What was published, in order."""
    found: list[bytes] = []
    take = arrived.take

    def noted(deliveries: list[Delivery]) -> None:
        found.extend(each.record.body or b"" for each in deliveries)
        take(deliveries)

    monkeypatch.setattr(arrived, "take", noted)
    return found


async def test_a_hundred_callers_at_once_are_one_delivery_and_the_last_one(
    crew: Crew, bodies: list[bytes], stall: Stall
) -> None:
    """On a stalled machine the first may be late by a second: then it would be replaced."""
    crew.start(lease=CALM)
    await crew.shared("w")
    client = crew.client
    calls = [client.throttle(TO, f"{n}", key="t", every="1h") for n in range(100)]
    receipts = await asyncio.gather(*calls)
    assert Counter(map(str, receipts)) == {"created": 1, "kept": 1, "replaced": 98}
    first_ms, kept_ms = sorted({receipt.due_ms for receipt in receipts})
    assert (kept_ms - first_ms, len(bodies)) == (3_600_000, 1)

    calls = [client.debounce(TO, f"{n}", key="d", quiet="40m") for n in range(100)]
    receipts = await asyncio.gather(*calls)
    assert Counter(map(str, receipts)) == {"created": 1, "replaced": 99}
    pending = await client.get("d")
    assert pending is not None and pending.due_ms == max(receipt.due_ms for receipt in receipts)

    await client.reschedule_many(["t", "d"], delay=0)
    await crew.settled()
    assert len(bodies) == 3
    # What was kept was delivered early: nothing else is due before its time.
    assert (await client.throttle(TO, b"", key="t", every="1h")).due_ms == kept_ms


async def test_calls_without_a_pause_lose_nothing_and_end_with_the_last(
    crew: Crew, bodies: list[bytes]
) -> None:
    """Each call begins while a message may be about to leave: it is in that one, or in the next."""
    crew.start(lease=CALM)
    receipts = []
    for n in range(40):
        how: Any = Debounce("k", "3ms", "10ms") if n % 2 else Debounce("k", "1ms", "5ms")
        receipts.append(await crew.client.schedule(TO, f"{n}", delay=how))
    await crew.settled()
    answers = Counter(map(str, receipts))
    assert set(answers) <= {"created", "replaced"}
    # A message is lost only by a later one that replaces it.
    assert len(bodies) == answers["created"]
    assert [int(body) for body in bodies] == sorted(map(int, bodies)) and bodies[-1] == b"39"


async def test_to_consumers_each_is_a_message_of_its_own(
    crew: Crew, arrived: Arrived, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: list[str] = []
    take = arrived.take
    monkeypatch.setattr(
        arrived, "take", lambda some: (given.extend(each.given_id for each in some), take(some))
    )
    crew.start(lease=CALM)
    first = await crew.client.throttle(TO, b"", key="k", every="100ms")
    second = await crew.client.throttle(TO, b"", key="k", every="100ms")
    await crew.settled()
    assert given == [f"k@{first.due_ms}", f"k@{second.due_ms}"]


async def test_a_key_is_cancelled_and_shown_by_its_name(crew: Crew) -> None:
    client = crew.client
    receipt = await client.debounce(TO, b"1", key="k", headers={"a": "b"}, ttl="5m", priority=3)
    assert (receipt.answer, receipt.id) == (Answer.CREATED, "k")
    shown = await client.get("k")
    assert shown is not None
    assert (shown.body, shown.key, shown.ttl_ms, shown.priority) == (b"1", b"k", 300_000, 3)
    assert await client.touch("k", ttl="1m") == Answer.REPLACED
    assert await client.debounce(TO, b"2", key="k") == "replaced"
    assert await client.cancel("k") == Answer.CANCELLED
    assert await client.debounce(TO, b"3", key="k") == "created"
    with pytest.raises(MessageConflict) as refused:
        await client.debounce("memory:other", b"4", key="k")
    assert refused.value.field == "key"


REFUSED: list[tuple[Callable[[], dict[str, Any]], str, str]] = [
    (lambda: {"delay": Debounce("")}, "key", "bad_id"),
    (lambda: {"delay": Debounce(5)}, "key", "bad_id"),  # type: ignore[arg-type]
    (lambda: {"delay": Debounce("k", "soon")}, "quiet", "bad_time"),
    (lambda: {"delay": Debounce("k", 0)}, "quiet", "bad_time"),
    (lambda: {"delay": Debounce("k", "2h")}, "longest", "bad_time"),
    (lambda: {"delay": Debounce("k", "5m", "11000d")}, "longest", "too_far"),
    (lambda: {"delay": Throttle("k", "-1s")}, "every", "negative_delay"),
    (lambda: {"delay": Throttle("k", None)}, "every", "bad_time"),  # type: ignore[arg-type]
    (lambda: {"delay": Throttle("k"), "at": "2030-01-01T00:00:00Z"}, "delay", "time_ambiguous"),
]


@pytest.mark.parametrize(("fields", "field", "code"), REFUSED)
async def test_what_is_wrong_is_named(
    crew: Crew, fields: Callable[[], dict[str, Any]], field: str, code: str
) -> None:
    with pytest.raises(MessageError) as refused:
        await crew.client.schedule(TO, b"", **fields())
    assert (refused.value.field, refused.value.code) == (field, code)


async def test_a_message_cannot_be_moved_to_a_debounce(crew: Crew) -> None:
    with pytest.raises(MessageError):
        await crew.client.reschedule("k", delay=Debounce("k"))  # type: ignore[arg-type]


# with a ledger


@pytest.fixture
def site(redis_url: str, namespace: str, ledger_url: str) -> Crew:
    return Crew(redis_url, namespace, ledger=ledger_url)


@OTHERS_SLOW
async def test_the_ledger_knows_what_redis_decided(
    site: Crew, ledger: LedgerProbe, raw: redis.Redis, arrived: Arrived
) -> None:
    async with site:
        client = site.client
        first = await client.debounce(TO, b"1", key="d", quiet="40m")
        last = await client.debounce(TO, b"2", key="d", quiet="50m")
        kept = [await client.throttle(TO, b"1", key="t", every="1h")]
        assert last == "replaced"
        assert ledger.due_ms("d") == last.due_ms > first.due_ms
        assert ledger.states() == {"delayed": 2, "cancelled": 1}
        site.start(lease=CALM)
        await until_async(lambda: "t" in arrived.due_ms, "the first")
        kept += [await client.throttle(TO, b"%d" % n, key="t", every="1h") for n in (2, 3)]
        assert kept == ["created", "kept", "replaced"]
        assert ledger.due_ms("t") == kept[1].due_ms == kept[2].due_ms
        told = {"delayed": 2, "cancelled": 2, "published": 1}
        await until_async(lambda: ledger.states() == told, "the ledger was told")
        await site.stop()
        raw.delete(*raw.scan_iter(f"{{{site.namespace}*"))
        assert raw.get(birth(site.namespace)) is None
        site.start(lease=CALM)

        async def is_back() -> bool:
            return await client.get("d") is not None and await client.get("t") is not None

        await until_async(is_back, "both are restored")
        shown = await client.get("t")
        assert shown is not None and (shown.body, shown.due_ms) == (b"3", kept[2].due_ms)
        # Until when it may be postponed is as it was before the wipe.
        again = await client.debounce(TO, b"4", key="d", quiet="1h")
        assert (str(again), again.due_ms) == ("replaced", first.due_ms - 40 * 60_000 + 3_600_000)


@OTHERS_SLOW
async def test_many_callers_with_a_ledger(
    site: Crew, ledger: LedgerProbe, arrived: Arrived, bodies: list[bytes]
) -> None:
    async with site:
        calls = [site.client.debounce(TO, b"%d" % n, key="d", quiet="1s") for n in range(20)]
        receipts = await asyncio.gather(*calls)
        site.start(lease=CALM)
        await site.settled()
        last = max(receipts, key=lambda receipt: receipt.due_ms)
        assert (arrived.due_ms, len(bodies)) == ({"d": last.due_ms}, 1)
        ended = {"published": 1, "cancelled": 19}
        await until_async(lambda: ledger.states() == ended, "the ledger was told")
