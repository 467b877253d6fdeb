"""Every command with the packages of a plain install, and with the image's: it works, or names the
extra that it needs."""

from __future__ import annotations

import signal
import tomllib
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import click
import pytest

from delaybridge.operate.cli import COMMANDS
from tests.rigs.crew import PATIENT_PROCESS
from tests.rigs.lean_python import ROOT, Ran, locked, make_site, needed, run_all

ID = "a1"
# Each command: its arguments, its exit code, and what it prints when it may be stopped.
ROWS: dict[str, tuple[str, int, str]] = {
    "ledger upgrade": ("", 0, ""),
    "schedule": (f"kombu:q x --in 1h --id {ID}", 0, ""),
    "message ls": ("", 0, ""),
    "message show": (ID, 0, ""),
    "message reschedule": (f"{ID} --in 2h", 0, ""),
    "message touch": (f"{ID} --ttl 2h", 0, ""),
    "message redirect": (f"{ID} --to kombu:r", 0, ""),
    "message export": ("", 0, ""),
    "message cancel": (ID, 0, ""),
    "message publish-now": (ID, 3, ""),
    "message import": ("redis://127.0.0.1:1 --from celery-redis", 5, ""),
    "dead ls": ("", 0, ""),
    "dead show": (ID, 3, ""),
    "dead redirect": (f"{ID} --to kombu:r", 3, ""),
    "dead kick": (ID, 3, ""),
    "dead discard": (ID, 3, ""),
    "destination ls": ("", 0, ""),
    "destination show": ("kombu:q", 3, ""),
    "destination pause": ("kombu:t --new", 0, ""),
    "destination resume": ("kombu:t", 0, ""),
    "destination limit": ("kombu:t --rate 5 --new", 0, ""),
    "destination spread": ("kombu:t 1m", 0, ""),
    "destination retry": ("kombu:t --max-attempts 3", 0, ""),
    "destination purge": ("kombu:t --confirm kombu:t", 0, ""),
    "recurring add": ("daily kombu:t x --cron 0_9_*_*_*", 0, ""),
    "recurring ls": ("", 0, ""),
    "recurring preview": ("0_9_*_*_*", 0, ""),
    "recurring show": ("daily", 0, ""),
    "recurring pause": ("daily", 0, ""),
    "recurring resume": ("daily", 0, ""),
    "recurring run": ("daily", 0, ""),
    "recurring backfill": ("daily --from 2020-01-01T00:00:00Z --to 2020-01-03T00:00:00Z", 0, ""),
    "definitions export": ("", 0, ""),
    "definitions import": ("/dev/null", 2, ""),
    "recurring rm": ("daily", 0, ""),
    "scan": ("--json", 0, '"lease_acquired"'),
    "ingest rabbitmq": ("--exchange a.delay --json", 0, "ingest_failed"),
    "ingest kafka": ("--topic a.delay", 2, ""),
    "front": ("--listen 127.0.0.1:0 --json", 0, "front_started"),
    "plugin convert": ("/dev/null", 2, ""),
    "serve": ("--port 0", 0, "http://"),
    "serve token new": ("--token-file /dev/null", 0, ""),
    "stats": ("", 0, ""),
    "horizon": ("", 0, ""),
    "tail": ("", 0, "listening"),
    "top": ("", 2, ""),
    "worker ls": ("", 0, ""),
    "worker drain": ("w1", 3, ""),
    "worker reconnect": ("none", 3, ""),
    "bucket ls": ("", 0, ""),
    "bucket resize": ("", 0, ""),
    "health": ("", 1, ""),
    "alarm show": ("", 0, ""),
    "alarm clear": ("", 0, ""),
    "doctor": ("", 1, ""),
    "ledger restore": ("", 0, ""),
    "ledger purge": ("--destination kombu:t --confirm kombu:t", 0, ""),
    "outbox create-table": ("", 0, ""),
    "outbox ls": ("", 0, ""),
    "outbox run": ("", 0, " store "),
    "scripts load": ("", 0, ""),
    "size": ("--pending 1k --rate 1/s --body 9", 0, ""),
    "config show": ("", 0, ""),
    "config check": ("", 0, ""),
    "completion": ("bash", 0, ""),
    "demo": ("", 2, ""),
}
# In a plain install.
LACKING = {
    *(
        "ledger upgrade",
        "ledger restore",
        "ledger purge",
        "outbox create-table",
        "outbox ls",
        "outbox run",
    ),
    *("message show", "dead show", "serve", "demo"),
}
STOPPED = -signal.SIGTERM


def leaves(command: click.Command, path: str) -> Iterator[str]:
    if not isinstance(command, click.Group):
        yield path
        return
    if command.invoke_without_command:
        yield path
    for name, each in command.commands.items():
        yield from leaves(each, f"{path} {name}")


def ran_with(site: Path, redis_url: str, namespace: str) -> dict[str, Ran]:
    """What each command does, with these packages."""
    commands = [
        ([*name.split(), *(word.replace("_", " ") for word in arguments.split())], word)
        for name, (arguments, _, word) in ROWS.items()
    ]
    environment = PATIENT_PROCESS | {
        "DELAYBRIDGE_REDIS_URL": redis_url,
        "DELAYBRIDGE_NAMESPACE": namespace,
        "DELAYBRIDGE_LEDGER__URL": f"sqlite:///{site.parent}/ledger.db",
        "DELAYBRIDGE_OUTBOX__URL": f"sqlite:///{site.parent}/outbox.db",
        "DELAYBRIDGE_BROKERS__KOMBU": f"kombu+{redis_url}",
        "DELAYBRIDGE_BROKERS__RABBITMQ": "amqp://127.0.0.1:1",
    }
    return dict(zip(ROWS, run_all(site, commands, environment), strict=True))


def test_the_table_of_this_file_has_every_command() -> None:
    found = {
        leaf
        for name, (module, _) in COMMANDS.items()
        for leaf in leaves(
            getattr(import_module(f".{module}", "delaybridge.operate.cli"), name), name
        )
    }
    assert found == {*ROWS}


@pytest.mark.slow_with("image")  # that its packages include all extras, a unit test tells
@pytest.mark.parametrize("which", ["base", "image"])
def test_a_command_works_or_names_the_extra_that_it_needs(
    which: str, redis_url: str, namespace: str, tmp_path: Path
) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    packages = needed(project["dependencies"]) if which == "base" else locked()
    site = make_site(tmp_path / "site", {*packages, "delaybridge"})
    ran = ran_with(site, redis_url, namespace)
    assert [name for name, each in ran.items() if "internal" in each.output] == []
    named = {name for name, each in ran.items() if "delaybridge[" in each.output}
    assert named - {"doctor"} == (LACKING if which == "base" else {"demo"})
    wanted = {name: {code, STOPPED} if word else {code} for name, (_, code, word) in ROWS.items()}
    wanted |= dict.fromkeys(named - {"doctor"}, {2})
    assert {name: each for name, each in ran.items() if each.code not in wanted[name]} == {}


@pytest.mark.slow  # the lock file is compared with the extras in a unit test
@pytest.mark.parametrize("server", ["postgres_url", "mariadb_url"])
def test_the_image_reaches_the_ledger_on_every_kind_of_database(
    server: str, request: pytest.FixtureRequest, redis_url: str, namespace: str, tmp_path: Path
) -> None:
    site = make_site(tmp_path / "site", {*locked(), "delaybridge"})
    environment = PATIENT_PROCESS | {
        "DELAYBRIDGE_REDIS_URL": redis_url,
        "DELAYBRIDGE_NAMESPACE": namespace,
        "DELAYBRIDGE_LEDGER__URL": request.getfixturevalue(server),
        "DELAYBRIDGE_DURABILITY": "ledger",
    }
    commands = ("ledger upgrade", "ledger upgrade", "schedule pull:q x --in 1h", "ledger restore")
    ran = run_all(site, [(line.split(), "") for line in commands], environment)
    assert [each.code for each in ran] == [0] * len(commands), ran
