"""The RabbitMQ publisher alone: bytes on the wire, returns, alarms, nacks, rights, poison, TLS."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator

import pytest

from delaybridge.amqp.encoding import encode_table
from delaybridge.errors import PublishUnavailable
from delaybridge.message import Destination
from delaybridge.publish import CONFIRMED, Fault, PublishOptions, Verdict
from delaybridge.publish.rabbitmq import exchange
from tests.rigs.broker_rabbitmq import MAX_MESSAGE_BYTES, RabbitMQRig
from tests.rigs.waiting import until_async
from tests.servers.process import LOOPBACK


@pytest.fixture
async def rig() -> AsyncIterator[RabbitMQRig]:
    """A private RabbitMQ, running and reachable."""
    async with RabbitMQRig() as rig:
        yield rig


def to_queue(name: str) -> Destination:
    """A queue, reached by the default exchange."""
    return Destination("rabbitmq", "rabbitmq", "", name)


NOWHERE = "unroutable: 312 NO_ROUTE, no queue is named 'nobody'"


class TestRefusals:
    async def test_returned_messages_are_told_apart_inside_a_window(self, rig: RabbitMQRig) -> None:
        to = await rig.new_destination()
        nowhere = to._replace(routing_key="nobody")
        async with rig.connected() as (publisher, sink):
            deliveries = [rig.delivery(nowhere if n % 3 == 0 else to) for n in range(2000)]
            await sink.publish(deliveries)
            lost, kept = deliveries[::3], [d for n, d in enumerate(deliveries) if n % 3]
            assert sink.verdicts(kept) == {Verdict.CONFIRMED}
            assert {sink.outcomes[one].reason for one in lost} == {
                NOWHERE.replace("named", "bound with key")
            }
            assert {sink.outcomes[one].fault for one in lost} == {Fault.MESSAGE}
            arrived = await asyncio.to_thread(rig.read, to.address, len(kept))
            assert [one.id for one in arrived] == [one.id for one in kept]

    async def test_a_missing_queue_is_unroutable(self, rig: RabbitMQRig) -> None:
        async with rig.connected() as (publisher, sink):
            one = rig.delivery(to_queue("nobody"))
            await sink.publish([one])
            assert sink.outcomes[one].reason == NOWHERE
            reason = await publisher.check(one.destination)
            assert reason is not None and reason.startswith("queue_missing: 404")

    async def test_a_returned_header_that_pika_cannot_read_does_no_harm(
        self, rig: RabbitMQRig
    ) -> None:
        async with rig.connected() as (publisher, sink):
            odd = b"\x01tT" + (1_700_000_000_000).to_bytes(8, "big")
            one = rig.delivery(to_queue("nobody"), headers=odd)
            await sink.publish([one])
            assert sink.reasons([one]) == {"unroutable"}
            assert sink.changes == [None]

    async def test_headers_larger_than_a_frame_are_refused_before_they_are_written(
        self, rig: RabbitMQRig
    ) -> None:
        to = await rig.new_destination()
        async with rig.connected() as (publisher, sink):
            large = rig.delivery(to, headers=encode_table([("h", b"x" * 130_990)]))
            small = rig.delivery(to, headers=encode_table([("h", b"x" * 130_000)]))
            await sink.publish([large, small])
            assert sink.reasons([large]) == {"headers_too_large"}
            assert sink.outcomes[small] == CONFIRMED

    async def test_a_poison_message_is_found_and_the_others_get_through(
        self, rig: RabbitMQRig
    ) -> None:
        to = await rig.new_destination()
        async with rig.connected() as (publisher, sink):
            warm = rig.deliveries(to, 1)
            await sink.publish(warm)
            deliveries = rig.deliveries(to, 200)
            # The broker's limit is lower than the default that the publisher checks.
            poison = deliveries[100] = rig.delivery(to, bytes(MAX_MESSAGE_BYTES + 1))
            await sink.publish(deliveries)
            first = dict(sink.outcomes)
            assert first[poison].verdict is Verdict.UNKNOWN
            assert first[poison].reason.startswith("channel_closed: 406 PRECONDITION_FAILED")
            assert Verdict.REFUSED not in {outcome.verdict for outcome in first.values()}
            again = [d for d in deliveries if first[d].verdict is Verdict.UNKNOWN]
            for one in again:
                del sink.outcomes[one]
            await sink.publish(again)
            assert sink.outcomes[poison].verdict is Verdict.REFUSED
            assert sink.reasons([poison]) == {"precondition_failed"}
            assert sink.verdicts([d for d in again if d is not poison]) == {Verdict.CONFIRMED}

    async def test_a_deleted_exchange_is_noticed(self, rig: RabbitMQRig) -> None:
        to = await rig.new_destination()
        async with rig.connected() as (publisher, sink):
            await sink.publish(rig.deliveries(to, 100))
            with rig.channel() as channel:
                channel.exchange_delete(to.address)
            window = rig.deliveries(to, 100)
            await sink.publish(window)
            assert sink.verdicts(window) == {Verdict.UNKNOWN}
            assert sink.reasons(window) == {"channel_closed"}
            late = rig.deliveries(to, 100)
            await sink.publish(late)
            assert sink.verdicts(late) == {Verdict.REFUSED}
            assert sink.reasons(late) == {"exchange_missing"}

    async def test_a_full_queue_that_rejects_is_unknown(self, rig: RabbitMQRig) -> None:
        name = f"full-{uuid.uuid4().hex}"
        with rig.channel() as channel:
            arguments = {"x-max-length": 1, "x-overflow": "reject-publish"}
            channel.queue_declare(name, durable=True, arguments=arguments)
        async with rig.connected() as (publisher, sink):
            deliveries = [rig.delivery(to_queue(name)) for _ in range(10)]
            await sink.publish(deliveries)
            assert Verdict.REFUSED not in sink.verdicts(deliveries)
            nacked = [d for d in deliveries if sink.outcomes[d] != CONFIRMED]
            assert len(nacked) >= 8
            assert sink.verdicts(nacked) == {Verdict.UNKNOWN}
            assert sink.reasons(nacked) == {"nacked"}

    async def test_an_exchange_that_exists_is_not_behind_those_that_were_refused(
        self, rig: RabbitMQRig, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(exchange, "MISSING_TTL_S", 0.0)
        missing = [rig.missing_destination() for _ in range(200)]
        to = await rig.new_destination()
        async with rig.connected() as (publisher, sink):
            refused = [rig.delivery(nowhere) for nowhere in missing]
            await sink.publish(refused)
            assert sink.reasons(refused) == {"exchange_missing"}
            again = [rig.delivery(nowhere) for nowhere in missing]
            good = rig.delivery(to)
            publisher.publish([*again, good])
            await sink.all_of([good])
            assert sink.outcomes[good] == CONFIRMED
            assert sum(one in sink.outcomes for one in again) < 100
            await sink.all_of(again)
            assert sink.reasons(again) == {"exchange_missing"}


class TestChannels:
    async def test_a_channel_that_is_opened_again_counts_its_confirms_from_one(
        self, rig: RabbitMQRig, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(exchange, "MAX_CHANNELS", 3)
        first = await rig.new_destination()
        others = [await rig.new_destination() for _ in range(4)]
        full = f"full-{uuid.uuid4().hex}"
        with rig.channel() as channel:
            arguments = {"x-max-length": 1, "x-overflow": "reject-publish"}
            channel.queue_declare(full, durable=True, arguments=arguments)
            channel.queue_bind(full, first.address, full)
        rejecting = first._replace(routing_key=full)
        async with rig.connected() as (publisher, sink):
            for to in [rejecting, *[first] * 4, *others]:
                await sink.publish([rig.delivery(to)])
            rejected = [rig.delivery(rejecting) for _ in range(5)]
            good = [rig.delivery(first) for _ in range(20)]
            await sink.publish([*rejected, *good])
            assert sink.reasons(rejected) == {"nacked"}
            assert sink.verdicts(good) == {Verdict.CONFIRMED}

    async def test_few_channels_are_shared_by_many_exchanges(self, rig: RabbitMQRig) -> None:
        exchanges = [await rig.new_destination() for _ in range(9)]
        async with rig.connected(url=f"{rig.url()}?channel_max=8") as (publisher, sink):
            sent = [rig.delivery(to) for _ in range(2) for to in exchanges]
            for one in sent:
                await sink.publish([one])
            assert sink.verdicts(sent) == {Verdict.CONFIRMED}


class TestRights:
    @pytest.fixture
    async def user(self, rig: RabbitMQRig) -> str:
        """A user that may write only to exchanges `open-...`, there not with every routing key."""
        name = f"u-{uuid.uuid4().hex[:8]}"

        def make() -> None:
            rig.node.ctl("add_user", name, "pass")
            rig.node.ctl("set_permissions", name, "^$", "^open-", "^$")

        await asyncio.to_thread(make)
        return name

    @pytest.mark.slow
    async def test_an_exchange_without_the_right_to_write_is_refused(
        self, rig: RabbitMQRig, user: str
    ) -> None:
        to = await rig.new_destination()
        async with rig.connected(url=rig.url().replace("guest:guest", f"{user}:pass")) as (
            publisher,
            sink,
        ):
            deliveries = rig.deliveries(to, 100)
            await sink.publish(deliveries)
            assert sink.verdicts(deliveries) == {Verdict.REFUSED}
            assert sink.reasons(deliveries) == {"access_refused"}
            assert {sink.outcomes[one].fault for one in deliveries} == {Fault.DESTINATION}
            assert publisher.unavailable is None

    async def test_a_routing_key_without_the_right_to_write_is_that_message_s_fault(
        self, rig: RabbitMQRig, user: str
    ) -> None:
        exchange = f"open-{uuid.uuid4().hex}"
        with rig.channel() as channel:
            channel.exchange_declare(exchange, "topic", durable=True)
            channel.queue_declare(exchange, durable=True)
            channel.queue_bind(exchange, exchange, "#")
        await asyncio.to_thread(
            rig.node.ctl, "set_topic_permissions", user, exchange, "^allowed", "^$"
        )
        to = Destination("rabbitmq", "rabbitmq", exchange, "allowed.a")
        async with rig.connected(url=rig.url().replace("guest:guest", f"{user}:pass")) as (
            publisher,
            sink,
        ):
            good, bad = rig.deliveries(to, 3), rig.delivery(to._replace(routing_key="no"))
            await sink.publish([bad, *good])
            assert sink.outcomes[bad].verdict is Verdict.REFUSED
            assert sink.outcomes[bad].fault is Fault.MESSAGE
            assert sink.verdicts(good) == {Verdict.CONFIRMED}

    async def test_a_wrong_password_is_not_shown(self, rig: RabbitMQRig) -> None:
        refused = "login_refused: the broker refused user guest$"
        with pytest.raises(PublishUnavailable, match=refused):
            async with rig.connected(url=rig.url().replace("guest:guest", "guest:s3cret")):
                pass

    async def test_a_vhost_that_is_missing_is_named(self, rig: RabbitMQRig) -> None:
        with pytest.raises(PublishUnavailable, match="vhost_refused: vhost nope not found$"):
            async with rig.connected(url=rig.url().replace("%2F", "nope")):
                pass


class TestAlarm:
    async def test_a_memory_alarm_makes_the_broker_unavailable_until_it_ends(
        self, rig: RabbitMQRig, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        # rabbitmqctl may take longer than that: then one message would go, and nine wait.
        monkeypatch.setattr(exchange, "PROOF_TTL_S", 300.0)
        to = await rig.new_destination()
        options = PublishOptions(confirm_timeout_s=300, blocked_connection_timeout_s=300)
        async with rig.connected(options) as (publisher, sink):
            await sink.publish(rig.deliveries(to, 10))
            await asyncio.to_thread(rig.node.ctl, "set_vm_memory_high_watermark", "0.00000001")
            caught = rig.deliveries(to, 10)
            publisher.publish(caught)
            await until_async(lambda: publisher.unavailable is not None, "blocked")
            assert publisher.unavailable == "blocked: low on memory"
            assert sink.changes == [None, "blocked: low on memory"]
            refused = rig.deliveries(to, 10)
            await sink.publish(refused)
            assert sink.verdicts(refused) == {Verdict.REFUSED}
            assert {sink.outcomes[one].fault for one in refused} == {Fault.BROKER}
            await asyncio.to_thread(rig.node.ctl, "set_vm_memory_high_watermark", "0.6")
            await until_async(lambda: publisher.unavailable is None, "unblocked")
            await sink.all_of(caught)
            assert sink.verdicts(caught) == {Verdict.CONFIRMED}

    @pytest.mark.slow
    async def test_messages_are_unknown_after_a_long_alarm(self, rig: RabbitMQRig) -> None:
        to = await rig.new_destination()
        options = PublishOptions(
            confirm_timeout_s=20.0, heartbeat_s=5, blocked_connection_timeout_s=1.0
        )
        async with rig.connected(options) as (publisher, sink):
            await sink.publish(rig.deliveries(to, 10))
            await asyncio.to_thread(rig.node.ctl, "set_vm_memory_high_watermark", "0.00000001")
            try:
                caught = rig.deliveries(to, 10)
                await sink.publish(caught)
                assert sink.verdicts(caught) == {Verdict.UNKNOWN}
                assert sink.reasons(caught) == {"connection_lost"}
            finally:
                await asyncio.to_thread(rig.node.ctl, "set_vm_memory_high_watermark", "0.6")


class TestConnection:
    async def test_a_late_ack_confirms_nothing(self, rig: RabbitMQRig) -> None:
        """After a confirm timeout the publisher uses another channel of the same connection."""
        to = await rig.new_destination()
        options = PublishOptions(confirm_timeout_s=1.0, heartbeat_s=20)
        async with rig.connected(options) as (publisher, sink):
            await sink.publish(rig.deliveries(to, 5))
            # Hold everything for longer than the timeout, then let it through at once.
            rig.proxy.mode = "hold_down"
            held = rig.deliveries(to, 5)
            publisher.publish(held)
            await sink.all_of(held)
            assert sink.reasons(held) == {"confirm_timeout"}
            rig.proxy.mode = "pass"
            again = await sink.confirm_again(rig, to)
            assert sink.changes == [None]
            arrived = await asyncio.to_thread(rig.read, to.address, 10 + len(again))
            assert len(arrived) == 10 + len(again)

    async def test_each_message_ends_once_though_the_connection_is_lost_while_channels_open(
        self, rig: RabbitMQRig
    ) -> None:
        to = await rig.new_destination()
        async with rig.connected() as (publisher, sink):
            many = [rig.delivery(rig.missing_destination()) for _ in range(300)]
            publisher.publish(many)
            await until_async(lambda: len(sink.outcomes) > 0, "some are refused")
            rig.proxy.reset()
            await sink.all_of(many)
            assert sink.verdicts(many) == {Verdict.REFUSED}, "none of them was written"
            assert sink.reasons(many) == {"exchange_missing", "connection_lost"}
            await until_async(lambda: publisher.unavailable is None, "it connects again")
            again = [rig.delivery(one.destination) for one in many[-5:]]
            await sink.publish(again)
            assert sink.reasons(again) == {"exchange_missing"}
            await sink.confirm_again(rig, to)

    async def test_tls_verifies_the_broker(self, rig: RabbitMQRig) -> None:
        tls = rig.node.tls
        to = await rig.new_destination()
        async with rig.connected(url=tls.trusting) as (publisher, sink):
            deliveries = rig.deliveries(to, 1000)
            await sink.publish(deliveries)
            assert sink.verdicts(deliveries) == {Verdict.CONFIRMED}
            assert "TLS" in publisher.describe() and "no TLS" not in publisher.describe()
        with pytest.raises(PublishUnavailable, match="CERTIFICATE_VERIFY_FAILED"):
            async with rig.connected(url=tls.url):
                pass
        with pytest.raises(PublishUnavailable, match="(?i)mismatch"):
            elsewhere = tls.trusting.replace(LOOPBACK, "localhost", 1)
            async with rig.connected(url=elsewhere):
                pass
