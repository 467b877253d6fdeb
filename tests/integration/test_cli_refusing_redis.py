"""`delaybridge doctor`, and a Redis that refuses: passwords, memory, another bucket count."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import redis

from delaybridge.operate import cli
from tests.rigs.command_line import Result, Run, runner, spawn
from tests.rigs.crew import PATIENT_PROCESS
from tests.servers.redis import RedisServer

CANARY = "S3CR3T-CANARY-99"
HOUR = ("--in", "1h")


def levels(result: Result) -> dict[str, list[str]]:
    """Level -> texts."""
    found: dict[str, list[str]] = {}
    for item in result.objects:
        found.setdefault(item["level"], []).append(f"{item['about']}: {item['text']}")
    return found


def test_doctor_on_every_redis(
    any_redis_url: str,
    namespace: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    flags = ["--json", "--redis", any_redis_url, "--namespace", namespace]
    result = runner(flags, capsys, monkeypatch)("doctor")
    printed = levels(result)
    assert result.code == 0
    assert any("scripts run" in text for text in printed["ok"])
    assert any("is new" in text for text in printed["ok"])
    assert any("appendonly no" in text for text in printed["warn"])
    with redis.Redis.from_url(any_redis_url) as connection:
        assert [*connection.scan_iter(f"{{{namespace}*")] == []


def test_doctor_compares_the_limits_of_the_brokers_with_the_settings(
    run: Run, rabbitmq_url: str, real_kafka_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    narrow = ["--broker", f"{rabbitmq_url}?frame_max=8192", "--broker", real_kafka_url]
    assert [t for t in levels(run("--json", *narrow, "doctor"))["warn"] if "kafka" in t] == []
    monkeypatch.setenv("DELAYBRIDGE_LIMITS__BODY_BYTES", str(2 * 2**20))
    warnings = [
        text for text in levels(run("--json", *narrow, "doctor"))["warn"] if "broker" in text
    ]
    assert any("8,192 bytes" in text for text in warnings)
    assert any("1,048,588 bytes" in text for text in warnings)


@pytest.fixture
def one_shot(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Callable[..., Result]:
    """Runs a command line against any URL."""
    monkeypatch.chdir(tmp_path)

    def call(url: str, *args: str) -> Result:
        return runner(["--redis", url, "--namespace", "x"], capsys, monkeypatch)(*args)

    return call


def test_wrong_password(one_shot: Run) -> None:
    with RedisServer(["--requirepass", "right"]) as server:
        for secret in (f":{CANARY}@", ""):
            url = f"redis://{secret}127.0.0.1:{server.port}/0"
            for args in (("stats",), ("schedule", "kafka:t", "x", *HOUR), ("doctor",)):
                refused = one_shot(url, *args)
                assert refused.code == (1 if args == ("doctor",) else 5)
                assert "password" in refused.out + refused.err
                assert CANARY not in refused.out + refused.err
        right = f"redis://:right@127.0.0.1:{server.port}/0"
        assert one_shot(right, "stats").code == 0


@pytest.fixture(scope="module")
def guarded_port() -> Iterator[int]:
    """A Redis whose password must not be seen."""
    with RedisServer(["--requirepass", CANARY]) as server:
        yield server.port


@pytest.mark.parametrize(
    "command",
    [
        *("stats", "schedule kafka:t x --in 1h", "doctor", "config show --sources"),
        *("config check", "scan --burst", "worker ls", "health", "message show nothing"),
    ],
)
@pytest.mark.parametrize("options", ["", "-v --json"])
@pytest.mark.slow_with("-v*")
def test_no_secret_in_any_output(
    guarded_port: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    command: str,
    options: str,
) -> None:
    urls = {
        "DELAYBRIDGE_REDIS_URL": f"redis://:{CANARY}@127.0.0.1:{guarded_port}/0",
        "DELAYBRIDGE_BROKERS__RABBITMQ": f"amqp://u:{CANARY}@127.0.0.1:1/%2F",
        "DELAYBRIDGE_BROKERS__KAFKA": f"kafka://u:{CANARY}@127.0.0.1:1",
    }
    words = [*options.split(), *command.split()]
    if words[-1] in ("doctor", "--burst"):  # these set up logging, for their whole process
        done = spawn(*words, env=urls, cwd=tmp_path)
    else:
        monkeypatch.chdir(tmp_path)
        for name, url in (urls | PATIENT_PROCESS).items():
            monkeypatch.setenv(name, url)
        done = Result(cli.main(words), *capfd.readouterr())
    assert done.code in (0, 1, 3)
    assert CANARY not in done.out + done.err
    assert "Traceback" not in done.out + done.err


def test_a_redis_that_would_evict(one_shot: Run) -> None:
    with RedisServer(["--maxmemory-policy", "allkeys-lru"]) as server:
        refused = one_shot(server.url, "--json", "schedule", "kafka:t", "x", *HOUR)
        assert (refused.code, refused.error["code"]) == (5, "store_refused")
        assert "maxmemory-policy noeviction" in refused.error["message"]
        doctor = one_shot(server.url, "--json", "doctor")
        assert doctor.code == 1
        assert any("allkeys-lru" in text for text in levels(doctor)["fail"])


def test_a_redis_that_is_full(one_shot: Run) -> None:
    with RedisServer() as server, redis.Redis.from_url(server.url) as connection:
        assert one_shot(server.url, "stats").code == 0
        connection.config_set("maxmemory", "1mb")
        full = one_shot(server.url, "--json", "schedule", "kafka:t", "x" * 100_000, *HOUR)
        assert (full.code, full.error["code"]) == (5, "store_full")
        connection.config_set("maxmemory", 1)
        failed = levels(one_shot(server.url, "--json", "doctor"))["fail"]
        assert [text for text in failed if "CONFIG SET maxmemory" in text]
