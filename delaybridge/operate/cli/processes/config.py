"""`delaybridge config`: prints the settings in force as a settings file, and checks them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import click

from delaybridge.operate.terminal.grammar import Group, option, pass_call
from delaybridge.operate.terminal.invocation import Invocation
from delaybridge.operate.troubles.finding import OK, WARN

if TYPE_CHECKING:
    from delaybridge.settings.settings import Settings


@click.group(cls=Group)
def config() -> None:
    """Show and check the settings."""


@config.command("show")
@option("--sources", "Say where each value came from.")
@pass_call
def show(call: Invocation, sources: bool) -> None:
    """Print the settings in force as a settings file; passwords are masked."""
    settings, output = call.settings, call.output
    origin = settings.sources()
    if output.json:
        for path, value in settings.items():
            output.result({"key": path, "value": _masked(value), "source": origin[path]}, "")
        return
    for section, items in sections_of(settings):
        if section:
            output.line(f"\n[{section}]")
        if not items:
            output.line("# none")
        for path, name, value in items:
            output.line(f"{name} = {toml(value)}{f'  # {origin[path]}' if sources else ''}")


@config.command("check")
@pass_call
def check(call: Invocation) -> None:
    """Read the settings; refuse wrong ones (exit code 2) and warn of risky ones."""
    from delaybridge.extensions import check_dialect
    from delaybridge.publish import PublishOptions, check_brokers

    settings, output = call.settings, call.output
    if settings.serve.compat:
        check_dialect(settings.serve.compat)
    check_brokers(settings.brokers, PublishOptions.from_settings(settings.publish, settings.http))
    cautions = settings.cautions()
    used = sorted({source for source in settings.sources().values() if source != "default"})
    if not output.json:
        for caution in cautions:
            output.verdict({}, WARN, caution)
    data = {"ok": True, "warnings": cautions, "sources": used}
    output.verdict(data, OK, f"from {', '.join(used) or 'defaults only'}")


def sections_of(settings: Settings) -> Iterator[tuple[str, list[tuple[str, str, Any]]]]:
    """Each section with the (key path, name, value) of its settings; "" is the top level."""
    items: dict[str, list[tuple[str, str, Any]]] = {"": []}
    items |= {
        name: [] for name, field in settings.fields.items() if field.is_section or name == "brokers"
    }
    for path, value in settings.items():
        section, dot, name = path.partition(".")
        items[section if dot else ""].append((path, name if dot else section, value))
    yield from items.items()


def _masked(value: object) -> object:
    """A URL as text masks its password."""
    return str(value) if isinstance(value, str) else value


def toml(value: object) -> str:
    """A value as TOML writes it; JSON's text is TOML's."""
    return json.dumps(_masked(value), ensure_ascii=False)
