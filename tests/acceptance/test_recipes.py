"""Runs every program of docs/recipes.md as a reader does."""

from __future__ import annotations

import importlib.util
import re
import shutil
import socket
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest

from delaybridge import Client
from tests.rigs.bridge import ROOT
from tests.rigs.pages import blocks
from tests.rigs.terminals import WatchedUser
from tests.rigs.waiting import until
from tests.servers import languages
from tests.servers.process import LOOPBACK, free_port

PAGE = "docs/recipes.md"
PROGRAM = re.compile(r"`([\w.]+)`[^`\n]*:\n\n```(\w+)\n(.*?)```", re.DOTALL)
CONSUMER = "consumer"  # the README's
LONGEST = 40  # lines of a program
FLAKY = """
tries = []
@dramatiq.actor(queue_name="orders.flaky", min_backoff=2000)
def flaky():
    tries.append(1)
    assert len(tries) > 1
    print("tried again", flush=True)
"""


class Reader(WatchedUser):
    """A reader of the page, whose worker and consumer run."""

    def follow(self, title: str, setup: str = "") -> str:
        """Do what a section says; returns the name of its program."""
        section = (ROOT / PAGE).read_text().split(f"\n## {title}\n")[1].split("\n## ")[0]
        port = str(free_port())
        ((name, _, code),) = PROGRAM.findall(section)
        assert isinstance(name, str)
        (self.folder / name).write_text(self.here(code))
        *servers, last = (
            setup + self.here(block).replace("8000", port) for block in blocks(PAGE, "sh", title)
        )
        for command in servers:
            self.start(f"{name}.log", command, "sh")
            if port in command:
                until(lambda: is_open(int(port)), f"{title} answers: {self.printed(f'{name}.log')}")
        self.start(f"{name}.last", last, "sh")
        return name

    def check_arrives(self, name: str, log: str, text: str) -> None:
        """Check that it arrives, and that nothing waits: what was cancelled never comes."""

        def said() -> str:
            with suppress(FileNotFoundError):
                return self.printed(log)
            return ""

        until(lambda: text in said(), lambda: f"{text!r} of {name}: {said()}", interval_s=0.1)
        self.check_nothing_waits()


def is_open(port: int) -> bool:
    with suppress(OSError), socket.create_connection((LOOPBACK, port)):
        return True
    return False


@pytest.fixture(scope="module")
def reader(
    tmp_path_factory: pytest.TempPathFactory, redis_url: str, rabbitmq_url: str
) -> Iterator[Reader]:
    """A reader who has started a worker as the page says, and the README's consumer."""
    reader = Reader(tmp_path_factory.mktemp("recipes"), redis_url, {"rabbitmq": rabbitmq_url})
    try:
        (consumer,) = (block for block in blocks("README.md", "sh") if "consume(" in block)
        reader.start(CONSUMER, reader.here(consumer), "sh")
        reader.start("worker", reader.here(blocks(PAGE, "sh")[0]), "sh")
        until(reader.is_read, "the worker reads the delay exchange", interval_s=0.1)
        yield reader
    finally:
        reader.close()


@pytest.mark.parametrize(
    ("title", "log", "text"),
    [
        ("FastAPI", CONSUMER, '{"id":1,"customer":"Ada"}'),
        ("Flask", CONSUMER, '{"order":3,"from":"Flask"}'),
        ("Django", CONSUMER, '{"order":5,"from":"Django"}'),
        ("dramatiq", "jobs_dramatiq.py.log", "dramatiq reminds Ada"),
        ("taskiq", "jobs_taskiq.py.log", "taskiq reminds Ada"),
        ("FastStream", "app_faststream.py.last", "FastStream: order 7 is due"),
    ],
)
@pytest.mark.slow_with("Flask-*", "Django*", "dramatiq-*", "taskiq-*", "FastStream-*")
def test_each_framework_of_the_page_delays_its_message(
    reader: Reader, title: str, log: str, text: str
) -> None:
    name = reader.follow(title)
    reader.check_arrives(name, log, text)
    assert "Traceback" not in reader.printed(f"{name}.last")
    if title in ("FastAPI", "Flask", "dramatiq"):  # the others cancel what is due in an hour
        assert "cancelled" in reader.printed(f"{name}.last")


@pytest.mark.slow
def test_a_retry_of_dramatiq_waits_in_delaybridge_too(reader: Reader) -> None:
    recipe, *_ = PROGRAM.findall((ROOT / PAGE).read_text().split("\n## dramatiq\n")[1])
    code = recipe[2] + FLAKY
    (reader.folder / "flaky.py").write_text(reader.here(code))
    reader.start("flaky.log", "dramatiq flaky --processes 1 --threads 1", "sh")
    reader.run("from flaky import flaky; flaky.send()")
    until(lambda: reader.client.stats().delayed, "the retry is stored")
    reader.check_arrives("flaky", "flaky.log", "tried again")


@pytest.mark.slow
def test_the_recipe_for_node_delays_its_message(reader: Reader, node_modules: str) -> None:
    name = reader.follow("Node", f"export NODE_PATH={node_modules}\n")
    reader.check_arrives(name, CONSUMER, "order 9 of Node")


@pytest.mark.slow
def test_the_recipe_for_go_delays_its_message(reader: Reader) -> None:
    languages.command("go")
    for name in ("go.mod", "go.sum"):
        shutil.copy(languages.GO / name, reader.folder)
    asked = ["go", "env", "GOMODCACHE", "GOCACHE"]
    found = subprocess.run(asked, capture_output=True, text=True, check=True).stdout.split()
    setup = "export GOMODCACHE={} GOCACHE={} GOFLAGS=-mod=readonly\n".format(*found)
    reader.check_arrives(reader.follow("Go", setup), CONSUMER, "order 11 of Go")


@pytest.mark.slow
def test_the_recipe_for_java_delays_its_message(reader: Reader) -> None:
    languages.command("java")
    (reader.folder / "libs").symlink_to(languages.java_folder() / "libs")
    reader.check_arrives(reader.follow("Java"), CONSUMER, "order 13 of Java")


@pytest.mark.slow
def test_the_recipe_for_tenants_limits_one_and_not_the_other(reader: Reader) -> None:
    name = reader.follow("Limit a tenant")
    reader.check_arrives(name, CONSUMER, "acme 9")
    came = re.findall(r"b'(acme|beta) \d'", reader.printed(CONSUMER))
    assert sorted(came) == [*["acme"] * 10, "beta"]
    assert came[-1] == "acme"  # the other tenant does not wait for it
    (place,) = reader.client.destinations(f"rabbitmq:{reader.name}/acme").places
    assert place.rule.rate == 5


@pytest.mark.slow
def test_the_recipe_for_a_slow_team_has_workers_and_rules_that_are_its_own(reader: Reader) -> None:
    name = reader.follow("A slow broker or team with workers of its own")
    brokers = {"rabbitmq": reader.rabbitmq_url}
    with Client(reader.redis_url, namespace=f"{reader.name}-reports", brokers=brokers) as reports:
        until(lambda: "report 4" in reader.printed(CONSUMER), "it is delivered", interval_s=0.1)
        pids = [{each.pid for each in one.stats().workers} for one in (reports, reader.client)]
        assert len(pids[0]) == len(pids[1]) == 1
        assert pids[0].isdisjoint(pids[1])
        reports.destinations.pause("rabbitmq")
        for client, body in ((reports, "of reports"), (reader.client, "of orders")):
            client.schedule(f"rabbitmq:{reader.name}/x", body, delay=0.1)
        reader.check_arrives(name, CONSUMER, "of orders")
        assert reports.stats().delayed + reports.stats().parked == 1
    assert "of reports" not in reader.printed(CONSUMER)


@pytest.mark.slow
def test_the_recipe_that_re_arms_itself_comes_to_its_last_step(reader: Reader) -> None:
    name = reader.follow("A workflow that re-arms itself")
    reader.check_arrives(name, f"{name}.last", "invoice 7: reminder 3")
    steps = [f"invoice 7: reminder {step}" for step in (1, 2, 3)]
    assert reader.printed(f"{name}.last").splitlines() == steps


def test_the_recipe_that_encrypts_stores_nothing_that_can_be_read(reader: Reader) -> None:
    reader.client.destinations.pause("rabbitmq")
    try:
        name = reader.follow("Payloads encrypted before they are stored")
        until(lambda: reader.client.get("card-1") is not None, "it is stored")
        stored = reader.client.get("card-1")
        assert stored is not None
        assert b"4242" not in (stored.body or b"")
    finally:
        reader.client.destinations.resume("rabbitmq")
    reader.check_arrives(name, f"{name}.last", "received card 4242 of Ada")


def test_the_recipe_for_business_hours_finds_the_next_opening(reader: Reader) -> None:
    name = reader.follow("Business hours and jitter")
    until(lambda: reader.client.get("call-ada") is not None, "it is stored")
    assert reader.client.cancel("call-ada") == "cancelled"
    spec = importlib.util.spec_from_file_location("hours", reader.folder / name)
    assert spec is not None
    assert spec.loader is not None
    hours = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(hours)
    berlin = ZoneInfo("Europe/Berlin")
    for given, opens in {
        "2026-10-23T16:59": "2026-10-23T16:59+02:00",  # a Friday
        "2026-10-23T17:00": "2026-10-26T09:00+01:00",  # over the change of the clocks
        "2026-10-24T05:00": "2026-10-26T09:00+01:00",
        "2026-10-26T08:59": "2026-10-26T09:00+01:00",
        "2026-10-26T23:00": "2026-10-27T09:00+01:00",
    }.items():
        found = hours.next_open(datetime.fromisoformat(given).replace(tzinfo=berlin))
        assert found.isoformat(timespec="minutes") == opens
        later = hours.jittered(found)
        assert hours.next_open(later) == later >= found


def test_every_section_of_the_page_is_run() -> None:
    """A recipe that is added to the page fails here until a test runs it."""
    own, page = Path(__file__).read_text(), (ROOT / PAGE).read_text()
    titles = re.findall(r"^## (.*)$", page, re.MULTILINE)
    assert [title for title in titles if f'"{title}"' not in own] == []
    programs = PROGRAM.findall(page)
    assert len(programs) == len(titles)
    assert [name for name, _, code in programs if code.count("\n") > LONGEST] == []
