"""`delaybridge config`: the settings in force, and where they come from."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.rigs.command_line import Run

CANARY = "S3CR3T-CANARY-88"


def test_the_output_of_config_show_is_a_settings_file_with_the_same_values(run: Run) -> None:
    flags = ("--namespace", "n", "--broker", "amqp://h/%2F", "--broker", "eu=kafka://h:9092")
    text = run(*flags, "config", "show").out
    Path("shown.toml").write_text(text)
    assert run("--config", "shown.toml", "config", "show").out == text
    assert 'rabbitmq = "amqp://h/%2F"' in text
    assert 'eu = "kafka://h:9092"' in text


def test_config_show_names_the_source_of_each_value_and_no_password(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DELAYBRIDGE_LEASE__RENEW_MS", "3000")
    monkeypatch.setenv("DELAYBRIDGE_REDIS_URL", f"redis://:{CANARY}@h")
    shown = run("--json", "--namespace", "n", "config", "show")
    found = {each["key"]: (each["value"], each["source"]) for each in shown.objects}
    assert found["namespace"] == ("n", "--namespace")
    assert found["lease.renew_ms"] == (3000, "DELAYBRIDGE_LEASE__RENEW_MS")
    assert found["redis.url"] == ("redis://:***@h", "DELAYBRIDGE_REDIS_URL")
    assert found["buckets"] == (16, "default")
    text = run("--namespace", "n", "config", "show", "--sources").out
    assert 'url = "redis://:***@h"  # DELAYBRIDGE_REDIS_URL' in text
    assert CANARY not in shown.out + text


def test_config_check(run: Run) -> None:
    assert run("--json", "config", "check").objects[0]["ok"] is True
    assert run("--namespace", "a b", "config", "check").code == 2


def test_config_check_refuses_a_dialect_that_no_package_has(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DELAYBRIDGE_SERVE__COMPAT", "nothing")
    refused = run("config", "check")
    assert refused.code == 2
    assert "serve.compat: 'nothing' is not a dialect" in refused.err


def test_a_broker_url_that_a_worker_could_not_use_is_refused_at_the_start_as_by_the_check(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DELAYBRIDGE_BROKERS__EU", f"amqp://u:{CANARY}@h/?foo=1")
    refused = run("--json", "config", "check")
    assert (refused.code, refused.error["code"]) == (2, "config")
    started = run("--json", "--redis", "redis://127.0.0.1:1", "scan")  # asked for nothing
    assert (started.code, started.err) == (2, refused.err)
    assert CANARY not in refused.err
