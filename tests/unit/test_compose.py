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
from tools import images

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


def test_every_image_but_ours_is_named_by_its_digest() -> None:
    for file in images.FILES:
        text = file.read_text()
        found = images.NAMED.findall(text)
        ours = text.count("image: delaybridge:")
        assert len(found) == len(re.findall(r"^FROM|^\s+image: \w", text, re.MULTILINE)) - ours > 1
        for _, name, digest in found:
            assert digest, f"{name}: make images"


def test_a_newer_digest_takes_the_place_of_an_older_one_or_of_none() -> None:
    old, new = (f"sha256:{digit * 64}" for digit in "01")
    asked = []

    def digest_of(image: str) -> str:
        asked.append(image)
        return new

    text = (
        f"FROM a:1-x@{old} AS build\nFROM a:1-x\n    image: b/c:v2 # why\n  image: delaybridge:0\n"
    )
    assert images.pinned(text, digest_of) == (
        f"FROM a:1-x@{new} AS build\nFROM a:1-x@{new}\n    image: b/c:v2@{new} # why\n"
        "  image: delaybridge:0\n"
    )
    assert asked == ["a:1-x", "a:1-x", "b/c:v2"], "by the tag alone"


def test_servers_have_pinned_tags_health_checks_and_loopback_ports() -> None:
    for name, service in SERVICES.items():
        if name in PROCESSES:
            continue
        image, _, tag = service["image"].partition("@")[0].rpartition(":")
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


def test_the_api_has_a_token_that_comes_from_outside_and_is_nowhere_in_the_file() -> None:
    command = SERVICES["serve"]["command"]
    file = Path(command[command.index("--token-file") + 1])
    (secret,) = SERVICES["serve"]["secrets"]
    assert secret["source"] == file.name
    (user,) = re.findall(r"^USER (\d+):(\d+)$", (ROOT / "Dockerfile").read_text(), re.MULTILINE)
    assert (secret["uid"], secret["gid"], secret["mode"]) == (*user, 0o400)
    assert file.parent == Path("/run/secrets")
    assert COMPOSE["secrets"][file.name].keys() == {"environment"}


def test_a_process_whose_port_is_published_listens_there() -> None:
    ports = {"serve": Settings().serve.port, "front": 5672}
    published = {n: s["ports"] for n, s in SERVICES.items() if n in PROCESSES and "ports" in s}
    assert {name: each[0].split(":")[-1] for name, each in published.items()} == {
        name: str(port) for name, port in ports.items()
    }
    assert all("0.0.0.0" in " ".join(SERVICES[name]["command"]) for name in published)


def test_prometheus_scrapes_every_process_that_has_metrics() -> None:
    scraped = yaml.safe_load((ROOT / "config/prometheus/prometheus.yml").read_text())
    names = {
        name for c in scraped["scrape_configs"] for d in c["dns_sd_configs"] for name in d["names"]
    }
    assert names == {*PROCESSES} - {"cli", "serve"}


def assert_is_a_command(command: str, arguments: list[str]) -> None:
    assert cli([command, *arguments, "--help"]) == 0
