"""Publishing over HTTP: a path that hangs or refuses, beside others of its host."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from dataclasses import replace

import pytest

from delaybridge import AsyncClient
from delaybridge.events import CircuitClosed, CircuitOpened
from delaybridge.message import Delivery
from delaybridge.publish import Fault, HttpOptions, PublishOptions, Verdict
from tests.rigs.broker import Sink
from tests.rigs.broker_http import HttpRig
from tests.rigs.crew import CALM, Arrived, Crew
from tests.rigs.waiting import until_async

QUARTER = 16  # of the connections
SOON = HttpOptions(allow_private=True, timeout_s=0.8)
BEYOND_ALL_YEARS = "Mon, 01 Jan 99999999999999999999 00:00:00 GMT"


@pytest.fixture(scope="module")
def broker() -> Iterator[HttpRig]:
    made = HttpRig()
    yield made
    made.close()


@pytest.fixture
async def rig(broker: HttpRig) -> AsyncIterator[HttpRig]:
    async with broker:
        yield broker


def split(sink: Sink, deliveries: list[Delivery]) -> tuple[list[Delivery], list[Delivery]]:
    """Those that were posted, and those that were refused; the fault is the path's."""
    assert {sink.outcomes[one].fault for one in deliveries} == {Fault.DESTINATION}
    unknown = [one for one in deliveries if sink.outcomes[one].verdict is Verdict.UNKNOWN]
    refused = [one for one in deliveries if sink.outcomes[one].verdict is Verdict.REFUSED]
    return unknown, refused


async def test_paths_that_hang_hold_up_no_other_of_their_host(rig: HttpRig) -> None:
    hanging = [rig.node.make(f"hangs-{number}", wait_s=3600) for number in range(12)]
    good = rig.node.make("good")
    async with rig.connected() as (publisher, sink):
        stuck = [one for path in hanging for one in rig.deliveries(rig.destination(path), 20)]
        publisher.publish(stuck)
        for _ in range(3):
            sent = rig.deliveries(rig.destination(good), 60)
            await sink.publish(sent)
            assert sink.verdicts(sent) == {Verdict.CONFIRMED}
        assert not sink.outcomes.keys() & set(stuck)


async def test_paths_whose_answers_never_end_leave_connections_to_others(rig: HttpRig) -> None:
    endless = {"bytes": 2 * 65536, "drip_s": 3600}
    dripping = [rig.node.make(f"drips-{number}", **endless) for number in range(12)]
    async with rig.connected() as (publisher, sink):
        sent = [one for path in dripping for one in rig.deliveries(rig.destination(path), 20)]
        publisher.publish(sent)
        await until_async(lambda: len(sink.outcomes) > 12, "some answers are given up")
        assert publisher._lines.under_way <= 48
        await sink.publish(good := rig.deliveries(rig.destination(rig.node.make("good")), 1))
        assert sink.verdicts(good) == {Verdict.CONFIRMED}


async def test_after_a_time_out_what_waits_for_the_path_is_refused_and_holds_no_connection(
    rig: HttpRig,
) -> None:
    path = rig.node.make("times-out", wait_s=3600)
    async with rig.connected(replace(rig.options, http=SOON)) as (publisher, sink):
        to = rig.destination(path)
        sent = [rig.delivery(to, key=f"{n % 40}".encode()) for n in range(100)]
        await sink.publish(sent)
        unknown, refused = split(sink, sent)
        assert sink.reasons(sent) == {"confirm_timeout"}
        assert not {one.id for one in refused} & {one.id for one in rig.read(path, 0)}
        assert len(unknown) == QUARTER
        probes = [rig.delivery(to, key=one.record.key or b"") for one in sent[:5]]
        await sink.publish(probes)
        unknown, refused = split(sink, probes)
        assert (len(unknown), len(refused)) == (1, 4), "a path that is silent gets one POST"
        rig.node.make(path)
        await sink.confirm_again(rig, to)


async def test_after_503_what_waits_for_the_path_is_refused(rig: HttpRig) -> None:
    path = rig.node.make("overloaded", status=503, wait_s=0.2)
    async with rig.connected() as (publisher, sink):
        sent = rig.deliveries(rig.destination(path), 60)
        await sink.publish(sent)
        unknown, _ = split(sink, sent)
        assert sink.reasons(sent) == {"http_503"}
        assert {one.id for one in unknown} == {one.id for one in rig.read(path, 0)}
        assert len(unknown) < 60


async def test_a_message_that_times_out_while_its_path_answers_others_stops_none_of_them(
    rig: HttpRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def never() -> str:
        return "unreachable: told to"

    path = rig.node.make("poison", wait_s=3600, first=1)
    async with rig.connected(replace(rig.options, http=SOON)) as (publisher, sink):
        to = rig.destination(path)
        stuck = rig.delivery(to)
        monkeypatch.setattr(publisher, "_probe", never)  # nor is the host in doubt
        publisher.publish([stuck])
        await until_async(lambda: rig.node.got(path), "it is posted")
        await sink.publish(rig.deliveries(to, 3))
        await sink.all_of([stuck])
        outcome = sink.outcomes[stuck]
        assert (outcome.verdict, outcome.fault) == (Verdict.UNKNOWN, Fault.MESSAGE)
        await sink.confirm_again(rig, to)
        assert publisher.unavailable is None


@pytest.mark.parametrize("status", [200, 400, 500])
async def test_the_circuit_of_a_path_opens_after_a_time_out_and_closes_once_it_answers(
    rig: HttpRig, redis_url: str, namespace: str, crew: Crew, arrived: Arrived, status: int
) -> None:
    hangs = rig.node.make(f"circuit-{status}", wait_s=3600)
    good = rig.node.make(f"beside-{status}")
    brokers = {"hook": rig.url()}
    http = {"allow_private": True, "timeout_s": 0.4}
    async with AsyncClient(redis_url, namespace=namespace, brokers=brokers) as client:
        crew.start(brokers=brokers, http=http, lease=CALM, retry={"base_ms": 300})
        for number in range(40):
            await client.schedule(f"hook:{hangs}", f"{number}", delay="1ms")

        def heard(kind: type) -> bool:
            labels = [event.destination for event in crew.events if isinstance(event, kind)]
            return f"hook:{hangs}" in labels

        await until_async(lambda: heard(CircuitOpened), "its circuit opens")
        await client.schedule(f"hook:{good}", "x", delay="1ms")
        await until_async(lambda: rig.node.got(good), "the other path gets its message")
        assert len({one["body"] for one in rig.node.got(hangs)}) < 40
        rig.node.make(hangs, status=status)
        await until_async(lambda: heard(CircuitClosed), "it closes, whatever the answer")

        def came() -> bool:
            return len({one["body"] for one in rig.node.got(hangs)}) == 40

        await until_async(came, "all come")


async def test_a_retry_after_beyond_all_years_stops_no_message_of_its_key(
    rig: HttpRig, redis_url: str, namespace: str, crew: Crew, arrived: Arrived
) -> None:
    headers = {"Retry-After": BEYOND_ALL_YEARS}
    path = rig.node.make("beyond", status=429, headers=headers, first=1)
    brokers = {"hook": rig.url()}
    async with AsyncClient(redis_url, namespace=namespace, brokers=brokers) as client:
        crew.start(brokers=brokers, http={"allow_private": True}, lease=CALM)
        for number in range(5):
            await client.schedule(f"hook:{path}", f"{number}", key="K", delay="1ms")
        await until_async(
            lambda: len(rig.node.got(path)) == 6, "each comes, and the first one once more"
        )
    assert len({one["body"] for one in rig.node.got(path)}) == 5


async def test_a_post_that_raises_ends_unknown_and_the_next_of_its_key_goes(
    rig: HttpRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = rig.node.make("raises")
    options = PublishOptions(http=HttpOptions(allow_private=True))
    async with rig.connected(options) as (publisher, sink):
        to = rig.destination(path)
        sent = [rig.delivery(to, key=b"k") for _ in range(3)]
        with monkeypatch.context() as patch:
            patch.setattr(publisher, "_headers", lambda *_: 1 / 0)
            await sink.publish(sent)
        assert sink.verdicts(sent) == {Verdict.UNKNOWN}
        assert sink.reasons(sent) == {"failed"}
        await sink.confirm_again(rig, to)
