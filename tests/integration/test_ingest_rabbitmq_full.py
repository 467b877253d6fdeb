"""A delay exchange whose messages have to wait leaves the window to the others of its broker."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from delaybridge.ingest.entries import Schedule
from delaybridge.message import Answer, Limits
from tests.rigs.ingest import Entrance, MakeEntrance, source
from tests.rigs.ingest_rabbitmq import HOUR_MS, Exchanges, described, drained, reading

WINDOW, PREFETCH = 2**20, 64
LIMIT, COUNT, BODY = 3, 40, bytes(60_000)
FULL = "acme: limits.tenant_messages is reached"


def stored_by(ingest: Any) -> list[str]:
    """The ids of what that ingest stores from now on, in its order."""
    stored: list[str] = []
    store = ingest._store.store

    async def storing(entries: Sequence[Any]) -> Any:
        answers = await store(entries)
        for entry, answer in zip(entries, answers, strict=True):
            if isinstance(entry, Schedule) and answer is Answer.CREATED:
                stored.append(entry.accepted.id)
        return answers

    ingest._store.store = storing
    return stored


async def two_sources(
    make_entrance: MakeEntrance, rabbit: Exchanges, url: str, full: str, other: str
) -> tuple[Entrance, Any]:
    """A running ingest of the exchange of a tenant with a quota, and of another exchange."""
    entrance = make_entrance(
        url=url,
        exchanges=[full, other],
        tenants=[f"{full}=acme"],
        share=["acme"],
        limits={"tenant_messages": LIMIT},
        window_bytes=WINDOW,
        prefetch=PREFETCH,
    )
    for name in (full, other):
        await rabbit.target(name.removesuffix(".delay"))
    task = entrance.ingest("rabbitmq")
    await reading(entrance, full, other)
    return entrance, entrance.ingest_of(task)


async def test_large_messages_behind_small_ones_leave_the_window_to_others(
    make_entrance: MakeEntrance, rabbit: Exchanges, namespace: str, rabbitmq_url: str
) -> None:
    """How many are asked for again depends on the largest, not on those that wait now."""
    full, other = f"{namespace}-acme.delay", f"{namespace}-none.delay"
    entrance, ingest = await two_sources(make_entrance, rabbit, rabbitmq_url, full, other)
    stored, intake = stored_by(ingest), ingest.intakes[0]
    sizes = [*[8_000] * 19, *[200_000] * 20]
    await rabbit.send(
        full,
        [
            ("k", bytes(size), described(HOUR_MS, message_id=f"m{n:02}"))
            for n, size in enumerate(sizes)
        ],
    )
    await entrance.until(lambda: intake.channel.prefetch < PREFETCH, "they were returned")
    gone = 0
    while not {f"acme/m{n:02}" for n in range(19)}.issubset(stored):  # then large ones wait
        await entrance.until(lambda n=gone: len(stored) > n, "one more has room")
        await entrance.client.cancel(stored[gone])
        gone += 1
    await rabbit.send(other, [("k", b"", described(HOUR_MS, message_id="b"))])
    await entrance.until(lambda: "b" in stored, "others go on")


async def fault_of(entrance: Entrance, exchange: str) -> str:
    found = await source(entrance, exchange, "reading")
    return "" if found is None else " ".join(found.faults)


@pytest.mark.parametrize("is_lost", [False, True])
async def test_a_full_tenant_leaves_the_window_to_other_exchanges(
    make_entrance: MakeEntrance,
    rabbit: Exchanges,
    namespace: str,
    rabbitmq_url: str,
    monkeypatch: pytest.MonkeyPatch,
    is_lost: bool,
) -> None:
    """Its own are stored once when there is room, and none is overtaken by its cancel, unless the
    connection is lost meanwhile."""
    monkeypatch.setattr("delaybridge.ingest.rabbitmq.intake._MORE_S", 0.05)
    full, other = f"{namespace}-acme.delay", f"{namespace}-none.delay"
    entrance, ingest = await two_sources(make_entrance, rabbit, rabbitmq_url, full, other)
    stored, intake = stored_by(ingest), ingest.intakes[0]
    now = [] if is_lost else [("k", BODY, described(0))] * 5
    later = [("k", BODY, described(HOUR_MS, message_id=f"m{n:02}")) for n in range(COUNT)]
    cancel = described(headers={"delaybridge-cancel": "true"}, message_id="m10")
    cancels = [] if is_lost else [("k", b"", cancel)]
    half = COUNT // 2
    await rabbit.send(full, [*now, *later[:half], *now, *later[half:]])
    await entrance.until(lambda: intake.aside.messages, "it is full")
    await rabbit.send(other, [("k", b"", described(HOUR_MS, message_id="a"))])
    await entrance.until_stored(LIMIT + 1)

    async def is_told() -> bool:
        return FULL in await fault_of(entrance, full)

    await entrance.until(is_told, "the full tenant's exchange says why")
    await entrance.until(lambda: 0 < intake.channel.prefetch < 4, "it holds no more than its share")
    await rabbit.send(full, cancels)
    if is_lost:
        channel = intake.channel
        ingest.connection.abort("lost")
        await entrance.until(lambda: intake.channel is not channel, "it begins again")
    await rabbit.send(other, [("k", b"", described(HOUR_MS, message_id="b"))])
    await entrance.until_stored(LIMIT + 2)
    assert await fault_of(entrance, other) == ""
    calls = ingest._store.calls
    calls.quota = type(calls.quota)(Limits(), calls.kinds)
    await entrance.until(lambda: len(stored) == COUNT + 2, "all are stored")
    await entrance.until_delayed(COUNT + 2 - len(cancels))
    await drained(entrance, full)
    mine = sorted(id for id in stored if id.startswith("acme/"))
    assert mine == [f"acme/m{n:02}" for n in range(COUNT)]
    assert await rabbit.waiting(full.removesuffix(".delay")) == 2 * len(now), "each came once"
    await entrance.until(lambda: intake.channel.prefetch == PREFETCH, "it reads as before")
    assert await fault_of(entrance, full) == ""
