"""Alerts without a server: their English and their translations."""

from __future__ import annotations

import re
from typing import Any

import msgspec
import pytest

from delaybridge.store.alerts import alerts
from delaybridge.store.announcements import LedgerDrift, WorkerInfo, WorkerPace
from delaybridge.store.damage import Damage
from delaybridge.store.setbacks import Setback
from delaybridge.store.stats import BucketStats, Stats
from delaybridge.store.troubles import Retrying, Trouble
from delaybridge.web.console.look import Look, Looks

NOW_MS = 1_800_000_000_000
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
CASES = {
    "damage": (
        {"damage": (Damage("{ns}:0:due", "is a hash", "DEL it"),)},
        ["damaged: {ns}:0:due is a hash"],
    ),
    "wiped": (
        {"setbacks": [Setback(NOW_MS, "w")]},
        ["the namespace was wiped, seen by w at 2027-01-15T08:00:00.000Z"],
    ),
    "back": (
        {"setbacks": [Setback(NOW_MS, "w", 3, 9, 4, 1200), Setback(1, "v", 2, 9, 4, 2)]},
        [
            "Redis went back to an older state in 2 buckets (bucket 3 from turn 9 to 4), 1,202 "
            "scheduled messages are missing, seen by w at 2027-01-15T08:00:00.000Z"
        ],
    ),
    "same turn": (
        {"setbacks": [Setback(NOW_MS, "w", 3, 4, 4, 2)]},
        [
            "Redis went back to an older state in 1 buckets (bucket 3 at turn 4), 2 "
            "scheduled messages are missing, seen by w at 2027-01-15T08:00:00.000Z"
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
    "alone": (
        {"buckets": [bucket(0), bucket(1, owner=None)]},
        ["1 of 2 buckets have no worker"],
    ),
    "late": ({"overdue_ms": 9000}, ["the oldest waiting message is 9s overdue"]),
    "recurring": ({"recurring_late_ms": 65_000}, ["no recurring message was made for 1m05s"]),
    "trouble": ({"troubles": TROUBLE[:1]}, ["w parks messages to kafka:a refused"]),
    "troubles": ({"troubles": TROUBLE}, ["2 workers park messages to kafka:a refused"]),
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
        ["the clock of w is 51 ms ahead of Redis'", "the clock of v is 60 ms behind Redis'"],
    ),
}


@pytest.mark.parametrize(("wrong", "texts"), CASES.values(), ids=list(CASES))
def test_an_alert_in_english(wrong: dict[str, Any], texts: list[str]) -> None:
    assert [each.text for each in alerts(stats(**wrong))] == texts
    assert [each["text"] for each in Look(stats(**wrong)).tick("en")["alerts"]] == texts


@pytest.mark.parametrize("wrong", [each[0] for each in CASES.values()], ids=list(CASES))
def test_an_alert_in_chinese_has_the_same_values(wrong: dict[str, Any]) -> None:
    found = alerts(stats(**wrong))
    in_chinese = [each["text"] for each in Look(stats(**wrong)).tick("zh")["alerts"]]
    for alert, text in zip(found, in_chinese, strict=True):
        assert re.search("[\u4e00-\u9fff]", text)
        assert all(str(value) in text for value in alert.values.values())


async def test_a_tick_is_made_once_for_all_pages_of_a_language(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    wrong = Look(stats(workers=[worker(HOSTILE, pace=WorkerPace(ahead_ms=70))]))
    looks = Looks(client=None)  # type: ignore[arg-type]

    async def seen() -> Look:
        return wrong

    monkeypatch.setattr(looks, "look", seen)
    english, chinese = await looks.tick("en"), await looks.tick("zh")
    assert await looks.tick("en") is english and await looks.tick("zh") is chinese
    texts = []
    for tick in (english, chinese):
        data = msgspec.json.decode(tick.removeprefix(b"event: tick\ndata: "))
        texts += [each["text"] for each in data["alerts"]]
    assert texts == [
        "the clock of \\x1b[31m\\u202e{worker} <b>%s is 70 ms ahead of Redis'",
        "\\x1b[31m\\u202e{worker} <b>%s 的时钟比 Redis 快 70 毫秒",
    ]
    wrong = wrong._replace(stats=stats())
    assert await looks.tick("en") is not english
