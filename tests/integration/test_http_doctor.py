"""The checks of `delaybridge doctor` over HTTP, and as a page of the console."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from delaybridge.operate.doctor import brokers, findings
from delaybridge.operate.troubles.finding import OK, Finding
from delaybridge.serve.shared import doctor
from delaybridge.settings.settings import Settings
from tests.rigs.api import api
from tests.rigs.command_line import Run
from tests.rigs.sessions import TOKENS
from tests.rigs.waiting import DEADLINE_S, until_async
from tests.servers.redis import RedisServer

CANARY = "S3CR3T-CANARY-17"


async def test_the_checks_are_those_of_the_command(
    redis_url: str, namespace: str, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(findings, "_MAX_LATENCY_MS", 1e6)  # a starved Redis may be slow for one
    urls = {"memory": "memory://", "gone": "amqp://127.0.0.1:1"}
    flags = [part for name, url in urls.items() for part in ("--broker", f"{name}={url}")]
    printed = await asyncio.to_thread(run, "--json", *flags, "doctor")
    async with api(redis_url, namespace, top={"brokers": urls}) as client:
        answer = await client.get("/v1/checks")
    found = answer.json()
    told = {(each["level"], each["about"]) for each in printed.objects}
    assert {(each["level"], each["about"]) for each in found["items"]} == told
    texts = {each["text"] for each in printed.objects}
    assert len(texts & {_joined(each) for each in found["items"]}) >= len(texts) - 2  # measured
    (gone,) = [each for each in found["items"] if each["about"] == "broker gone"]
    assert gone["level"] == "fail" and _joined(gone) in texts
    (aof,) = [each for each in found["items"] if each["text"].startswith("appendonly")]
    assert aof["level"] == "warn" and "CONFIG SET appendonly yes" in aof["remedy"]
    assert aof["code"] == "store_not_persistent"
    assert found["failed"] == sum(each["level"] == "fail" for each in found["items"]) > 0


def _joined(item: dict[str, str]) -> str:
    return ". ".join(filter(None, (item["text"], item["remedy"])))


@pytest.mark.parametrize("read_only", [False, True])
async def test_only_an_administrator_may_ask_and_not_where_nothing_is_changed(
    redis_url: str, namespace: str, token_file: Path, read_only: bool
) -> None:
    file = str(token_file)
    async with api(redis_url, namespace, token_file=file, read_only=read_only) as client:
        for scope, token in TOKENS.items():
            headers = {"authorization": f"Bearer {token}"}
            may = scope == "admin" and not read_only
            for path in ("/v1/checks", "/store/checks"):
                answer = await client.get(path, headers=headers)
                assert answer.status_code == (200 if may else 403), (scope, path)
            assert ("/store/checks" in (await client.get("/store", headers=headers)).text) is may


async def test_no_finding_has_a_password(namespace: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(brokers, "CONNECT_TIMEOUT_S", 1.0)
    with RedisServer(["--requirepass", CANARY]) as server:
        port = server.url.rpartition(":")[2].partition("/")[0]
        urls = {
            "rabbitmq": f"amqp://u:{CANARY}@127.0.0.1:1/%2F",
            "kafka": f"kafka://u:{CANARY}@127.0.0.1:1",
            "hook": f"https://u:{CANARY}@127.0.0.1:1/",
        }
        ledger = {"url": f"postgresql+psycopg://u:{CANARY}@127.0.0.1:1/x"}
        there, away = f"redis://:{CANARY}@127.0.0.1:{port}/0", f"redis://:{CANARY}@127.0.0.1:1/0"
        for url, tried in ((there, urls), (away, {"rabbitmq": urls["rabbitmq"]})):
            soon = {"url": url, "timeout_s": 5.0}
            given = {"top": {"brokers": tried}, "ledger": ledger, "redis": soon}
            async with api(url, namespace, **given) as client:
                asked = client.get("/v1/checks"), client.get("/store/checks")
                answer, page = await asyncio.gather(*asked)
                assert answer.status_code == 200 and answer.json()["failed"] >= 3, answer.text
                assert page.status_code == 200 and "broker rabbitmq" in page.text
                assert CANARY not in answer.text + page.text


class Slow:
    """Checks that find one thing, and the next when they are told to."""

    def __init__(self) -> None:
        self.runs, self.has_begun, self.goes_on = 0, threading.Event(), threading.Event()

    def __call__(self, settings: Settings) -> Iterator[Finding]:
        self.runs += 1
        yield Finding(OK, "first", "well")
        self.has_begun.set()
        assert self.goes_on.wait(DEADLINE_S)
        yield Finding(OK, "second", f"of run {self.runs}")


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> Iterator[Slow]:
    slow = Slow()
    monkeypatch.setattr(doctor, "findings", slow)
    yield slow
    slow.goes_on.set()


async def test_who_asks_meanwhile_shares_the_checks_and_others_are_answered(
    slow: Slow, http: httpx.AsyncClient
) -> None:
    asked = [asyncio.create_task(http.get("/v1/checks")) for _ in range(3)]
    assert (await http.get("/health/live")).status_code == 200
    assert not any(task.done() for task in asked)
    slow.goes_on.set()
    answers = [(await task).json() for task in asked]
    assert slow.runs == 1
    assert [item["about"] for item in answers[0]["items"]] == ["first", "second"]
    assert answers[1:] == answers[:1] * 2
    again = (await http.get("/v1/checks")).json()
    assert again["items"][1]["text"] == "of run 2"


async def test_at_the_deadline_what_was_found_is_told_and_the_checks_go_on(slow: Slow) -> None:
    checks = doctor.Doctor(Settings.load())
    first = asyncio.create_task(checks.findings(within_s=DEADLINE_S))
    await until_async(slow.has_begun.is_set, "the first is found")
    early = await checks.findings(within_s=0.2)
    assert [each.about for each in early] == ["first", "checks"]
    assert early[1].level == "FAIL" and "within 0.2 s" in early[1].text
    slow.goes_on.set()
    assert [each.text for each in await first] == ["well", "of run 1"]


async def test_a_defect_in_a_check_is_told_once_and_the_next_asks_anew(
    http: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(settings: Settings) -> Iterator[Finding]:
        raise RuntimeError(CANARY)
        yield

    with monkeypatch.context() as patch:
        patch.setattr(doctor, "findings", broken)
        answer = await http.get("/v1/checks")
        assert answer.status_code == 500 and CANARY not in answer.text
    assert (await http.get("/v1/checks")).status_code == 200
