"""Delay exchanges on a RabbitMQ with its management API: direct ones, and other bindings."""

from __future__ import annotations

import asyncio
import re
import shlex
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from delaybridge import cli
from delaybridge.cli.logs import TextFormatter
from delaybridge.events import Event, SourceUnguarded
from delaybridge.ingest.rabbitmq import management
from delaybridge.worker.eventlog import EventLog
from tests.rigs.ingest import Entrance, MakeEntrance
from tests.rigs.ingest_rabbitmq import HOUR_MS, Exchanges, reading, source
from tests.rigs.waiting import DEADLINE_S
from tests.servers.process import LOOPBACK, free_port
from tests.servers.rabbitmq import RabbitMQNode


class Managed(RabbitMQNode):
    """A private node with the management plugin."""

    def __init__(self) -> None:
        self.management_port = free_port()
        super().__init__(
            f"management.tcp.ip = {LOOPBACK}\nmanagement.tcp.port = {self.management_port}\n"
        )
        (self.folder / "enabled_plugins").write_text("[rabbitmq_management].\n")

    @property
    def management(self) -> str:
        return f"http://{LOOPBACK}:{self.management_port}"


@pytest.fixture(scope="module")
def node() -> Iterator[Managed]:
    made = Managed()
    with made.start():
        yield made


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who looks for other bindings once a minute, or once, is to have an answer."""
    monkeypatch.setattr(management, "_TIMEOUT_S", DEADLINE_S)


@pytest.fixture
def entrance_url(node: Managed) -> str:
    return node.url


@pytest.fixture
def make_direct(make_entrance: MakeEntrance, node: Managed, namespace: str) -> MakeEntrance:
    """Entrances that read one direct exchange."""
    direct = {"exchanges": [f"{namespace}.delay;type=direct"], "management": [node.management]}
    return partial(make_entrance, **direct)


async def declared_plainly(rabbit: Exchanges, exchange: str) -> None:
    """As by a producer without delaybridge."""
    await rabbit.do(lambda channel: channel.exchange_declare(exchange, "direct", durable=True))


async def is_delayed(entrance: Entrance, rabbit: Exchanges, exchange: str) -> None:
    await rabbit.publish(exchange, "any key", b"body", {"x-delay": HOUR_MS})
    (stored,) = await entrance.until(entrance.delayed, "stored")
    assert (stored.body, stored.destination.partition("/")[2]) == (b"body", "any key")


@pytest.mark.parametrize("first", ["producer", "ingest"])
async def test_a_direct_exchange_is_declared_by_either_first(
    first: str, make_direct: MakeEntrance, rabbit: Exchanges, namespace: str
) -> None:
    delay = f"{namespace}.delay"
    entrance = make_direct()
    if first == "producer":
        await declared_plainly(rabbit, delay)
    entrance.ingest("rabbitmq")
    await reading(entrance, delay)
    await declared_plainly(rabbit, delay)
    await is_delayed(entrance, rabbit, delay)


@pytest.mark.parametrize("first", ["producer", "ingest"])
@pytest.mark.slow_with("producer")
async def test_if_no_policy_may_be_set_the_command_to_run_is_printed(
    first: str,
    make_direct: MakeEntrance,
    rabbit: Exchanges,
    node: Managed,
    namespace: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    delay = f"{namespace}.delay"
    entrance = make_direct(management=[f"http://{LOOPBACK}:{free_port()}"])
    if first == "producer":
        await declared_plainly(rabbit, delay)
    entrance.ingest("rabbitmq")

    def line() -> str:
        """The command in the log, complete and ready to paste."""
        log = "\n".join(TextFormatter().format(record) for record in caplog.records)
        command = re.search(r": rabbitmqctl (set_policy .*)", log)
        return command[1] if command else ""

    command = await entrance.until(line, "the line to run")

    async def is_announced() -> bool:
        shown = await source(entrance, delay)
        return shown is not None and command in shown.state

    await entrance.until(is_announced, "the command as the source's state")
    await asyncio.to_thread(node.ctl, *shlex.split(command))
    await reading(entrance, delay)
    await declared_plainly(rabbit, delay)
    await is_delayed(entrance, rabbit, delay)
    assert not await entrance.dead()


async def test_an_exchange_declared_by_an_earlier_version_is_used_unchanged(
    make_direct: MakeEntrance, rabbit: Exchanges, namespace: str
) -> None:
    delay = f"{namespace}.delay"
    alternate = {"alternate-exchange": f"{delay}.intake"}
    await rabbit.do(
        lambda channel: channel.exchange_declare(delay, "direct", durable=True, arguments=alternate)
    )
    entrance = make_direct(management=[f"http://{LOOPBACK}:{free_port()}"])
    entrance.ingest("rabbitmq")
    await reading(entrance, delay)
    await is_delayed(entrance, rabbit, delay)


def words(capsys: pytest.CaptureFixture[str]) -> str:
    return " ".join(capsys.readouterr().out.split())


async def test_a_queue_bound_to_a_delay_exchange_is_reported(
    make_direct: MakeEntrance,
    rabbit: Exchanges,
    node: Managed,
    redis_url: str,
    namespace: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    events: list[Event] = []
    monkeypatch.setattr(EventLog, "__call__", lambda _, e: events.append(e))
    delay, wrong = f"{namespace}.delay", f"{namespace}-wrong"
    await rabbit.target(wrong)
    entrance = make_direct(exchanges=[delay])
    entrance.ingest("rabbitmq")
    await reading(entrance, delay)
    monkeypatch.setenv("DELAYBRIDGE_BUCKETS", "4")
    monkeypatch.setenv("DELAYBRIDGE_INGEST__EXCHANGES", delay)
    monkeypatch.setenv("DELAYBRIDGE_INGEST__MANAGEMENT", node.management)
    doctor = ["--redis", redis_url, "--namespace", namespace]
    doctor += ["--broker", f"rabbitmq={node.url}", "doctor"]
    await asyncio.to_thread(cli.main, doctor)
    assert f"bound to {delay}" in words(capsys)
    await rabbit.do(lambda channel: channel.queue_bind(wrong, delay, "#"))
    assert await asyncio.to_thread(cli.main, doctor) == 1
    assert f"queue {wrong}; bind to '{namespace}' instead" in words(capsys)
    # if the settings name no exchange, the running process announces it
    monkeypatch.delenv("DELAYBRIDGE_INGEST__EXCHANGES")
    assert await asyncio.to_thread(cli.main, doctor) == 1
    assert f"queue {wrong}; bind to '{namespace}' instead" in words(capsys)
    # a process that starts to read reports it, too
    entrance.ingest("rabbitmq")

    def reasons() -> list[str]:
        return [e.reason for e in events if isinstance(e, SourceUnguarded)]

    (reason,) = await entrance.until(reasons, "a warning")
    assert f"queue {wrong}" in reason


async def test_the_management_api_is_asked_with_the_password_in_the_file(
    make_direct: MakeEntrance, rabbit: Exchanges, node: Managed, namespace: str, tmp_path: Path
) -> None:
    file = tmp_path / "password"
    file.write_text("guest\n")
    url = node.url.replace(":guest@", "@") + f"?password_file={file}"
    entrance = make_direct(url=url)
    entrance.ingest("rabbitmq")
    await reading(entrance, f"{namespace}.delay")  # a policy is set, or it would not be read


async def test_a_user_without_the_right_to_mark_the_owner_reads_and_is_warned(
    make_direct: MakeEntrance,
    rabbit: Exchanges,
    node: Managed,
    namespace: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    events: list[Event] = []
    monkeypatch.setattr(EventLog, "__call__", lambda _, e: events.append(e))
    await asyncio.to_thread(node.ctl, "add_user", namespace, "secret")
    name = re.escape(f"{namespace}.delay")
    rights = [f"^{name}$", f"^{name}$", f"^{name}$"]
    await asyncio.to_thread(node.ctl, "set_permissions", namespace, *rights)
    url = node.url.replace("guest:guest", f"{namespace}:secret")
    entrance = make_direct(url=url, exchanges=[f"{namespace}.delay"])
    entrance.ingest("rabbitmq")
    await reading(entrance, f"{namespace}.delay")
    (event,) = [e for e in events if isinstance(e, SourceUnguarded)]
    assert "403" in event.reason or "ACCESS_REFUSED" in event.reason
    assert f"'{namespace}.delay'" in event.reason
