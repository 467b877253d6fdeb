"""`delaybridge config`: prints the settings in force as a settings file, and checks them."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import click

from delaybridge.cli.grammar import Group, option, pass_call
from delaybridge.cli.output import OK, WARN
from delaybridge.cli.session import Invocation

if TYPE_CHECKING:
    from delaybridge.settings.settings import Settings

_WIDTH = 100
_SAMPLE_HEAD = """\
# Every setting of delaybridge with its default. All are optional.
# A flag on the command line overrides the environment, the environment overrides this file, and
# this file overrides the default. In the environment [scan] batch_messages is
# DELAYBRIDGE_SCAN__BATCH_MESSAGES; redis.url is also DELAYBRIDGE_REDIS_URL.
# `delaybridge config show --sources` prints the settings in force and their sources.
"""
_SAMPLE_BROKERS = """\
# rabbitmq = "amqp://guest:guest@127.0.0.1:5672/%2F"
# orders = "amqps://bridge@rabbitmq.example/?password_file=/run/secrets/rabbitmq"
# kafka = "kafka://127.0.0.1:9092"
"""


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
    for section, items in _sections(settings):
        if section:
            output.line(f"\n[{section}]")
        if not items:
            output.line("# none")
        for path, name, value in items:
            output.line(f"{name} = {_toml(value)}{f'  # {origin[path]}' if sources else ''}")


@config.command("check")
@pass_call
def check(call: Invocation) -> None:
    """Read the settings; refuse wrong ones (exit code 2) and warn of risky ones."""
    from delaybridge.publish import check_brokers

    settings, output = call.settings, call.output
    check_brokers(settings.brokers, settings.publish)
    cautions = settings.cautions()
    used = sorted({source for source in settings.sources().values() if source != "default"})
    if not output.json:
        for caution in cautions:
            output.verdict({}, WARN, caution)
    data = {"ok": True, "warnings": cautions, "sources": used}
    output.verdict(data, OK, f"from {', '.join(used) or 'defaults only'}")


def sample() -> str:
    """The text of config/delaybridge.toml: every setting, its default and what it means."""
    from delaybridge.settings.settings import Settings, descriptions

    about, settings = descriptions(), Settings()
    lines = [_SAMPLE_HEAD]
    for section, items in _sections(settings):
        if section:
            doc = about.get(section) or type(getattr(settings, section)).__doc__ or ""
            lines += [*_comment(doc), f"[{section}]"]
        for path, name, value in items:
            lines += [*_comment(about[path]), f"{name} = {_toml(value)}", ""]
        if section == "brokers":
            lines.append(_SAMPLE_BROKERS)
    return "\n".join(lines).rstrip() + "\n"


def _sections(settings: Settings) -> Iterator[tuple[str, list[tuple[str, str, Any]]]]:
    """Each section with the (key path, name, value) of its settings; "" is the top level."""
    items: dict[str, list[tuple[str, str, Any]]] = {"": []}
    for name, value in settings:
        if name == "brokers" or hasattr(value, "model_fields_set"):
            items[name] = []
    for path, value in settings.items():
        section, dot, name = path.partition(".")
        items[section if dot else ""].append((path, name if dot else section, value))
    yield from items.items()


def _comment(text: str) -> list[str]:
    return textwrap.wrap(text, _WIDTH, initial_indent="# ", subsequent_indent="# ")


def _masked(value: object) -> object:
    """A URL as text masks its password."""
    return str(value) if isinstance(value, str) else value


def _toml(value: object) -> str:
    """A value as TOML writes it; JSON's text is TOML's."""
    return json.dumps(_masked(value), ensure_ascii=False)
