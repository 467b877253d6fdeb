"""Every setting as a file: `python -m tools.sample > config/delaybridge.toml`."""

from __future__ import annotations

import textwrap

import click

from delaybridge.operate.cli.processes.config import sections_of, toml
from delaybridge.settings.settings import Settings, descriptions

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


def sample() -> str:
    """The text of config/delaybridge.toml: every setting, its default and what it means."""
    about, settings = descriptions(), Settings()
    lines = [_SAMPLE_HEAD]
    for section, items in sections_of(settings):
        if section:
            doc = about.get(section) or type(getattr(settings, section)).__doc__ or ""
            lines += [*_comment(doc), f"[{section}]"]
        for path, name, value in items:
            lines += [*_comment(about[path]), f"{name} = {toml(value)}", ""]
        if section == "brokers":
            lines.append(_SAMPLE_BROKERS)
    return "\n".join(lines).rstrip() + "\n"


def _comment(text: str) -> list[str]:
    return textwrap.wrap(text, _WIDTH, initial_indent="# ", subsequent_indent="# ")


if __name__ == "__main__":
    click.echo(sample(), nl=False)
