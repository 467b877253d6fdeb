"""Alerts without a server: their English, their translations, and which is the worst."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest

from delaybridge.errors import StoreDenied
from delaybridge.operate.notices.announcements import Gone, LedgerDrift, WorkerInfo, WorkerPace
from delaybridge.operate.notices.refused_writes import RefusedWrites
from delaybridge.operate.notices.repairs import Orphans
from delaybridge.operate.troubles.finding import ERROR, SEVERE, WARNING, Finding
from delaybridge.operate.troubles.found import troubles
from delaybridge.operate.views.bucket_counts import BucketStats
from delaybridge.operate.views.facts import Fullness, fullest
from delaybridge.operate.views.retrying import Retrying
from delaybridge.operate.views.stats import Stats
from delaybridge.operate.views.tally import Tally
from delaybridge.operate.views.waiting_on_purpose import Paused
from delaybridge.serve.console.screens.pages import PAGES
from delaybridge.serve.console.snapshot import Snapshot, Snapshots
from delaybridge.store.namespace.damage import Damage
from delaybridge.store.namespace.history_alarm import Setback
from delaybridge.store.namespace.placement import ONE_SERVER
from delaybridge.store.namespace.translatable import Sentence
from delaybridge.store.protocol.record import Trouble
from delaybridge.store.protocol.verbs import RedisCommand

NOW_MS = 1_800_000_000_000
GB = 2**30
HOSTILE = "\x1b[31m\u202e{worker} <b>%s"


def bucket(number: int, **fields: Any) -> BucketStats:
    return BucketStats(number, 0, 0, 0, 0, None, 0, "w", 900)._replace(**fields)


def worker(name: str, **fields: Any) -> WorkerInfo:
    return WorkerInfo(name, "h", 1, "0.1.0", NOW_MS, 16, NOW_MS)._replace(**fields)


def stats(**fields: Any) -> Stats:
    found = Stats(NOW_MS, 0, 0, 0, 0, None, 0, [bucket(0)], [worker("w")])
    return found._replace(**fields)


def unseen(*numbers: int) -> list[BucketStats]:
    return [bucket(n, node="h:1", unseen="refused") for n in numbers]


MANY = [Retrying("kafka:a", "nack", 1234, NOW_MS - 300_000, "nack: 1")]
ONE = [Retrying("kafka:a", "nack", 1, NOW_MS - 300_000, "nack: 1")]
CLOCKS = [worker("w", pace=WorkerPace(ahead_ms=51)), worker("v", pace=WorkerPace(ahead_ms=-60))]
TROUBLE = [Trouble("kafka:a", "refused", name) for name in ("w", "v")]
OLD = [worker("w"), worker("v", version="0.0.9", ledger=LedgerDrift("refused"))]
PAUSED = [Paused(f"kafka:{n}", NOW_MS - 7_500_000 if n else None, Tally(1234, n)) for n in range(5)]
LOST = Orphans(NOW_MS, 1200, 3, 101, 4, 5)
CASES = {
    "damage": (
        {"damage": (Damage("{ns}:0:due", "is a hash", "DEL it"),)},
        ["damaged: {ns}:0:due is a hash: its bucket waits, the others go on"],
    ),
    "wiped": (
        {"setbacks": [Setback(NOW_MS, "w")]},
        ["the namespace was wiped, seen by w at 2027-01-15T08:00:00.000Z"],
    ),
    "back": (
        {"setbacks": [Setback(NOW_MS, "w", 3, 9, 4, 1200), Setback(1, "v", 2, 9, 4, 2)]},
        [
            "Redis went back to an older state in 2 buckets (bucket 3 from turn 9 to 4), at least "
            "1,202 scheduled messages are missing; up to a second of accepted messages is not "
            "counted; seen by w at 2027-01-15T08:00:00.000Z"
        ],
    ),
    "for good": (
        {"setbacks": [Setback(NOW_MS, "w"), Setback(1, "v", 2, 9, rowless=1200)]},
        [
            "the namespace was wiped, seen by w at 2027-01-15T08:00:00.000Z",
            "the ledger does not have, and cannot rebuild: 1,200 messages",
        ],
    ),
    "same turn": (
        {"setbacks": [Setback(NOW_MS, "w", 3, 4, 4, 2)]},
        [
            "Redis went back to an older state in 1 buckets (bucket 3 at turn 4), at least 2 "
            "scheduled messages are missing; up to a second of accepted messages is not counted; "
            "seen by w at 2027-01-15T08:00:00.000Z"
        ],
    ),
    "keys were lost": (
        {"buckets": [bucket(2, orphans=LOST), bucket(0), bucket(5, orphans=LOST)]},
        [
            "keys were lost in buckets 2, 5: 2,400 messages are delayed again, 6 are dead again, "
            "202 were held back, 8 lost their body and are dead, 10 other entries were mended, at "
            "2027-01-15T08:00:00.000Z"
        ],
    ),
    "held back": (
        {"buckets": [bucket(n, orphans=Orphans(waiting=101)) for n in range(12)]},
        [
            "1,212 messages of buckets 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, … were found over an hour "
            "late and are held back"
        ],
    ),
    "unseen": (
        {"buckets": unseen(3)},
        ["h:1 does not answer, its bucket 3 cannot be seen: refused"],
    ),
    "two unseen": (
        {"buckets": unseen(3, 4)},
        ["h:1 does not answer, its buckets 3, 4 cannot be seen: refused"],
    ),
    "many unseen": (
        {"buckets": unseen(*range(12))},
        [
            "h:1 does not answer, its buckets 0, 1, 2, 3, 4, 5, 6, 7, 8, 9 and 2 more cannot be "
            "seen: refused"
        ],
    ),
    "refuses": (  # and so workers fail, and cannot say that they live
        {
            "refused": [RefusedWrites("", "MISCONF")],
            "gone": [Gone("worker", "v", "h", 1, "0.1.0", NOW_MS, NOW_MS)],
            "workers": [worker("w", failing={"series": "MISCONF"})],
        },
        ["Redis takes no writes: MISCONF"],
    ),
    "alone": ({"buckets": [bucket(0), bucket(1, owner=None)]}, ["1 of 2 buckets have no worker"]),
    "late": ({"overdue_ms": 9000}, ["the oldest waiting message is 9s overdue"]),
    "recurring": ({"recurring_late_ms": 65_000}, ["no recurring message was made for 1m05s"]),
    "trouble": ({"troubles": TROUBLE[:1]}, ["messages to kafka:a wait: refused (w)"]),
    "troubles": ({"troubles": TROUBLE}, ["messages to kafka:a wait: refused (w, v)"]),
    "versions": (
        {"workers": OLD},
        ["the ledger does not answer: refused", "workers of different versions: 0.0.9, 0.1.0"],
    ),
    "one": ({"retrying": ONE}, ["1 message to kafka:a failing for 5m: nack: 1"]),
    "many": ({"retrying": MANY}, ["1,234 messages to kafka:a failing for 5m: nack: 1"]),
    "sampled": (
        {"retrying": ONE, "retrying_sampled": True},
        ["1+ messages to kafka:a failing for 5m: nack: 1"],
    ),
    "clocks": (
        {"workers": CLOCKS},
        ["the clock of w is 51ms ahead of Redis'", "the clock of v is 60ms behind Redis'"],
    ),
    "paused": (
        {"paused": PAUSED},
        [
            "kafka:0 is paused, 1,234 messages wait",
            "kafka:1 is paused for 2h05m, ~1,234 messages wait",
            "kafka:2 is paused for 2h05m, ~1,234 messages wait",
            "also paused: 2 more",
        ],
    ),
}


@pytest.mark.parametrize(("wrong", "texts"), CASES.values(), ids=list(CASES))
def test_an_alert_in_english(wrong: dict[str, Any], texts: list[str]) -> None:
    assert [each.what for each in troubles(stats(**wrong))] == texts
    assert [each["text"] for each in Snapshot(stats(**wrong)).tick("en")["alerts"]] == texts


def template(alert: Finding) -> str:
    return alert.said.template if isinstance(alert.said, Sentence) else ""


@pytest.mark.parametrize("wrong", [each[0] for each in CASES.values()], ids=list(CASES))
def test_an_alert_in_chinese_has_the_same_values(wrong: dict[str, Any]) -> None:
    found = troubles(stats(**wrong))
    in_chinese = [each["text"] for each in Snapshot(stats(**wrong)).tick("zh")["alerts"]]
    for alert, text in zip(found, in_chinese, strict=True):
        assert re.search("[\u4e00-\u9fff]", text)
        told = [value for name, value in alert.values.items() if f"{{{name}}}" in template(alert)]
        assert all(str(value) in text for value in told)


@pytest.mark.parametrize("wrong", [each[0] for each in CASES.values()], ids=list(CASES))
def test_an_alert_leads_to_a_page(wrong: dict[str, Any]) -> None:
    fixed = {page.path for page in PAGES}
    for alert in Snapshot(stats(**wrong)).tick("en")["alerts"]:
        path, one = alert["path"].partition("?")[0], alert["path"].removeprefix("/destinations/")
        assert path in fixed or (one != path and not one.endswith("%3A")), alert


@pytest.mark.parametrize(
    ("wrong", "path"),
    [
        ({"setbacks": [Setback(NOW_MS, "w")]}, "/store"),
        ({"troubles": [Trouble("kafka:", "refused", "w")]}, "/destinations/kafka"),
        ({"overdue_ms": 9000, "next_due_ms": NOW_MS - 9000}, "/messages"),
        ({"overdue_ms": 9000, "parked": 3}, "/messages?state=parked"),
        ({"overdue_ms": 9000, "next_due_ms": NOW_MS + 1}, "/in-flight"),
        ({"buckets": unseen(*range(12))}, "/store"),
    ],
)
def test_where_an_alert_leads(wrong: dict[str, Any], path: str) -> None:
    assert Snapshot(stats(**wrong)).tick("en")["alerts"][0]["path"] == path


@pytest.mark.parametrize("dead", [0, 1])
def test_a_refusal_of_which_nothing_is_left_is_no_incident(dead: int) -> None:
    refusal = Trouble("rabbitmq:a", "refuses: exchange_missing: 404", "w")
    (found,) = troubles(stats(troubles=[refusal], dead=dead))
    assert (found.code, found.is_red) == ("exchange_missing", bool(dead))
    assert found.level == ("FAIL" if dead else "WARN")


def test_the_worst_comes_first() -> None:
    wrong = stats(overdue_ms=9000, troubles=TROUBLE, retrying=MANY, paused=PAUSED)
    found = troubles(wrong, memory=Fullness(99, 100))
    levels = [each.trouble.severity for each in found]
    assert levels == [SEVERE, ERROR, ERROR, *[WARNING] * 5]
    assert found[1].text.startswith("Redis uses 99 %")


def test_a_pause_is_named_with_what_ends_it() -> None:
    texts = [each.text for each in troubles(stats(paused=PAUSED[:1]))]
    assert texts == [
        "kafka:0 is paused, 1,234 messages wait. Resume it: delaybridge destination resume kafka:0"
    ]


@pytest.mark.parametrize(
    ("memory", "level", "text"),
    [
        (Fullness(799, 1000), None, ""),
        (
            Fullness(9 * GB // 10 + 1, GB),
            WARNING,
            "Redis uses 90 % of maxmemory (921.6 MB of 1.0 GB)",
        ),
        (Fullness(95, 100, "h:1"), ERROR, "h:1 uses 95 % of maxmemory (95 B of 100 B)"),
        (Fullness(101, 100), ERROR, "Redis uses 101 % of maxmemory (101 B of 100 B)"),
        (None, None, ""),
    ],
)
def test_a_redis_that_is_nearly_full_is_an_alert(
    memory: Fullness | None, level: str | None, text: str
) -> None:
    found = troubles(stats(), memory=memory)
    assert [each.trouble.severity for each in found] == ([level] if level else [])
    assert all(each.text.startswith(f"{text};") for each in found)
    assert all("messages are refused" in each.text for each in found)


def test_a_redis_that_evicts_drops_messages_when_it_is_full() -> None:
    (found,) = troubles(stats(), memory=Fullness(95, 100, drops=True))
    assert found.what.endswith("it drops messages")


class Cluster:
    """Three servers, of which one did not answer lately."""

    def nodes(self) -> Sequence[str]:
        return ["h:1", "h:2", "h:3"]

    def misses(self, key: str = "") -> bool:
        return key == "@h:3"


def answered(placement: Any, *replies: Any) -> Fullness | None:
    steps = fullest(placement)
    asked: list[RedisCommand[Any]] = [*next(steps)]
    assert len(asked) == len(replies)
    with pytest.raises(StopIteration) as ended:
        steps.send([*replies])
    found: Fullness | None = ended.value.value
    return found


def memory(used: int, limit: int, **others: str) -> dict[str, str]:
    return {"used_memory": str(used), "maxmemory": str(limit), **others}


def test_the_fullest_server_counts() -> None:
    assert answered(Cluster(), memory(50, 100), memory(30, 40)) == Fullness(30, 40, "h:2")
    assert answered(Cluster(), memory(50, 100), memory(90, 0)) == Fullness(50, 100, "h:1")
    assert answered(Cluster(), memory(50, 100), StoreDenied("-info")) == Fullness(50, 100, "h:1")
    assert answered(ONE_SERVER, memory(50, 0)) is None
    assert answered(ONE_SERVER, StoreDenied("-info")) is None
    assert answered(ONE_SERVER, {}) is None


def test_what_redis_does_not_count_against_its_limit_is_not_counted() -> None:
    said = memory(90, 100, mem_not_counted_for_evict="20", maxmemory_policy="allkeys-lru")
    assert answered(ONE_SERVER, said) == Fullness(70, 100, drops=True)


async def test_a_tick_is_made_once_for_all_pages_of_a_language(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    wrong = Snapshot(stats(workers=[worker(HOSTILE, pace=WorkerPace(ahead_ms=70))]))
    snapshots = Snapshots(client=None)  # type: ignore[arg-type]

    async def seen() -> Snapshot:
        return wrong

    monkeypatch.setattr(snapshots, "latest", seen)
    english, chinese = await snapshots.tick("en"), await snapshots.tick("zh")
    assert await snapshots.tick("en") is english and await snapshots.tick("zh") is chinese
    texts = []
    for tick in (english, chinese):
        data = msgspec.json.decode(tick.removeprefix(b"event: tick\ndata: "))
        texts += [each["text"] for each in data["alerts"]]
    assert texts == [
        "the clock of \\x1b[31m\\u202e{worker} <b>%s is 70ms ahead of Redis'",
        "\\x1b[31m\\u202e{worker} <b>%s 的时钟比 Redis 快 70ms",
    ]
    wrong = wrong._replace(stats=stats())
    assert await snapshots.tick("en") is not english
