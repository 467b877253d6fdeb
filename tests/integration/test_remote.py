"""Remote control: workers are asked to drain, and to reconnect; what they say of their pace."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any

import pytest
import redis

from delaybridge.errors import MessageError
from delaybridge.operate.notices.announcements import WorkerInfo, WorkerPace
from delaybridge.operate.troubles.found import troubles
from delaybridge.operate.views.remote_control import ask_to_drain, ask_to_reconnect
from delaybridge.store.namespace import registry
from delaybridge.store.protocol import keys
from tests.rigs.api import api
from tests.rigs.crew import SELDOM, Arrived, Crew
from tests.rigs.fleet import Fleet
from tests.rigs.waiting import DeadlineExceeded, until, until_async
from tests.servers.redis import ON_EVERY_REDIS


async def announce(crew: Crew, name: str, **about: Any) -> None:
    """As a worker does that is not there."""
    info = json.dumps({"host": "h", "brokers": {"memory": None}, **about}).encode()
    await crew.store.run([registry.announce(crew.namespace, name, f"{name}0", 60_000, info)])


async def obeyed(ask: Callable[[], Any], is_done: Callable[[], bool], what: str) -> int:
    """Ask again every 5 s, as an operator does: who is just connecting to Redis hears nothing.

    Returns how often it was asked.
    """
    times = 0

    async def asked() -> bool:
        nonlocal times
        times += 1
        await ask()
        with suppress(DeadlineExceeded):
            await until_async(is_done, deadline_s=5)
        return is_done()

    await until_async(asked, what)
    return times


async def told(crew: Crew, name: str = "w") -> WorkerInfo:
    async def look() -> WorkerInfo | None:
        workers = (await crew.client.stats()).workers
        return next((each for each in workers if each.name == name), None)

    found = await until_async(look, "it is announced")
    assert found is not None
    return found


@ON_EVERY_REDIS
@pytest.mark.slow_with("cluster")
async def test_a_drained_worker_ends_under_load_without_a_gap_or_a_duplicate(
    crew: Crew, arrived: Arrived
) -> None:
    leaving = crew.start("a", lease=SELDOM)
    crew.start("b", lease=SELDOM)
    await crew.shared("a", "b")
    ids = await crew.schedule(400, seconds=2)
    await until_async(lambda: len(arrived.at_ms) > 50, "under load")

    async def ask() -> None:
        assert (await crew.client.run(lambda calls: ask_to_drain(calls, "a"))).name == "a"

    await obeyed(ask, leaving.done, "it ends")
    await leaving
    await crew.shared("b")
    await arrived.all(ids)
    assert arrived.twice == []
    await crew.settled()


async def test_the_next_worker_of_that_name_is_not_the_one_that_was_asked(crew: Crew) -> None:
    crew.start()
    await crew.shared("w")
    before = (await told(crew)).instance
    await crew.stop()
    task = crew.start()
    await crew.shared("w")
    channel = keys.wake(crew.namespace)
    for text in (f"drain {before}", "drain", "drain ", "reconnect", "reconnect x", "later 1", ""):
        await crew.store.redis.publish(channel, text)
    held = (await crew.schedule(5, seconds=0.1), await crew.settled())[0]
    assert len(held) == 5 and not task.done()
    await crew.stop()


async def test_nobody_is_asked_who_is_unknown_or_too_old(crew: Crew) -> None:
    await announce(crew, "old")
    for name, code in (("old", "worker_too_old"), ("w", "unknown_worker"), ("", "unknown_worker")):
        with pytest.raises(MessageError) as refused:
            await crew.client.run(lambda calls, name=name: ask_to_drain(calls, name))  # type: ignore[misc]
        assert refused.value.code == code
    with pytest.raises(MessageError) as refused:
        await crew.client.run(lambda calls: ask_to_reconnect(calls, "memory"))
    assert refused.value.code == "unknown_broker"
    await announce(crew, "new", instance="0a1b")
    assert await crew.client.run(lambda calls: ask_to_reconnect(calls, "memory")) == ["new"]


async def test_a_reconnect_under_load_keeps_the_leases_and_loses_nothing(
    crew: Crew, arrived: Arrived
) -> None:
    crew.start(lease=SELDOM)
    await crew.shared("w")
    before = (await crew.client.stats()).buckets
    ids = await crew.schedule(400, seconds=1.5)

    async def ask() -> None:
        assert await crew.client.run(lambda calls: ask_to_reconnect(calls, "memory")) == ["w"]

    asked = 0
    for now in range(2, 5):
        asked += await obeyed(ask, lambda now=now: len(arrived.brokers) >= now, "it connects again")  # type: ignore[misc]
    await arrived.all(ids)
    assert len(arrived.brokers) <= 1 + asked
    assert arrived.twice == []
    after = (await crew.client.stats()).buckets
    assert [each.owner for each in after] == [each.owner for each in before] == ["w"] * 16
    await crew.stop()


async def test_over_http_with_an_audit(crew: Crew, arrived: Arrived) -> None:
    leaving = crew.start("a b/c", lease=SELDOM)
    await crew.shared("a b/c")
    broker = {"memory": "memory://"}
    async with api(crew.url, crew.namespace, brokers=broker) as http:

        async def post(path: str, told: dict[str, Any]) -> None:
            answer = await http.post(path)
            assert (answer.status_code, answer.json()) == (202, told)

        asked = {"broker": "memory", "workers": ["a b/c"]}
        reconnect = partial(post, "/v1/brokers/memory:reconnect", asked)
        times = await obeyed(reconnect, lambda: len(arrived.brokers) > 1, "it connects again")
        assert len(arrived.brokers) <= 1 + times
        for path, code in (
            ("/v1/brokers/nowhere:reconnect", "unknown_broker"),
            ("/v1/workers/nobody:drain", "unknown_worker"),
        ):
            refused = await http.post(path)
            assert (refused.status_code, refused.json()["code"]) == (404, code)
        drain = partial(post, "/v1/workers/a%20b%2Fc:drain", {"worker": "a b/c"})
        await obeyed(drain, leaving.done, "it ends")
        await leaving
        acts = (await http.get("/v1/audit")).json()["items"]
        assert any("POST /v1/workers/a%20b%2Fc:drain" in each["what"] for each in acts), acts
        await announce(crew, "old")
        answer = await http.post("/v1/workers/old:drain")
        assert (answer.status_code, answer.json()["code"]) == (409, "worker_too_old")


def test_a_process_of_several_drains_alone_and_is_not_replaced(
    patient: Fleet, run: Callable[..., Any], raw: redis.Redis, namespace: str
) -> None:
    parent = patient.start("p", "--processes", "2", settled=False)
    patient.wait_shared("p-0", "p-1")
    until(lambda: raw.pubsub_numsub(keys.wake(namespace))[0][1] >= 2, "both listen")
    ids = patient.schedule(300, seconds=1)
    drained = run("worker", "drain", "p-0")
    assert (drained.code, drained.out) == (0, "drained p-0\n")
    patient.wait_shared("p-1")
    patient.wait_published(ids)
    assert patient.twice() == [] and "worker_died" not in parent.log
    gone = run("worker", "drain", "p-0")
    assert (gone.code, "worker ls" in gone.err) == (3, True)
    assert "asked p-1\n" == run("worker", "reconnect", "file").out
    until(lambda: len(parent.children()) == 1, "the other process is gone")
    (last,) = parent.children()
    os.kill(last, signal.SIGSTOP)  # it does not hear what it is asked
    try:
        late = run("worker", "drain", "p-1", "--timeout", "300ms")
        assert (late.code, "ask again" in late.err) == (1, True)
    finally:
        os.kill(last, signal.SIGCONT)
    assert parent.wait() == 0  # it heard it late, and was the last
    assert patient.owners() == {}


async def test_a_worker_tells_its_pace(crew: Crew, arrived: Arrived) -> None:
    crew.start()
    await crew.shared("w")

    async def said() -> bool:
        await crew.schedule(1, seconds=1)  # each pace is of the last second
        pace = (await told(crew)).pace
        return bool(pace.published_s and pace.claims_s and pace.claimed)

    await until_async(said, "it has counted")
    pace = (await told(crew)).pace
    assert pace.ahead_ms == 0  # Redis runs on this host

    async def is_confirmed() -> bool:
        return (await told(crew)).pace.unconfirmed == {"memory": 0}

    await until_async(is_confirmed, "all are confirmed")
    await crew.stop()


@pytest.mark.parametrize(
    "said",
    [
        None,
        [],
        "x",
        {"published_s": "1", "ahead_ms": 1.5, "confirm_ms": [], "unconfirmed": {"a": {}}},
    ],
)
async def test_a_pace_that_makes_no_sense_is_none(crew: Crew, said: object) -> None:
    await announce(crew, "odd", pace=said, instance=["x"])
    found = await told(crew, "odd")
    assert (found.pace, found.instance) == (WorkerPace(), "")


async def test_a_clock_that_differs_is_an_alert(crew: Crew) -> None:
    for name, ahead_ms in (("fast", 51), ("slow", -1200), ("right", 50)):
        await announce(crew, name, pace={"ahead_ms": ahead_ms})
    texts = [each.text for each in troubles(await crew.client.stats())]
    assert [text for text in texts if "fast is 51ms" in text]
    assert [text for text in texts if "slow is 1.2s" in text]
    assert not any("right" in text for text in texts)
