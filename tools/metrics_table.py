"""The tables of docs/metrics.md: `python -m tools.metrics_table`. A test compares them."""

from __future__ import annotations

import click

from delaybridge.operate.metrics.catalog import METRICS, Metric

HEAD = "| name, after `delaybridge_` | meaning |\n|---|---|\n"


def table(*kinds: str) -> str:
    """The metrics of these kinds, in the order of the catalog."""
    rows = (_row(name, metric) for name, metric in METRICS.items() if metric.kind in kinds)
    return HEAD + "".join(rows)


def _row(name: str, metric: Metric) -> str:
    labels = f"{{{','.join(metric.labels)}}}" if metric.labels else ""
    alert = f" **Alert:** {metric.alert}." if metric.alert else ""
    return f"| `{name}{labels}` | {metric.means}{alert} |\n"


if __name__ == "__main__":
    for kinds in (("counter",), ("histogram",), ("gauge", "info")):
        click.echo(table(*kinds))
