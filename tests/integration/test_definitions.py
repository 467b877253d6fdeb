"""Definitions as one document: all of it is checked before anything is written."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import redis

from delaybridge.recurring.stored import DEFINITIONS_LIMIT
from delaybridge.store.protocol import keys
from tests.rigs.command_line import Run

NIGHTLY = {
    "name": "nightly", "destination": "kafka:orders", "body": "{due}", "cron": "0 3 * * *",
    "tz": "Europe/Berlin",
}  # fmt: skip
OFTEN = {"name": "often", "destination": "rabbitmq:/jobs", "body_base64": "AP8=", "every_ms": 5000}
RULES: dict[str, Any] = {
    "kafka:orders": {"paused": True},
    "rabbitmq": {"rate": 500.0, "retry": {"max_attempts": 3, "base_ms": 100}, "dead_letter": ""},
    "rabbitmq:orders/close": {"spread_ms": 600_000, "dead_letter": "rabbitmq:/failed"},
}
WHOLE = {"delaybridge": 1, "destinations": RULES, "recurring": [NIGHTLY, OFTEN]}


@pytest.fixture
def imported(run: Run, tmp_path: Path) -> Any:
    def do(document: Any, *options: str) -> Any:
        path = tmp_path / "definitions.json"
        path.write_text(document if isinstance(document, str) else json.dumps(document))
        return run("--json", "definitions", "import", str(path), *options)

    return do


def changes(result: Any) -> dict[str, str]:
    return {f"{each['section']}.{each['name']}": each["change"] for each in result.objects}


def test_what_was_imported_is_exported_and_imported_again_without_a_change(
    run: Run, imported: Any, tmp_path: Path
) -> None:
    first = imported(WHOLE)
    assert (first.code, set(changes(first).values())) == (0, {"added"})
    assert len(first.objects) == 5
    exported = run("definitions", "export")
    assert (exported.code, exported.err) == (0, "")
    document = json.loads(exported.out)
    assert document["destinations"] == RULES
    assert [each["name"] for each in document["recurring"]] == ["nightly", "often"]
    assert {**document["recurring"][1]} == {**OFTEN} | document["recurring"][1]
    again = imported(document, "--prune")
    assert set(changes(again).values()) == {"unchanged"}
    file = tmp_path / "out.json"
    assert run("definitions", "export", "-o", str(file)).out == ""
    assert file.read_text() == exported.out
    assert json.loads(run("--json", "definitions", "export").out) == document
    assert run("definitions", "import", "-", stdin=b"\xef\xbb\xbf" + file.read_bytes()).code == 0


def test_an_import_changes_what_differs_keeps_the_rest_and_removes_only_when_told(
    run: Run, imported: Any, raw: redis.Redis, namespace: str
) -> None:
    imported(WHOLE)
    before = json.loads(raw.hget(keys.destinations(namespace), "kafka:orders") or b"")
    other = {
        "delaybridge": 1,
        "destinations": {
            "kafka:orders": {"paused": True, "rate": 7},
            "rabbitmq": {"retry": {"base_ms": 100}},
            "kafka:new": {"paused": True},
        },
        "recurring": [NIGHTLY | {"cron": "0 4 * * *"}],
    }
    expected = {
        "destinations.kafka:new": "added", "destinations.kafka:orders": "changed",
        "destinations.rabbitmq": "changed", "destinations.rabbitmq:orders/close": "kept",
        "recurring.nightly": "changed", "recurring.often": "kept",
    }  # fmt: skip
    dry = imported(other, "--dry-run")
    assert changes(dry) == expected
    assert json.loads(run("definitions", "export").out)["destinations"] == RULES
    assert changes(imported(other)) == expected
    after = json.loads(raw.hget(keys.destinations(namespace), "kafka:orders") or b"")
    assert after == {**before, "rate": 7.0}  # paused since the same time
    exported = json.loads(run("definitions", "export").out)
    assert exported["destinations"]["rabbitmq"] == {"retry": {"base_ms": 100}}
    assert "paused since  20" in run("destination", "show", "kafka:new").out
    kept = run("definitions", "import", "-", stdin=json.dumps(other).encode())
    assert kept.err.startswith("2 kept, 4 unchanged;")
    pruned = changes(imported(other, "--prune"))
    assert [name for name, word in pruned.items() if word == "removed"] == [
        "destinations.rabbitmq:orders/close",
        "recurring.often",
    ]
    left = json.loads(run("definitions", "export").out)
    assert len(left["destinations"]) == 3
    assert len(left["recurring"]) == 1


def rule(place: str, **fields: Any) -> dict[str, Any]:
    return {"delaybridge": 1, "destinations": {place: fields}}


def recurring(**fields: Any) -> dict[str, Any]:
    return {"delaybridge": 1, "recurring": [NIGHTLY | fields]}


@pytest.mark.parametrize(
    ("document", "error"),
    [
        ("", "FILE: not JSON"),
        ("{", "FILE: not JSON"),
        ("[" * 100_000, "FILE: not JSON"),
        ('{"delaybridge": 1, "destinations": {"kafka": {"rate": NaN}}}', "FILE: not JSON"),
        ("[]", "FILE: not a JSON object"),
        ({}, "delaybridge: its version"),
        ({"delaybridge": 2}, "delaybridge: its version"),
        ({"delaybridge": True}, "delaybridge: its version"),
        ({"delaybridge": 1, "recuring": []}, "recuring: unknown; a document has"),
        ({"delaybridge": 1, "recurring": {}}, "recurring: give a list"),
        ({"delaybridge": 1, "destinations": []}, "destinations: give an object"),
        (rule("nowhere", paused=True), "destinations.nowhere.destination: no broker is named"),
        (rule("kafka:a b", paused=True), "destinations.kafka:a b.destination: "),
        (rule("kafka", rate=0), "destinations.kafka.rate: "),
        (rule("kafka", rate="5"), "destinations.kafka.rate: "),
        (rule("kafka", colour=1), "destinations.kafka.colour: "),
        (rule("kafka", retry={"colour": 1}), "destinations.kafka.retry.colour: "),
        (rule("kafka", retry={"base_ms": 9, "max_ms": 8}), "destinations.kafka.retry.base_ms: "),
        (rule("kafka:t", dead_letter="rabbitmq:/x"), "destinations.kafka:t.retry.dead_letter: "),
        (rule("kafka"), "destinations.kafka.rule: it sets nothing"),
        (rule("kafka", paused=False), "destinations.kafka.rule: it sets nothing"),
        ({"delaybridge": 1, "destinations": {"kafka": 5}}, "destinations.kafka.rule: give an obj"),
        ({"delaybridge": 1, "recurring": [5]}, "recurring.0.definition: "),
        (recurring(cron="61 * * * *"), "recurring.nightly.cron: "),
        (recurring(name="../x"), "recurring.../x.name: "),
        (recurring(destination="nowhere:x"), "recurring.nightly.destination: "),
        (recurring(colour=1), "recurring.nightly.colour: "),
        (recurring(tz="Mars/Base"), "recurring.nightly.tz: "),
        (
            {"delaybridge": 1, "recurring": [NIGHTLY, NIGHTLY]},
            "recurring.nightly.name: 'nightly' is given twice",
        ),
    ],
)
def test_a_wrong_document_is_refused_as_a_whole(
    run: Run, imported: Any, document: Any, error: str, raw: redis.Redis, namespace: str
) -> None:
    if isinstance(document, dict) and document.get("delaybridge") == 1:
        sound = {"destinations": {"kafka:sound": {"paused": True}}, "recurring": [OFTEN]}
        for section, more in sound.items():
            given = document.get(section, type(more)())
            if isinstance(more, dict) and isinstance(given, dict):
                document = {**document, section: {**more, **given}}
            elif isinstance(more, list) and isinstance(given, list):
                document = {**document, section: [*given, *more]}
    refused = imported(document)
    assert (refused.code, refused.out) == (2, "")
    message = json.loads(refused.err.splitlines()[0])["error"]["message"]
    assert message.startswith(error), message
    assert not raw.exists(keys.destinations(namespace), keys.recurring(namespace))


def test_every_fault_is_named(imported: Any) -> None:
    document = {
        "delaybridge": 1,
        "destinations": {"kafka": {"rate": -1}, "nowhere": {"paused": True}},
        "recurring": [NIGHTLY | {"cron": "x"}],
    }
    refused = json.loads(imported(document).err)["error"]["messages"]
    assert [line.partition(":")[0] for line in refused] == [
        "destinations.kafka.rate",
        "destinations.nowhere.destination",
        "recurring.nightly.cron",
    ]


def test_too_many_rules_are_refused_before_the_first_is_written(
    imported: Any, raw: redis.Redis, namespace: str
) -> None:
    assert DEFINITIONS_LIMIT > 1000
    many = {f"kafka:t{n}": {"paused": True} for n in range(1001)}
    refused = imported({"delaybridge": 1, "destinations": many})
    assert refused.code == 2
    assert "at most 1000" in refused.err
    assert not raw.exists(keys.destinations(namespace))


def test_what_cannot_be_read_is_named_and_not_exported(
    run: Run, imported: Any, raw: redis.Redis, namespace: str
) -> None:
    imported(WHOLE)
    raw.hset(keys.destinations(namespace), "kafka:odd\x1b", "not JSON")
    raw.hset(keys.recurring(namespace), "odd", "{}")
    exported = run("definitions", "export")
    assert exported.code == 6
    named = [line.split(": ")[1] for line in exported.err.splitlines()]
    assert named == ["destinations.kafka:odd\\x1b", "recurring.odd"]
    assert json.loads(exported.out)["destinations"] == RULES
    pruned = imported(json.loads(exported.out), "--prune")
    removed = [name for name, word in changes(pruned).items() if word == "removed"]
    assert removed == ["destinations.kafka:odd\x1b", "recurring.odd"]
    assert run("definitions", "export").code == 0


def test_a_file_that_cannot_be_read_or_written_is_an_error(run: Run, tmp_path: Path) -> None:
    missing = run("definitions", "import", str(tmp_path / "none"))
    assert (missing.code, missing.out) == (2, "")
    assert "No such file" in missing.err
    assert run("definitions", "export", "-o", str(tmp_path / "no" / "dir")).code == 2
