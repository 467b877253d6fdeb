"""Sources of several tenants: their messages may have the same ids."""

from __future__ import annotations

import uuid
from typing import Any

import pytest

from delaybridge.errors import ConfigError
from tests.rigs.ingest import MakeEntrance
from tests.rigs.ingest_kafka import Kafka, until_state
from tests.rigs.ingest_rabbitmq import HOUR_MS, Exchanges, described, reading

TENANTS = ("acme", "beta")
SECOND, HOUR = ("delaybridge-delay", b"1s"), ("delaybridge-delay", b"1h")
ID, CANCEL = ("delaybridge-id", b"invoice-3"), ("delaybridge-cancel", b"true")


async def test_rabbitmq(make_entrance: MakeEntrance, rabbit: Exchanges, namespace: str) -> None:
    acme, beta, nobody = (f"{namespace}-{name}" for name in (*TENANTS, "nobody"))
    for target in (acme, beta, nobody):
        await rabbit.target(target)
    entrance = make_entrance(
        exchanges=[f"{each}.delay" for each in (acme, beta, nobody)],
        tenants=[f"*-{name}.delay={name}" for name in TENANTS],
        share=TENANTS,
        trust=["*=*"],
    )
    entrance.ingest("rabbitmq")
    await reading(entrance, *(f"{each}.delay" for each in (acme, beta, nobody)))
    late = described(HOUR_MS, message_id="invoice-3")
    order: dict[str, Any] = {"headers": {"delaybridge-cancel": True}}
    # Twice the same form: the second one is read by what is known of the first.
    for id in ("invoice-2", "invoice-3"):
        await rabbit.send(f"{acme}.delay", [("k", b"acme", described(HOUR_MS, message_id=id))])
        await rabbit.send(f"{beta}.delay", [("k", b"beta", described(1, message_id=id))])
        await rabbit.send(
            f"{nobody}.delay", [("k", b"", described(HOUR_MS, message_id=f"acme/{id}"))]
        )
    await rabbit.send(
        f"{nobody}.delay", [("k", b"", described(message_id="acme/invoice-3", **order))]
    )
    await entrance.until_dead(3)
    reasons = {message.reason or "" for message in await entrance.dead()}
    assert all(reason.startswith("ingress:bad_id") for reason in reasons)
    found = {message.id for message in await entrance.delayed()}
    assert found == {f"{name}/invoice-{n}" for name in TENANTS for n in (2, 3)}
    await rabbit.send(f"{acme}.delay", [("k", b"other", late), ("k", b"", described(HOUR_MS))])
    await entrance.until_dead(4)
    assert {m.id for m in await entrance.dead()} >= {"acme/invoice-3~1"}
    await rabbit.send(f"{acme}.delay", [("k", b"", described(message_id="invoice-3", **order))])
    await entrance.until_delayed(4)
    entrance.scan()
    for raw in await rabbit.take_raw(beta, 2):
        assert raw.properties["message_id"] == raw.headers["delaybridge-id"]
        assert raw.headers["delaybridge-id"] in ("invoice-2", "invoice-3")
    assert await entrance.client.dead.kick("acme/invoice-3") == "kicked"
    at_once = described(0, message_id="now")
    await rabbit.send(f"{acme}.delay", [("k", b"now", at_once)])
    ids = {raw.headers["delaybridge-id"] for raw in await rabbit.take_raw(acme, 2)}
    assert ids == {"invoice-3~1", "now"}


class TestKafka:
    @pytest.fixture
    def entrance_url(self, kafka_url: str) -> str:
        return kafka_url

    async def test_kafka(self, make_entrance: MakeEntrance, kafka: Kafka, namespace: str) -> None:
        names = {name: f"{namespace}-{name}{uuid.uuid4().hex[:6]}" for name in (*TENANTS, "nobody")}
        delays = {}
        for name, target in names.items():
            await kafka.topic(target)
            delays[name] = await kafka.topic(f"{target}.delay")
        entrance = make_entrance(
            topics=[*delays.values()],
            tenants=[f"{delays[name]}={name}" for name in TENANTS],
            share=TENANTS,
            trust=["*=*"],
        )
        entrance.ingest("kafka")
        for delay in delays.values():
            await until_state(entrance, delay, "reading")
        for name in TENANTS:
            await kafka.send(delays[name], name.encode(), [ID, HOUR])
            await kafka.send(delays[name], b"", [HOUR])
        squat = ("delaybridge-id", b"acme/invoice-3")
        await kafka.send(delays["nobody"], b"x", [squat, HOUR])
        await kafka.send(delays["nobody"], b"x", [squat, CANCEL])
        await kafka.send(delays["nobody"], None, key=b"acme/invoice-3")  # as etf1's clients cancel
        await entrance.until_dead(2)
        await entrance.until_delayed(5)
        entrance.scan()
        (record,) = await kafka.take(names["nobody"], 1)
        assert (record.key, record.value) == (b"acme/invoice-3", None)
        await kafka.send(delays["beta"], b"", [ID, CANCEL])
        await kafka.send(delays["acme"], b"", [ID, SECOND, ("delaybridge-reschedule", b"true")])
        (record,) = await kafka.take(names["acme"], 1)
        assert (record.value, record.own["delaybridge-id"]) == (b"acme", "invoice-3")
        await entrance.until_delayed(2)
        for message in await entrance.delayed():
            tenant, _, rest = message.id.partition("/")
            assert rest.startswith(f"{delays[tenant][:20]}")


async def test_a_source_whose_tenant_is_not_one_is_refused(make_entrance: MakeEntrance) -> None:
    with pytest.raises(ConfigError, match="'acme' is not among tenants: beta"):
        make_entrance(tenants=["a.delay=acme"], share=("beta",))
