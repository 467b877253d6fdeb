"""What is said of versions: the changelog, the upgrade notes, the policy of security, templates."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from delaybridge import __version__
from delaybridge.carry import line
from delaybridge.ledger.sql.tables import VERSION_TABLE
from delaybridge.operate.cli import root
from delaybridge.operate.views import transfer
from delaybridge.store.protocol import layout, record

ROOT = Path(__file__).parents[2]
UPGRADING = (ROOT / "docs" / "upgrading.md").read_text()
TEMPLATES = sorted((ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.yml"))
MOST_LINES_OF_A_CHANGELOG, MOST_WORDS_OF_A_ROADMAP = 40, 250


def test_the_changelog_begins_with_this_version_and_is_short() -> None:
    text = (ROOT / "CHANGELOG.md").read_text()
    assert re.findall(r"^## ([\d.]+)", text, re.MULTILINE)[0] == __version__
    assert len(text.splitlines()) <= MOST_LINES_OF_A_CHANGELOG


def test_this_version_gets_security_fixes() -> None:
    minor = __version__.rpartition(".")[0]
    assert f"| {minor}.x | yes |" in (ROOT / "SECURITY.md").read_text()


@pytest.mark.parametrize(
    ("what", "today"),
    [
        ("keys in Redis", f"{layout.FORMAT}, which is not written"),
        ("stored message", f"head {record.HEAD_VERSION}, or {record.BACKDATED}"),
        ("ledger's tables", f"in `{VERSION_TABLE}`"),
        ("line of `message export`", f'`"v": {line.VERSION}`'),
        ("`definitions export`", f'`"delaybridge": {transfer.VERSION}`'),
    ],
)
def test_the_upgrade_notes_say_each_format_as_it_is(what: str, today: str) -> None:
    assert f"| {what} | {today} |" in UPGRADING


def test_the_roadmap_is_short() -> None:
    assert len(UPGRADING.partition("## Roadmap")[2].split()) <= MOST_WORDS_OF_A_ROADMAP


@pytest.mark.parametrize("path", TEMPLATES, ids=lambda path: path.name)
def test_a_template_is_a_form_that_asks_for_commands_that_exist(path: Path) -> None:
    text = path.read_text()
    form = yaml.safe_load(text)
    assert form.get("contact_links") or {"name", "description", "body"} <= form.keys()
    for each in form.get("body", []):
        assert each["type"] in ("markdown", "textarea", "input")
        assert ("value" if each["type"] == "markdown" else "label") in each["attributes"]
    with root.make_context("delaybridge", [], resilient_parsing=True) as context:
        named = re.findall(r"`delaybridge (\w+)", text)
        assert not [name for name in named if root.get_command(context, name) is None]
