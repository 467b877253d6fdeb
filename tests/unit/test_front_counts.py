"""What a front counts, announces and reports of itself, and what operators are told of it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any, cast

import pytest

from delaybridge import Stats
from delaybridge.events import Event, FrontTrouble
from delaybridge.front.announcing import probe
from delaybridge.front.counts import MOST_SHOWN, FrontCounts
from delaybridge.front.opening import Node
from delaybridge.operate.metrics import health
from delaybridge.operate.metrics.catalog import METRICS
from delaybridge.operate.metrics.gauges import gauges_of
from delaybridge.operate.metrics.reader import Reading
from delaybridge.operate.metrics.reports import ProcessReports
from delaybridge.operate.notices import announcements
from delaybridge.operate.notices.announcements import FrontInfo
from delaybridge.operate.troubles.found import troubles
from delaybridge.operate.troubles.fronts import front_faults, fronts
from delaybridge.settings.settings import Settings
from delaybridge.worker.service import ProcessReport
from tests.rigs.waiting import until_async

NOTHING = Stats(0, 0, 0, 0, 0, None, 0, [], [])
AWAY = Reading(error="redis: no answer")
HOSTILE = "\x1b[31m" + 10_000 * "n"


class Clock:
    """A steady clock that moves when told."""

    now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


class Side:
    """A socket that has received so many bytes."""

    def __init__(self, received: int) -> None:
        self.received = received


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def heard() -> list[Event]:
    return []


@pytest.fixture
def counts(clock: Clock, heard: list[Event]) -> FrontCounts:
    return FrontCounts(heard.append, clock)


def announced(counts: FrontCounts) -> FrontInfo:
    """As another process reads it."""
    info = b"0 60000" + json.dumps(counts.announcement()).encode()
    (found,) = announcements.fronts([{b"f": info}, [b"f", b"1000"]], 0)
    return found


def report(counts: FrontCounts) -> ProcessReport:
    return counts.report(ProcessReport())


def test_totals_never_fall_when_connections_close(counts: FrontCounts) -> None:
    one, two = counts.opened("10.0.0.1:1"), counts.opened("10.0.0.2:2")
    one.sides, two.sides = (Side(100), Side(0)), (Side(20), Side(7))
    before = report(counts).totals
    counts.closed(one)
    counts.closed(one)
    assert report(counts).totals == before
    assert before["front_bytes_total", "to_broker"] == 120
    assert before["front_bytes_total", "to_client"] == 7
    assert report(counts).front["front_connections"] == 1
    assert all(len(key) == 1 + len(METRICS[key[0]].labels) for key in before)


def test_who_waits_is_shown_first_and_for_how_long(counts: FrontCounts, clock: Clock) -> None:
    for number in range(2 * MOST_SHOWN):
        counts.opened(f"10.0.0.1:{number}").sides = Side(number), Side(0)
    late = counts.opened(HOSTILE)
    late.product = HOSTILE
    counts.held(late, "declare orders")
    clock.now_s += 12
    assert report(counts).front["front_longest_held_seconds"] == 12
    found = announced(counts)
    assert len(found.clients) == MOST_SHOWN and found.open == 2 * MOST_SHOWN + 1
    assert found.late == [found.clients[0]]
    shown = found.late[0]
    assert (shown["held_for"], shown["held_ms"]) == ("declare orders", 12_000)
    assert "\x1b" not in shown["product"] and len(shown["product"]) < 200
    (fault,) = front_faults(NOTHING._replace(fronts=[found]))
    assert "1 clients wait" in fault.what and "for 12s: declare orders" in fault.what
    assert found.clients[1]["received"] == 2 * MOST_SHOWN - 1
    counts.released(late)
    counts.released(late)
    assert announced(counts).late == []
    ((_, waited),) = report(counts).histograms.items()
    assert (sum(waited.counts), waited.sum) == (1, 12_000)


def test_what_was_refused_is_told_for_ten_minutes(
    counts: FrontCounts, clock: Clock, heard: list[Event]
) -> None:
    for number in range(100):
        counts.method_refused(f"d{number}", 406, "PRECONDITION_FAILED - no")
    counts.client_refused("guest", "10.0.0.1:9: set front.allow_guest")
    counts.client_refused("limit", "1 are connected")
    told = announced(counts).refused
    assert len(told) == 20 and told["d99"] == "406: PRECONDITION_FAILED - no"
    assert told["clients: guest"] == "10.0.0.1:9: set front.allow_guest"
    assert heard[-1] == FrontTrouble(source="clients: limit", reason="1 are connected")
    (well, *doubts) = fronts(NOTHING._replace(fronts=[announced(counts)]))
    assert (well.level, {each.level for each in doubts}) == ("ok", {"WARN"})
    clock.now_s += 601
    assert announced(counts).refused == {}


def test_a_front_without_its_broker_is_not_ready_and_one_without_redis_is(
    counts: FrontCounts, heard: list[Event]
) -> None:
    def obstacles(*fronts: FrontCounts) -> list[str]:
        reports = {str(number): report(each) for number, each in enumerate(fronts)}
        return health.ready(reports, AWAY, patience_s=1).reasons

    assert obstacles(counts) == []
    counts.unreachable("a:5672", "refused")
    counts.reached("b:5672")
    assert obstacles(counts) == []
    assert announced(counts).unreached == "a:5672: refused"
    assert not announced(counts).is_cut_off
    counts.unreachable("b:5672", "no answer")
    assert obstacles(counts) == ["broker node a:5672: refused", "broker node b:5672: no answer"]
    assert announced(counts).is_cut_off
    told = NOTHING._replace(fronts=[announced(counts)])
    (alert,) = [each for each in troubles(told) if each.code.startswith("front_")]
    (fault,) = front_faults(told)
    assert alert.what in fault.what and "a:5672: refused; b:5672: no answer" in alert.text
    other = FrontCounts(heard.append)
    other.reached("b:5672")
    assert obstacles(counts, other) == []
    assert heard[0] == FrontTrouble(source="a:5672", reason="refused")


def test_gauges_of_several_fronts_are_summed(counts: FrontCounts, heard: list[Event]) -> None:
    other = FrontCounts(heard.append)
    for each in (counts, counts, other):
        each.opened("c")
    counts.reached("a:1")
    other.unreachable("a:1", "refused")
    reports = ProcessReports(["f", "g"])
    for name, of in (("f", counts), ("g", other)):
        reports.put(name, report(of))
    found = gauges_of(reports.latest, AWAY)
    assert found["front_connections",] == 3
    assert found["front_node_up", "a:1"] == 0
    assert reports.totals().totals["front_accepted_connections_total",] == 3


@pytest.mark.parametrize("odd", [{}, {"clients": 7, "nodes": 3}, {"clients": [1, {"user": {}}]}])
def test_an_announcement_of_any_shape_is_read(odd: Mapping[str, Any]) -> None:
    info = b"0 60000" + json.dumps(odd).encode()
    (found,) = announcements.fronts([{b"f": info}, [b"f", b"1000"]], 0)
    assert found.name == "f" and not found.is_cut_off and not found.late


def test_a_node_that_is_away_is_logged_once(counts: FrontCounts, heard: list[Event]) -> None:
    for reason in ("refused", "refused", "no answer"):
        counts.unreachable("a:1", reason)
    counts.reached("a:1")
    counts.unreachable("a:1", "no answer")
    reasons = [each.reason for each in heard if isinstance(each, FrontTrouble)]
    assert reasons == ["refused", "no answer", "no answer"]


async def test_a_node_that_closes_connections_at_once_is_away(counts: FrontCounts) -> None:
    """As a balancer does that stands before a node which is down."""
    server = await asyncio.start_server(lambda _, writer: writer.close(), "127.0.0.1", 0)
    node = Node(*server.sockets[0].getsockname()[:2])
    settings, nodes = Settings.load(environ={}), SimpleNamespace(listed=[node])
    front = SimpleNamespace(all_settings=settings, nodes=nodes, counts=counts)
    async with server, asyncio.TaskGroup() as group:
        task = group.create_task(probe(cast(Any, front)))
        await until_async(lambda: counts.nodes, "it is looked at")
        task.cancel()
    assert counts.nodes == {str(node): "it closes connections at once"}
