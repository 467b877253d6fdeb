"""002-16: several workers are faster than one, as they wait for nothing that they share."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from delaybridge.scan.lanes.flow import FIRST
from tests.rigs.crew import CALM, Arrived, Crew
from tests.rigs.waiting import until_async


@pytest.mark.parametrize("names", [["a"], ["a", "b", "c", "d"]], ids=len)
async def test_each_worker_has_as_many_messages_with_a_slow_broker_as_one_alone(
    crew: Crew, arrived: Arrived, names: Sequence[str]
) -> None:
    """So four deliver four times as many in the time that the broker takes to confirm."""
    for name in names:
        crew.start(name, lease=CALM)
    await crew.shared(*names)
    assert len(arrived.brokers) == len(names)
    for broker in arrived.brokers:
        broker.hold = True
    ids = await crew.schedule(5 * FIRST, seconds=0.001)

    def with_broker() -> list[int]:
        return [len(broker.held) for broker in arrived.brokers]

    await until_async(lambda: min(with_broker()) >= 7 * FIRST // 8, lambda: f"{with_broker()}")
    assert max(with_broker()) <= FIRST
    for broker in arrived.brokers:
        broker.hold = False
        broker.confirm()
    await arrived.all(ids)
    assert arrived.twice == []
