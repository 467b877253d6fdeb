"""A broker cannot route: messages are dead with a reason, others are on time, a kick delivers."""

from __future__ import annotations

from tests.rigs.bridge import Bridge, MakeBridge, rabbitmq_channel
from tests.rigs.history import late_ms, percentile
from tests.rigs.stall import Stall
from tests.rigs.waiting import until

QUICK_RETRY = {
    "DELAYBRIDGE_RETRY__MAX_ATTEMPTS": "3",
    "DELAYBRIDGE_RETRY__BASE_MS": "100",
}


def check_nothing_lost(bridge: Bridge) -> None:
    verdict = bridge.verdict()
    assert not verdict.lost
    assert not verdict.early
    assert not verdict.changed


def test_messages_without_an_exchange_or_a_route_are_buried_and_others_are_on_time(
    make_bridge: MakeBridge, rabbitmq_url: str, namespace: str, stall: Stall
) -> None:
    # given three destinations: one works, one exchange will be deleted, one has no binding
    bridge = make_bridge({"rabbitmq": rabbitmq_url}, settings=QUICK_RETRY)
    fine = bridge.rabbitmq_queue(f"{namespace}-fine")
    gone = bridge.rabbitmq_queue(f"{namespace}-gone", consume=False)
    with rabbitmq_channel(rabbitmq_url) as channel:
        channel.exchange_declare(f"{namespace}-unbound", "topic", durable=True)
    unbound = f"rabbitmq:{namespace}-unbound/key"
    bridge.start_workers(2)
    before = {*bridge.schedule(fine, 200, seconds=1)}
    meanwhile = {*bridge.schedule(fine, 1_000, seconds=3, first_s=1.5)}
    going = bridge.schedule(gone, 300, seconds=2, first_s=2.5)
    lost_ids = bridge.schedule(unbound, 300, seconds=3, first_s=1.5)
    # when the exchange is deleted under load
    with rabbitmq_channel(rabbitmq_url) as channel:
        channel.exchange_delete(f"{namespace}-gone")
    bridge.wait_delivered()
    # then nothing is lost: these messages are dead with a reason, and the others were on time
    check_nothing_lost(bridge)
    assert set(lost_ids) | set(going) == bridge.dead()
    assert "unroutable" in (bridge.client.get(lost_ids[0]).reason or "")
    assert "exchange" in (bridge.client.get(going[0]).reason or "")
    assert bridge.client.get(lost_ids[0]).attempts == 3
    late, calm = (
        percentile(late_ms(bridge.deliveries(), ids), 0.99) for ids in (meanwhile, before)
    )
    assert late < calm + 1000 + stall.worst_ms
    # and when the exchange is back, a kick delivers them
    bridge.rabbitmq_queue(f"{namespace}-gone")
    for id in going:
        assert bridge.client.kick(id) == "kicked"
    until(lambda: {d.id for d in bridge.deliveries()} >= set(going), interval_s=0.2)
