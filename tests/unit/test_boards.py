"""Dashboards and alert rules beside the catalogue of metrics: whatever they name is there."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from delaybridge.operate.metrics.catalog import METRICS, PREFIX
from tests.rigs.promql import grouped_by, labels_of, operands_of, series_of

ROOT = Path(__file__).parents[2]
BOARDS = sorted((ROOT / "config/grafana/dashboards").glob("*.json"))
RULES: list[dict[str, Any]] = yaml.safe_load((ROOT / "config/prometheus/alerts.yml").read_text())[
    "groups"
][0]["rules"]
ELSEWHERE = ("up",)  # Prometheus' own
# What is on no dashboard, and why.
LEFT_OUT = {
    "messages_claimed_total": "a step on the way: the claims are there",
    "messages_fired_total": "a step on the way to `published`",
    "messages_settled_total": "a step after `published`",
    "messages_cancelled_total": "of ingest alone: those of all are there",
    "messages_rescheduled_total": "of ingest alone: those of all are there",
    "leases_acquired_total": "buckets held, and leases lost, are there",
    "destination_messages_error": "how exact another one is",
    "next_due_timestamp_seconds": "what is due within spans is there",
    "buckets": "a constant",
}
# What the catalogue says may be alerted on, and has no rule: a threshold is everyone's own.
WITHOUT_RULE = {
    "messages_retried_total": "DelaybridgeRetrying, of what waits",
    "messages_dead_lettered_total": "where dead letters go is a queue that others watch",
    "publish_errors_total": "DelaybridgeRetrying, DelaybridgeBrokerDown",
    "leases_lost_total": "DelaybridgeLate, if it matters",
    "scanner_failures_total": "a bug, which begins again by itself; in the log",
    "process_crashes_total": "replaced by itself; in the log",
    "front_connections_refused_total": "clients of the outside do that, too",
    "front_methods_refused_total": "`doctor` names the client",
    "worker_last_scan_timestamp_seconds": "DelaybridgeTargetDown, /health/live",
    "ledger_lag_messages": "DelaybridgeLedgerDown",
    "ledger_restored_messages": "mended; DelaybridgeLedgerDown came before",
    "source_lag_messages": "how much is too much depends on the load",
}


def targets(board: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    for panel in json.loads(board.read_text())["panels"]:
        for target in panel.get("targets", []):
            yield panel["title"], target


EXPRESSIONS = [
    *(
        (f"{board.stem}: {title}", each["expr"])
        for board in BOARDS
        for title, each in targets(board)
    ),
    *((rule["alert"], rule["expr"]) for rule in RULES),
]


@pytest.mark.parametrize("expression", dict.fromkeys(expression for _, expression in EXPRESSIONS))
def test_an_expression_names_only_metrics_and_labels_of_the_catalogue(expression: str) -> None:
    found = list(series_of(expression))
    assert found
    for series in found:
        assert series.metric in (*METRICS, *ELSEWHERE), series
        assert series.asked <= series.known, series
    for operand in operands_of(expression):
        for labels in grouped_by(operand):
            assert all(labels <= series.known for series in series_of(operand)), operand


def test_every_counter_is_asked_for_its_rate_and_no_gauge_is() -> None:
    for name, expression in EXPRESSIONS:
        for call, metric in re.findall(rf"(?:\b(\w+)\()?{PREFIX}(\w+?)(?:_bucket)?\b", expression):
            kind = METRICS[metric].kind
            if "unless" not in expression:  # a series that is new
                is_rate = call in ("rate", "increase")
                assert is_rate == (kind in ("counter", "histogram")), (name, metric)


@pytest.mark.parametrize("board", BOARDS, ids=lambda board: board.stem)
def test_a_legend_names_labels_that_its_query_has(board: Path) -> None:
    for title, target in targets(board):
        named = set(re.findall(r"{{(\w+)}}", target["legendFormat"]))
        assert named <= labels_of(target["expr"]), title


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule["alert"])
def test_the_words_of_an_alert_name_labels_that_it_has(rule: dict[str, Any]) -> None:
    words = "".join(rule["annotations"].values())
    assert set(re.findall(r"\$labels\.(\w+)", words)) <= labels_of(rule["expr"])


def test_each_alert_says_what_happens_and_what_to_do() -> None:
    for rule in RULES:
        assert rule["labels"]["severity"] in ("page", "ticket")
        assert rule["annotations"]["summary"] and rule["annotations"]["description"]


def test_every_metric_is_on_a_dashboard_or_left_out_with_a_reason() -> None:
    shown = {
        series.metric for board in BOARDS for _, each in targets(board)
        for series in series_of(each["expr"])
    }  # fmt: skip
    assert METRICS.keys() - shown == LEFT_OUT.keys()


def test_every_metric_to_alert_on_has_a_rule_or_a_reason_for_none() -> None:
    alerting = {series.metric for rule in RULES for series in series_of(rule["expr"])}
    wanted = {name for name, metric in METRICS.items() if metric.alert}
    assert wanted - alerting == WITHOUT_RULE.keys()


@pytest.mark.parametrize("board", BOARDS, ids=lambda board: board.stem)
def test_a_dashboard_is_whole(board: Path) -> None:
    found = json.loads(board.read_text())
    assert found["uid"] == board.stem
    panels = found["panels"]
    ids = [panel["id"] for panel in panels]
    assert len(ids) == len({*ids})
    cells = [cell for panel in panels for cell in cells_of(panel["gridPos"])]
    assert len(cells) == len({*cells})
    variables = {f"${each['name']}" for each in found["templating"]["list"]}
    for panel in panels:
        assert panel["type"] == "row" or panel["description"], panel["title"]
    named = set(re.findall(r"\$\w+", "".join(each["expr"] for _, each in targets(board))))
    assert named <= variables
    others = {f"/d/{each.stem}" for each in BOARDS}
    assert {link["url"] for link in found["links"]} <= others


def cells_of(place: dict[str, int]) -> Iterator[tuple[int, int]]:
    assert place["x"] + place["w"] <= 24
    for x in range(place["x"], place["x"] + place["w"]):
        for y in range(place["y"], place["y"] + place["h"]):
            yield x, y


def test_what_pages_and_charts_ask_prometheus_for_is_in_the_catalogue() -> None:
    files = [*(ROOT / "docs").glob("*.md"), *(ROOT / "deploy").rglob("*.y*ml")]
    called = re.compile(rf"(?:max|min|sum|rate|increase)\b[^`\n]*?\(({PREFIX}\w+)")
    for path in files:
        for name in called.findall(path.read_text()):
            (series, *_) = series_of(name)
            assert series.metric in METRICS, (path, name)
