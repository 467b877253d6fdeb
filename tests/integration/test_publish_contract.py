"""What every publisher guarantees, on its real broker.

Faults come from a proxy in front of the broker and from killing the broker's process.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Iterator
from pathlib import Path
from pkgutil import resolve_name
from typing import Any
from unittest.mock import Mock

import pytest

from delaybridge.errors import PublishUnavailable
from delaybridge.message import Delivery, Destination, planned
from delaybridge.publish import CONFIRMED, Fault, Publisher, Verdict
from tests.rigs.broker import DUE_MS, QUICK_S, NetworkRig, Received, Rig, Sink, connect_to, quick
from tests.rigs.broker_http import HttpRig
from tests.rigs.broker_kafka import KafkaRig
from tests.rigs.broker_kombu import KombuAmqpRig, KombuRedisRig
from tests.rigs.broker_memory import MemoryRig
from tests.rigs.broker_rabbitmq import RabbitMQRig
from tests.rigs.broker_redis import RedisRig
from tests.rigs.waiting import DEADLINE_S, until_async

RIGS: dict[str, type[Rig]] = {
    "memory": MemoryRig,
    "rabbitmq": RabbitMQRig,
    "kafka": KafkaRig,
    "redis": RedisRig,
    "http": HttpRig,
    "kombu-redis": KombuRedisRig,
    "kombu-amqp": KombuAmqpRig,
}


REPEATED = {"kombu-amqp"}  # kombu and RabbitMQ, each of which is here


def marked(kinds: Iterable[str]) -> list[Any]:
    return [pytest.param(x, marks=pytest.mark.slow if x in REPEATED else ()) for x in kinds]


def only(*kinds: str) -> pytest.MarkDecorator:
    """Runs the test on these kinds of broker; on the others it would say nothing."""
    return pytest.mark.parametrize("broker", marked(kinds), indirect=True)


ENCODING = only(*(kind for kind in RIGS if kind != "memory"))  # and reached through a network
LIMITED = only(*(kind for kind, rig in RIGS.items() if rig.oversize is not None))
WITH_PASSWORD = only("rabbitmq", "redis", "kombu-redis", "kombu-amqp")
UNDER_LOAD = 50  # messages under way


@pytest.fixture(scope="module", params=marked(RIGS))
def broker(request: pytest.FixtureRequest) -> Iterator[Rig]:
    """Each kind of broker in turn."""
    made = RIGS[request.param]()
    yield made
    made.close()


@pytest.fixture
async def rig(broker: Rig) -> AsyncIterator[Rig]:
    """The broker, running and reachable."""
    async with broker:
        yield broker


class TestEveryPublisher:
    async def test_published_messages_are_confirmed_and_arrive_once_in_order(
        self, rig: Rig
    ) -> None:
        to, other = await rig.new_destination(), await rig.new_destination()
        async with rig.connected() as (publisher, sink):
            deliveries = rig.deliveries(to, 300)
            others = rig.deliveries(other, 10)
            for start in range(0, 300, 30):
                publisher.publish([*deliveries[start : start + 30], others[start // 30]])
            await sink.all_of([*deliveries, *others])
            assert set(sink.outcomes.values()) == {CONFIRMED}
            arrived = await asyncio.to_thread(rig.read, to.address, 300)
            assert in_order(rig, arrived) == in_order(rig, deliveries)
            arrived = await asyncio.to_thread(rig.read, other.address, 10)
            assert in_order(rig, arrived) == in_order(rig, others)
            assert publisher.unavailable is None
            assert sink.changes == [None] if rig.kind != "memory" else sink.changes == []

    async def test_an_empty_body_arrives_empty(self, rig: Rig) -> None:
        to = await rig.new_destination()
        async with rig.connected() as (publisher, sink):
            deliveries = [rig.delivery(to, b""), rig.delivery(to, bytes(range(256)))]
            await sink.publish(deliveries)
            arrived = await asyncio.to_thread(rig.read, to.address, 2)
            assert {one.body for one in arrived} == {b"", bytes(range(256))}

    async def test_added_headers_carry_id_and_attempt(self, rig: Rig) -> None:
        to = await rig.new_destination()
        async with rig.connected() as (publisher, sink):
            one, plain = rig.delivery(to), rig.delivery(to)
            one.given_id, one.attempt = "é-id", 3
            own = Delivery("acme/o/1", planned(plain.record, None, "acme"), to, DUE_MS, 1)
            await sink.publish([one, own])
            arrived = await asyncio.to_thread(rig.read, to.address, 2)
            assert {(a.id, a.attempt) for a in arrived} == {("é-id", 3), ("o/1", 1)}

    async def test_the_same_id_twice_gives_two_messages(self, rig: Rig) -> None:
        to = await rig.new_destination()
        async with rig.connected() as (publisher, sink):
            deliveries = rig.deliveries(to, 4)
            deliveries[2].given_id = deliveries[0].given_id
            await sink.publish(deliveries)
            arrived = await asyncio.to_thread(rig.read, to.address, 4)
            assert sorted(one.body or b"" for one in arrived) == [b"0", b"1", b"2", b"3"]

    @LIMITED
    async def test_a_message_that_is_too_large_is_refused_and_the_others_are_not(
        self, rig: Rig
    ) -> None:
        assert rig.oversize is not None
        to = await rig.new_destination()
        async with rig.connected() as (publisher, sink):
            deliveries = rig.deliveries(to, 9)
            large = rig.delivery(to, bytes(rig.oversize))
            publisher.publish([*deliveries[:4], large, *deliveries[4:]])
            await sink.all_of([large, *deliveries])
            assert sink.verdicts(deliveries) == {Verdict.CONFIRMED}
            assert sink.verdicts([large]) == {Verdict.REFUSED}
            assert sink.reasons([large]) == {rig.oversize_reason}
            assert sink.outcomes[large].fault is Fault.MESSAGE

    @ENCODING
    async def test_a_record_of_another_kind_is_refused_and_the_others_are_not(
        self, rig: Rig
    ) -> None:
        to = await rig.new_destination()
        foreign: Any = b"\x01aV" if rig.kind in ("kafka", "redis", "http") else (("a", b"1"),)
        async with rig.connected() as (publisher, sink):
            deliveries = rig.deliveries(to, 9)
            other = rig.delivery(to, headers=foreign)
            publisher.publish([*deliveries[:4], other, *deliveries[4:]])
            await sink.all_of([other, *deliveries])
            assert sink.verdicts(deliveries) == {Verdict.CONFIRMED}
            assert sink.verdicts([other]) == {Verdict.REFUSED}
            assert sink.reasons([other]) == {"unencodable"}
            assert sink.outcomes[other].fault is Fault.MESSAGE
            assert not sink.outcomes[other].answered, "the broker never saw it"
            assert publisher.unavailable is None

    @ENCODING
    async def test_a_missing_destination_is_refused_and_the_others_go_on(self, rig: Rig) -> None:
        to, missing = await rig.new_destination(), rig.missing_destination()
        async with rig.connected() as (publisher, sink):
            lost, kept = rig.deliveries(missing, 20), rig.deliveries(to, 20)
            publisher.publish([d for pair in zip(lost, kept, strict=True) for d in pair])
            await sink.all_of([*lost, *kept])
            assert sink.verdicts(kept) == {Verdict.CONFIRMED}
            assert sink.verdicts(lost) == {Verdict.REFUSED}
            assert sink.reasons(lost) == {rig.missing_reason}
            assert {sink.outcomes[one].fault for one in lost} == {Fault.MESSAGE}
            is_there = not rig.missing_reason.endswith("_missing")
            assert {sink.outcomes[one].answered for one in lost} == {is_there}
            assert await publisher.check(to) is None
            assert (await publisher.check(missing) or "").startswith(rig.missing_reason)

    @ENCODING
    async def test_a_destination_created_later_is_found(self, rig: Rig) -> None:
        missing = rig.missing_destination()
        async with rig.connected() as (publisher, sink):
            early = rig.deliveries(missing, 1)
            await sink.publish(early)
            await asyncio.to_thread(rig.make, missing.address)
            await sink.confirm_again(rig, missing)

    @pytest.mark.slow_with("kafka")
    async def test_a_broker_stops_and_comes_back(self, rig: Rig) -> None:
        async with rig.connected() as (publisher, sink):
            to = await rig.new_destination()
            before = rig.deliveries(to, 50)
            await sink.publish(before)
            await rig.stop()
            meanwhile = await publish_until_unavailable(rig, publisher, to)
            assert publisher.unavailable is not None
            await sink.all_of(meanwhile)
            assert Verdict.CONFIRMED not in sink.verdicts(meanwhile[-5:])
            refused = rig.deliveries(to, 5)
            await sink.publish(refused)
            assert sink.verdicts(refused) == {Verdict.REFUSED}
            assert {sink.outcomes[one].fault for one in refused} == {Fault.BROKER}
            assert sink.changes[-1] is not None
            await rig.start()
            await until_async(lambda: publisher.unavailable is None, "it is back")
            assert sink.changes[-1] is None
            await sink.confirm_again(rig, to)
            confirmed = {d.id for d, outcome in sink.outcomes.items() if outcome == CONFIRMED}
            read = await asyncio.to_thread(rig.read, to.address, len(confirmed))
            arrived = {one.id for one in read}
            certainly_not = {
                d.id for d, outcome in sink.outcomes.items() if outcome.verdict is Verdict.REFUSED
            }
            assert confirmed <= arrived
            assert not certainly_not & arrived

    async def test_after_a_reset_unconfirmed_messages_are_unknown_at_worst(self, rig: Rig) -> None:
        async with rig.connected() as (publisher, sink):
            to, deliveries = await without_confirms(rig, publisher, sink)
            await rig.lose_confirm(to, 55)
            assert not sink.outcomes.keys() & set(deliveries)
            await rig.reset(publisher)
            await rig.heal(publisher)
            await sink.all_of(deliveries)
            # librdkafka sends them again, and the broker drops duplicates.
            wanted = {Verdict.CONFIRMED} if rig.kind == "kafka" else unconfirmed(rig)
            assert sink.verdicts(deliveries) == wanted
            await sink.confirm_again(rig, to)
            arrived = [one.id for one in await asyncio.to_thread(rig.read, to.address, 10)]
            assert len(arrived) == len(set(arrived))

    @pytest.mark.slow_with("kombu-redis")
    async def test_resets_under_load_lose_no_confirmed_message(self, rig: Rig) -> None:
        async with rig.connected() as (publisher, sink):
            to = await rig.new_destination()
            published: list[Delivery] = []

            def is_for_more() -> bool:
                return len(published) - len(sink.outcomes) < UNDER_LOAD

            for _ in range(5):
                await until_async(lambda: publisher.unavailable is None, "it is back")
                for number in range(20):
                    batch = rig.deliveries(to, 10)
                    published += batch
                    publisher.publish(batch)
                    if number == 10:
                        await rig.reset(publisher)
                    await until_async(is_for_more, "there is room for more")
            await sink.all_of(published)
            by_verdict: dict[Verdict, set[str]] = {verdict: set() for verdict in Verdict}
            for delivery, outcome in sink.outcomes.items():
                by_verdict[outcome.verdict].add(delivery.id)
            assert by_verdict[Verdict.CONFIRMED]
            read = await asyncio.to_thread(rig.read, to.address, len(by_verdict[Verdict.CONFIRMED]))
            arrived = [one.id for one in read]
            assert len(arrived) == len(set(arrived))
            assert by_verdict[Verdict.CONFIRMED] <= set(arrived)
            assert not by_verdict[Verdict.REFUSED] & set(arrived)

    @ENCODING
    async def test_without_confirms_messages_become_unknown_in_time_and_publishing_recovers(
        self, rig: Rig
    ) -> None:
        now_s = asyncio.get_running_loop().time
        to = await rig.new_destination()
        async with (
            rig.connected() as (patient, still),
            rig.connected(quick(rig.options)) as (publisher, sink),
        ):
            await still.publish(rig.deliveries(to, 5))
            # As many as later: who must connect first may not even do that in the same time.
            await sink.confirm_again(rig, to, UNDER_LOAD)
            await rig.swallow_confirms(publisher)
            waiting, deliveries = rig.deliveries(to, 50), rig.deliveries(to, UNDER_LOAD)
            patient.publish(waiting)
            began_s = now_s()
            await sink.publish(deliveries)
            assert now_s() - began_s >= QUICK_S - 0.1
            assert sink.verdicts(deliveries) == unconfirmed(rig)
            assert sink.reasons(deliveries) == {"confirm_timeout"}
            assert not still.outcomes.keys() & set(waiting)
            await rig.heal(publisher)
            await sink.confirm_again(rig)

    async def test_closing_reports_unconfirmed_messages_unknown(self, rig: Rig) -> None:
        async with rig.connected() as (publisher, sink):
            to, deliveries = await without_confirms(rig, publisher, sink)
            await rig.lose_confirm(to, 55)
            await publisher.close(0.3)
            assert sink.verdicts(deliveries) == unconfirmed(rig)
            unknown = [one for one in deliveries if sink.verdicts([one]) == {Verdict.UNKNOWN}]
            assert sink.reasons(unknown) == {"closed"}
            late = rig.deliveries(to, 5)
            await sink.publish(late)
            assert sink.verdicts(late) == {Verdict.REFUSED}
            await rig.heal(publisher)

    async def test_closing_waits_for_the_last_confirm(self, rig: Rig) -> None:
        async with rig.connected() as (publisher, sink):
            deliveries = rig.deliveries(await rig.new_destination(), 200)
            publisher.publish(deliveries)
            await publisher.close(DEADLINE_S)
            assert sink.verdicts(deliveries) == {Verdict.CONFIRMED}

    @ENCODING
    @pytest.mark.slow_with("kafka")
    async def test_connecting_before_the_broker_is_up(self, rig: Rig) -> None:
        assert isinstance(rig, NetworkRig)
        rig.proxy.mode = "refuse"
        publisher, sink = connect_to(rig.kind, rig.url(), rig.options)
        try:
            with pytest.raises(PublishUnavailable, match=f"{rig.kind}: "):
                await publisher.connect()
            refused = rig.deliveries(rig.missing_destination(), 3)
            await sink.publish(refused)
            assert {sink.outcomes[one].fault for one in refused} == {Fault.BROKER}
            rig.proxy.mode = "pass"
            await until_async(lambda: publisher.unavailable is None, "it connects")
            await sink.confirm_again(rig)
        finally:
            await publisher.close(0.0)

    @WITH_PASSWORD
    async def test_a_password_in_a_file_is_read_at_each_connect(
        self, rig: Rig, tmp_path: Path
    ) -> None:
        file = tmp_path / "password"
        file.write_text("wrong\n")
        login = rig.login(file)
        assert login is not None
        url, password = login
        publisher, sink = connect_to(rig.kind, url, rig.options)
        try:
            with pytest.raises(PublishUnavailable) as refused:
                await publisher.connect()
            assert "wrong" not in str(refused.value)
            file.write_text(f"{password}\n")
            await until_async(lambda: publisher.unavailable is None, "logged in")
            to = await rig.new_destination()
            deliveries = rig.deliveries(to, 3)
            await sink.publish(deliveries)
            assert sink.verdicts(deliveries) == {Verdict.CONFIRMED}
            assert password not in publisher.describe()
        finally:
            await publisher.close(0.0)

    @ENCODING
    async def test_whatever_raises_each_delivery_has_an_outcome_and_the_next_ones_are_confirmed(
        self, rig: Rig, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        async with rig.connected() as (publisher, sink):
            for place in rig.raising:
                to = await rig.new_destination()
                owner, _, name = place.rpartition(".")
                with monkeypatch.context() as patch:
                    raising = Mock(side_effect=RuntimeError("told to"))
                    patch.setattr(resolve_name(owner), name, raising)
                    await sink.publish(rig.deliveries(to, 20))
                assert raising.called, place
                await sink.confirm_again(rig, to)

    async def test_it_describes_itself(self, rig: Rig) -> None:
        async with rig.connected() as (publisher, _):
            assert rig.kind in publisher.describe().lower()
            assert "guest:guest" not in publisher.describe()


def in_order(rig: Rig, messages: Iterable[Delivery | Received]) -> list[str]:
    """Their ids, in the order that the kind of broker promises."""
    ids = [one.id for one in messages]
    return ids if rig.is_ordered else sorted(ids)


def unconfirmed(rig: Rig) -> set[Verdict]:
    """The verdicts of a batch when the confirms stop; unwritten messages are refused."""
    return {Verdict.UNKNOWN} if rig.is_pipelined else {Verdict.UNKNOWN, Verdict.REFUSED}


async def without_confirms(
    rig: Rig, publisher: Publisher, sink: Sink
) -> tuple[Destination, list[Delivery]]:
    """Fifty messages whose confirms are lost, to a destination that has confirmed five."""
    to = await rig.new_destination()
    await sink.publish(rig.deliveries(to, 5))
    await rig.swallow_confirms(publisher)
    deliveries = rig.deliveries(to, 50)
    publisher.publish(deliveries)
    return to, deliveries


async def publish_until_unavailable(
    rig: Rig, publisher: Publisher, to: Destination
) -> list[Delivery]:
    """Publish small batches until the publisher notices that its broker is gone."""
    published: list[Delivery] = []

    def another() -> bool:
        batch = rig.deliveries(to, 5)
        published.extend(batch)
        publisher.publish(batch)
        return publisher.unavailable is not None

    await until_async(another, "the publisher knows")
    return published
