"""The alert rules as promtool tests them: each fires after its `for`, with its words, not before.

What makes the metrics so is caused in test_prometheus.py, where `for` is cut.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml

from tests.servers.prometheus import program

CONFIG = Path(__file__).parents[2] / "config"
RULES: dict[str, dict[str, Any]] = {
    rule["alert"].removeprefix("Delaybridge"): rule
    for rule in yaml.safe_load((CONFIG / "prometheus/alerts.yml").read_text())["groups"][0]["rules"]
}
STEP_S = 30
WELL, ILL = 32, 22  # steps
BEGAN_S = (WELL + 1) * STEP_S


class Case(NamedTuple):
    """Series that are well, then ill: name -> (value before, value from then on).

    A value is a number, or `+N`: it grows by N a step. summary: with the values. looks_back_s: how
    long it may take besides its `for`, and fires after the cause is over.
    """

    series: dict[str, tuple[str, str]]
    labels: dict[str, str]
    summary: str
    looks_back_s: int = 0


def one(series: str, well: str, ill: str, summary: str, **labels: str) -> Case:
    given = ",".join(f'{name}="{value}"' for name, value in labels.items())
    kept = {name: value for name, value in labels.items() if name != "became"}
    return Case({f"delaybridge_{series}{{{given}}}": (well, ill)}, kept, summary)


def late(bound: str, well: str, ill: str) -> dict[str, tuple[str, str]]:
    name = f'delaybridge_publish_lateness_seconds_bucket{{destination="a:b",le="{bound}"}}'
    return {name: (well, ill)}


CASES = {
    "BucketsUnowned": one(
        "buckets_unowned", "0", "3", "3 buckets have no worker: their messages wait."
    ),
    "NoWorker": one("worker_buckets", "16", "0", "No worker that is scraped holds a bucket."),
    "Overdue": one(
        "oldest_overdue_seconds", "5", "75", "The oldest waiting message is 1m 15s late."
    ),
    "Late": Case(
        late("0.5", "+10", "+0") | late("5", "+10", "+10") | late("+Inf", "+10", "+10"),
        {"destination": "a:b"},
        "1 % of the messages for a:b are over 4.955s late.",
        300,
    ),
    "TargetDown": Case(
        {'up{job="delaybridge",instance="w:1"}': ("1", "0")},
        {"job": "delaybridge", "instance": "w:1"},
        "w:1 does not answer.",
    ),
    "ClockSkew": one(
        "worker_clock_skew_seconds", "0.1", "-2", "A worker's clock and Redis' clock differ by 2s."
    ),
    "BrokerDown": one(
        "broker_up", "1", "0", "The broker eu is not available to every worker.", broker="eu"
    ),
    "Retrying": one(
        "retrying_messages",
        "0",
        "7",
        "7 messages for a:b fail: nack.",
        destination="a:b",
        reason="nack",
    ),
    "RecurringMissed": one(
        "recurring_missed_total",
        "2",
        "+1",
        "Runs of the recurring message beat were missed.",
        name="beat",
    ),
    "StoreNearlyFull": Case(
        {
            "delaybridge_store_memory_bytes": ("85", "90"),
            "delaybridge_store_memory_max_bytes": ("100", "100"),
        },
        {},
        "Redis uses 90% of its maxmemory.",
    ),
    "StoreRefusesWrites": one("store_refusing", "0", "1", "Redis answers and takes no writes."),
    "BucketsUnseen": one(
        "buckets_unseen", "0", "5", "5 buckets are on a Redis server that does not answer."
    ),
    "KeysLost": one(
        "orphans_found_messages",
        "0",
        "4",
        "Keys were lost in Redis: 4 messages were found in no set.",
        became="due",
    ),
    "HeldBack": one(
        "orphans_waiting_messages", "0", "2", "2 messages that were found late wait for you."
    ),
    "LedgerComparing": one(
        "ledger_waiting_buckets", "0", "16", "16 buckets wait to be compared with the ledger."
    ),
    "LedgerDown": one("ledger_up", "1", "0", "The ledger's database does not answer every worker."),
    "SourceDown": one("source_up", "1", "0", "Nothing reads r:x.", source="r:x"),
    "SourceFault": one(
        "source_faults", "0", "1", "Something is wrong with r:x, although it is read.", source="r:x"
    ),
    "Refused": one(
        "messages_refused_total",
        "2",
        "+1",
        "Ingest refused messages: bad_header.",
        code="bad_header",
    ),
    "FrontCutOff": one(
        "front_node_up", "1", "0", "The front at f:1 reaches no node of the broker.", instance="f:1"
    ),
    "FrontClientsWait": one(
        "front_longest_held_seconds",
        "10",
        "90",
        "A client of the front at f:1 waits for 1m 30s.",
        instance="f:1",
    ),
    "Buried": one(
        "messages_buried_total",
        "2",
        "+1",
        "Messages for a:b were given up: expired.",
        destination="a:b",
        reason="expired",
    ),
    "StoreDown": one("store_up", "1", "0", "A worker cannot reach Redis."),
}


def values(well: str, ill: str) -> str:
    """As promtool writes a series: so many steps well, then so many ill."""
    before = f"0{well}x{WELL}" if well[0] == "+" else f"{well}+0x{WELL}"
    if ill[0] != "+":
        return f"{before} {ill}+0x{ILL}"
    began = float(well) if well[0] != "+" else float(well) * WELL
    return f"{before} {began + float(ill):g}{ill}x{ILL}"


def looks(name: str, case: Case) -> Iterator[dict[str, Any]]:
    """When the alert is quiet, and when it fires with which labels and words."""
    rule = RULES[name]
    lasting = rule.get("for", "0s")
    for_s = int(lasting[:-1]) * {"s": 1, "m": 60}[lasting[-1]]
    alert = {
        "exp_labels": {**rule["labels"], **case.labels},
        "exp_annotations": {**rule["annotations"], "summary": case.summary},
    }
    quiet_s = [BEGAN_S - STEP_S, *([BEGAN_S + for_s - STEP_S] if for_s else [])]
    fires_s = BEGAN_S + for_s + case.looks_back_s + STEP_S
    for at_s, expected in (*((each, []) for each in quiet_s), (fires_s, [alert])):
        yield {
            "alertname": f"Delaybridge{name}", "eval_time": f"{at_s}s", "exp_alerts": expected,
        }  # fmt: skip


@pytest.mark.usefixtures("prometheus_folder")
def test_promtool_reads_every_query_of_the_dashboards(tmp_path: Path) -> None:
    boards = [json.loads(path.read_text()) for path in (CONFIG / "grafana").rglob("*.json")]
    targets = [
        target
        for board in boards
        for panel in board["panels"]
        for target in panel.get("targets", [])
    ]
    rules = [
        {"record": f"query:{number}", "expr": target["expr"].replace("$destination", ".*")}
        for number, target in enumerate(targets)
    ]
    assert len(rules) > 70
    file = tmp_path / "rules.yml"
    file.write_text(json.dumps({"groups": [{"name": "queries", "rules": rules}]}))
    promtool("check", "rules", file)


def test_every_rule_has_a_case() -> None:
    assert CASES.keys() == RULES.keys()


@pytest.mark.usefixtures("prometheus_folder")
def test_each_alert_fires_after_its_time_with_its_words(tmp_path: Path) -> None:
    series = {name: each for case in CASES.values() for name, each in case.series.items()}
    group = {
        "interval": f"{STEP_S}s",
        "input_series": [
            {"series": name, "values": values(*each)} for name, each in series.items()
        ],
        "alert_rule_test": [look for name, case in CASES.items() for look in looks(name, case)],
    }
    file = tmp_path / "tests.yml"
    rules = str(CONFIG / "prometheus/alerts.yml")
    whole = {"rule_files": [rules], "evaluation_interval": f"{STEP_S}s", "tests": [group]}
    file.write_text(json.dumps(whole))
    promtool("test", "rules", file)


def promtool(*arguments: str | Path) -> None:
    """Run it; what it says is the failure."""
    command = [program("promtool"), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
