"""The list of troubles as a page and as alert rules: `python -m tools.troubles` writes both."""

from __future__ import annotations

import json
import textwrap
from pathlib import Path

from delaybridge.operate.troubles.finding import SEVERITIES
from delaybridge.operate.troubles.listed import AlertRule, ListedTrouble, listed

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "troubleshooting.md"
RULES = ROOT / "config" / "prometheus" / "alerts.yml"
_WIDTH = 96
_PAGE_HEAD = """\
# Something is wrong

For whoever is woken up: look up the code that `delaybridge health`, an alert or a log with `--json`
names. `delaybridge doctor` says what to do about each. With the **red** ones `health` exits with 1.
`{name}` in a command stands for what was found.

No trouble loses a message unless its text says so. While Redis or a broker is away, messages wait,
in order.
"""
_RULES_HEAD = """\
# Alert rules for delaybridge. `severity: page` wakes a person, `ticket` can wait until morning.
#
#     promtool check rules config/prometheus/alerts.yml
#
# Sums are over all workers: each counts the buckets that it holds. What each metric means is in
# docs/metrics.md. Made from delaybridge/operate/troubles/list.toml: make pages.

groups:
  - name: delaybridge
    rules:
"""
_TITLES = {
    "severe": "Severe: messages do not go out, or data is damaged",
    "error": "Errors",
    "warning": "Warnings",
}


def page() -> str:
    """docs/troubleshooting.md: a section for each trouble, the worst first."""
    parts = [_PAGE_HEAD]
    for severity in SEVERITIES:
        rows = [each for each in listed().values() if each.severity == severity]
        parts.append(f"## {_TITLES[severity]}\n")
        parts += [_section(each) for each in sorted(rows, key=lambda each: each.code)]
    return "\n".join(parts)


def _section(of: ListedTrouble) -> str:
    anchors = "".join(f'<a id="{word}"></a>' for word in of.words)
    lines = [f"### {of.code}", "", *([anchors, ""] if anchors else [])]
    lines += [f"{'**Red.** ' if of.is_red else ''}{of.when}"]
    lines[-1] += f" **So:** {of.means}" if of.means else ""
    lines[-1] += f" **Cause:** {of.cause}" if of.cause else ""
    lines[-1] += f" **Log:** {', '.join(f'`{word}`' for word in of.words)}" if of.words else ""
    lines += [""] + [f"- {words}: `{command}`" for words, _, command in
                     (each.partition(": ") for each in of.remedy)]  # fmt: skip
    return "\n".join(lines).rstrip() + "\n"


def rules() -> str:
    """config/prometheus/alerts.yml: the rules of those troubles that a metric shows."""
    made = [_rule(of, rule) for of in listed().values() for rule in of.alerts]
    return _RULES_HEAD + "\n".join(made)


def _rule(of: ListedTrouble, rule: AlertRule) -> str:
    remedy = ". ".join(each.replace(": ", ": `", 1) + "`" for each in of.remedy)
    lines = [f"      - alert: {rule.name}"]
    lines += [f"        # {rule.comment}"] if rule.comment else []
    lines += ["        expr: >-", *_folded(rule.expr, 10)]
    lines += [f"        for: {rule.lasting}"] if rule.lasting else []
    lines += [f"        labels: {{severity: {rule.severity}, trouble: {of.code}}}"]
    lines += ["        annotations:", f"          summary: {json.dumps(rule.summary)}"]
    lines += ["          description: >-", *_folded(f"{of.means} {remedy}.", 12)]
    lines += [f"          runbook_url: {of.link}"]
    return "\n".join(lines) + "\n"


def _folded(text: str, indent: int) -> list[str]:
    margin = " " * indent
    return textwrap.wrap(
        text, _WIDTH, initial_indent=margin, subsequent_indent=margin, break_long_words=False
    )


if __name__ == "__main__":
    PAGE.write_text(page())
    RULES.write_text(rules())
