"""docker-compose.yml, Dockerfile and config/: without an engine, the names in them are checked."""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml
from packaging.requirements import Requirement

from delaybridge.operate.cli import main as cli
from delaybridge.settings.settings import Settings

ROOT = Path(__file__).parent.parent.parent
COMPOSE: dict[str, Any] = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
SERVICES: dict[str, Any] = COMPOSE["services"]
PROCESSES = [name for name, service in SERVICES.items() if "build" in service]


def test_every_mounted_file_exists_and_every_volume_is_declared() -> None:
    for service in SERVICES.values():
        for mount in service.get("volumes", []):
            source = mount.split(":")[0]
            if source.startswith("./"):
                assert (ROOT / source).exists(), source
            else:
                assert source in COMPOSE["volumes"]


def test_servers_have_pinned_tags_health_checks_and_loopback_ports() -> None:
    for name, service in SERVICES.items():
        if name in PROCESSES:
            continue
        image, _, tag = service["image"].rpartition(":")
        assert re.match(r"v?\d", tag), service["image"]
        assert "." not in image.split("/")[0], "an image is named without a registry host"
        assert service["healthcheck"]["test"]
        assert all(port.startswith("127.0.0.1:") for port in service["ports"])


@pytest.mark.parametrize("name", PROCESSES)
def test_a_process_waits_for_healthy_servers_that_its_profiles_start(name: str) -> None:
    service = SERVICES[name]
    for server, wanted in service["depends_on"].items():
        assert wanted == {"condition": "service_healthy"}
        assert set(SERVICES[server].get("profiles", service["profiles"])) >= set(
            service["profiles"]
        )


@pytest.mark.parametrize("name", PROCESSES)
def test_a_process_runs_an_existing_command_with_existing_settings(name: str) -> None:
    service = SERVICES[name]
    settings = Settings.load(environ=service["environment"])
    assert settings.brokers
    assert settings.redis.url == "redis://redis:6379/0"
    assert settings.namespace == "delaybridge", "one for all"
    command, *arguments = service["command"]
    assert_is_a_command(command, arguments)


def test_a_worker_is_given_more_time_to_drain_than_it_takes() -> None:
    for name in PROCESSES:
        grace_s = int(SERVICES[name]["stop_grace_period"].removesuffix("s"))
        assert grace_s > Settings().scan.drain_timeout_s


def test_the_image_installs_and_runs_the_project_s_own_files() -> None:
    lines = (ROOT / "Dockerfile").read_text().splitlines()
    for line in lines:
        if line.startswith("COPY ") and "--from" not in line:
            for source in line.split()[1:-1]:
                assert (ROOT / source).exists(), source
    assert 'ENTRYPOINT ["delaybridge"]' in lines
    (command,) = json.loads(next(x for x in lines if x.startswith("CMD ")).removeprefix("CMD "))
    assert_is_a_command(command, [])
    (check,) = [line for line in lines if line.startswith("HEALTHCHECK ")]
    program, *words = json.loads(check.partition("CMD ")[2])
    assert program == "delaybridge"
    assert_is_a_command(words[0], words[1:])
    assert any(line.startswith("USER ") for line in lines)
    assert "STOPSIGNAL SIGTERM" in lines


def test_the_image_s_lock_file_has_every_dependency_with_hashes() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    texts = [*project["dependencies"]]
    for name in extras.keys() - {"all", "demo", "test", "testing"}:
        texts += [text for text in extras[name] if not text.startswith("delaybridge[")]
    wanted = [Requirement(text) for text in texts]
    text = (ROOT / "requirements.lock").read_text()
    locked = dict(re.findall(r"^([\w-]+)==([\w.]+).*\\\n +--hash=sha256:", text, re.MULTILINE))
    assert len(locked) == len(re.findall(r"^[^ #].*==", text, re.MULTILINE))
    for requirement in wanted:
        assert requirement.specifier.contains(locked[requirement.name]), requirement
    assert "--require-hashes -r requirements.lock" in (ROOT / "Dockerfile").read_text()


def test_redis_is_configured_as_the_client_demands() -> None:
    lines = (ROOT / "config/redis.conf").read_text().splitlines()
    options = dict(line.split(maxsplit=1) for line in lines if line and line[0] != "#")
    assert options["maxmemory-policy"] == "noeviction"
    assert options["appendonly"] == "yes"


def test_the_file_contains_no_password() -> None:
    given = SERVICES["rabbitmq"]["environment"]
    assert given["RABBITMQ_DEFAULT_PASS"].startswith("${RABBITMQ_PASSWORD:?")
    user = f"amqp://{given['RABBITMQ_DEFAULT_USER']}:${{RABBITMQ_PASSWORD:-}}@rabbitmq/"
    urls = [
        SERVICES[name]["environment"].get("DELAYBRIDGE_BROKERS__RABBITMQ") for name in PROCESSES
    ]
    assert set(urls) == {user, None}


def assert_is_a_command(command: str, arguments: list[str]) -> None:
    assert cli([command, *arguments, "--help"]) == 0
