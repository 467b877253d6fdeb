"""What the command line refuses, and an unreachable Redis: exit code, code and field."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from delaybridge.errors import ConfigError
from delaybridge.operate.cli.processes import scan
from delaybridge.settings.settings import Settings
from tests.rigs.command_line import Run

NOWHERE = ("--redis", "redis://127.0.0.1:1/0")
CANARY = "S3CR3T-CANARY-88"
KAFKA, RABBIT = {"kafka": "kafka://127.0.0.1:1"}, {"rabbitmq": "amqp://127.0.0.1:1"}
WHEN = ("--in", "5m")


TIMES: list[tuple[str, str]] = [
    *(("--in", bad) for bad in ("", "5", "5 s", " 5s", "5s\n", "1_000s", "٥s", "0x10s", "+5s")),
    *(("--in", bad) for bad in ("1e3s", "NaN", "Infinity", "-1s", "9" * 10_000, "tomorrow")),
    *(("--in", bad) for bad in ("* * * * *", "5x", "1.0001ms", "20000d", "true", "PT", "5S")),
    *(("--at", bad) for bad in ("", "5", "2030-01-01T00:00:00", "2024-02-30T00:00:00Z")),
    *(("--at", bad) for bad in ("2030-01-01T24:00:00Z", "2030-01-01T00:00:60Z", "tomorrow")),
    *(("--at", bad) for bad in ("2030-W01-1", "20300101T000000Z", "9999-12-31T23:59:59-14:00")),
    *(("--at", bad) for bad in ("3000-01-01T00:00:00Z", "1970-01-01T00:00:00Z", "1795197600450")),
    ("--ttl", "5"),
]


@pytest.mark.parametrize(("flag", "value"), TIMES, ids=lambda v: v[:30])
def test_times_refused(run: Run, flag: str, value: str) -> None:
    when = (flag, value) if flag != "--ttl" else (*WHEN, flag, value)
    result = run("--json", *NOWHERE, "schedule", "kafka:t", "x", *when)
    assert (result.code, result.out, result.error["field"]) == (2, "", flag)
    assert len(result.error["message"]) < 400


@pytest.mark.parametrize(
    ("args", "field"),
    [
        (("nope:t", "x"), "destination"),
        (("", "x"), "destination"),
        (("kafka", "x"), "destination"),
        (("https://evil/", "x"), "destination"),
        (("kafka:..", "x"), "destination"),
        (("rabbitmq:x", "x"), "destination"),
        (("kafka:t", "x", "--id", ""), "id"),
        (("kafka:t", "x", "--id", "a\x1b[31m"), "id"),
        (("kafka:t", "x", "--id", "x" * 256), "id"),
        (("kafka:t", "x", "--id", "\udcff\udcfe"), "id"),
        (("kafka:t", "x", "--priority", "-1"), "priority"),
        (("kafka:t", "x", "--priority", "256"), "priority"),
        (("kafka:t", "x", "-H", "=v"), "headers"),
        (("kafka:t", "x", "-H", "delaybridge-foo=v"), "headers"),
        (("kafka:t", "x", *["-H", "a=b"] * 65), "headers"),
        (("rabbitmq:/q", "x", "-P", "nonsense=1"), "properties"),
        (("rabbitmq:/q", "x", "-P", "delivery_mode=7"), "delivery_mode"),
        (("rabbitmq:/q", "x", "-P", "expiration=abc"), "expiration"),
        (("kafka:t", "x", "-P", "partition=-5"), "partition"),
        (("kafka:t", "x" * 262_145), "body"),
        (("rabbitmq:/q", "x", "-P", f"timestamp={'9' * 5000}"), "-P"),
    ],
)
def test_messages_refused(run: Run, args: tuple[str, ...], field: str) -> None:
    result = run("--json", *NOWHERE, "schedule", *WHEN, *args)
    assert (result.code, result.out, result.error["field"]) == (2, "", field)
    assert "\x1b" not in result.error["message"]
    result.error["message"].encode()


@pytest.mark.usefixtures("impatient")
def test_all_ids_are_checked_before_anything_is_done(run: Run) -> None:
    result = run("--json", *NOWHERE, "message", "cancel", "--yes", "good", "b\x07d")
    assert (result.code, result.out, result.error["code"]) == (2, "", "bad_id")


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize(
    "args",
    [
        ("schedule", "kafka:t", "x", *WHEN),
        ("message", "ls"),
        ("message", "show", "x"),
        ("message", "cancel", "x"),
        ("dead", "kick", "x"),
        ("stats",),
        ("worker", "ls"),
        ("bucket", "ls"),
        ("health",),
    ],
    ids=" ".join,
)
def test_an_unreachable_redis_is_named_without_its_password(
    run: Run, args: tuple[str, ...]
) -> None:
    result = run("--json", "--redis", f"redis://:{CANARY}@127.0.0.1:1/0", *args)
    assert (result.code, result.out) == (5, "")
    assert (result.error["code"], result.error["field"]) == ("store_unavailable", "redis")
    assert "redis://:***@127.0.0.1:1/0" in result.error["message"]
    assert CANARY not in result.err


@pytest.mark.usefixtures("impatient")
def test_verbose_names_the_causes_and_keeps_the_secret(run: Run) -> None:
    result = run("-v", "--redis", f"redis://:{CANARY}@127.0.0.1:1/0", "stats")
    assert "caused by: ConnectionRefusedError" in result.err
    assert CANARY not in result.err


@pytest.mark.parametrize(
    ("args", "code", "field"),
    [
        ("message show \udcff\udcfe", "bad_id", "id"),
        ("message ls --cursor 1:\udcff", "bad_cursor", "--cursor"),
        ("ingest kafka --topic \udcff.delay", "config", "--topic"),
        (f"ingest rabbitmq --exchange {'x' * 300}.delay", "config", "--exchange"),
        ("ingest rabbitmq --exchange \udcff.delay", "config", "--exchange"),
        ("ingest rabbitmq --exchange a.delay --name \udcff", "config", "--name"),
        ("scan --name \udcff", "config", "--name"),
    ],
)
def test_names_that_are_no_text_are_refused_before_anything_starts(
    run: Run, args: str, code: str, field: str
) -> None:
    brokers = ["--broker", "amqp://127.0.0.1:1", "--broker", "kafka://127.0.0.1:1"]
    refused = run("--json", *NOWHERE, *brokers, *args.split(" "))
    assert (refused.code, refused.out) == (2, "")
    assert refused.error["code"] == code
    assert refused.error["message"].startswith(f"{field}: ")


@pytest.mark.parametrize("brokers", [(), ("--broker", "kafka://127.0.0.1:1")])
def test_ingest_without_delay_topics_is_refused_though_no_cluster_answers(
    run: Run, monkeypatch: pytest.MonkeyPatch, brokers: tuple[str, ...]
) -> None:
    monkeypatch.setattr(scan, "_ASK_S", 0.01)
    refused = run("--json", *NOWHERE, *brokers, "ingest", "kafka")
    assert (refused.code, refused.out) == (2, "")
    assert (refused.error["code"], refused.error["field"]) == ("config", "ingest.topics")
    assert "--topic" in refused.error["message"] and "read:" not in refused.error["message"]


@pytest.mark.parametrize(
    ("flags", "count", "warns"),
    [
        ({"brokers": KAFKA}, 0, True),
        ({"brokers": KAFKA | RABBIT, "ingest": {"exchanges": ["a.delay"]}}, 1, True),
        ({"brokers": KAFKA, "ingest": {"topics": ["a.delay", "b*.delay"]}}, 2, False),
        ({"brokers": RABBIT, "ingest": {"exchanges": ["a.delay"]}}, 1, False),
    ],
)
def test_a_scan_with_ingest_reads_what_is_named_and_warns_of_delay_topics_only(
    flags: dict[str, Any], count: int, warns: bool
) -> None:
    told: list[str] = []
    call: Any = SimpleNamespace(note=told.append)
    assert len(scan._routes(call, Settings.load(None, flags, environ={}))) == count
    assert [line.split(":")[1] for line in told] == [" ingest.topics"] * warns


def test_a_scan_with_ingest_of_rabbitmq_alone_needs_an_exchange() -> None:
    call: Any = None
    with pytest.raises(ConfigError, match="ingest.exchanges"):
        scan._routes(call, Settings.load(None, {"brokers": RABBIT}, environ={}))
