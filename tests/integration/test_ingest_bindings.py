"""Other bindings of a delay exchange, which the management API shows; rights that are missing."""

from __future__ import annotations

import asyncio
import re
from functools import partial
from pathlib import Path

import pytest

from delaybridge import cli
from delaybridge.events import Event, SourceUnguarded
from delaybridge.ingest.rabbitmq import management
from delaybridge.ingest.rabbitmq.management import Management, ManagementError
from delaybridge.publish import PublishOptions
from delaybridge.publish.rabbitmq.parameters import parameters_of
from delaybridge.worker.eventlog import EventLog
from tests.rigs.broker_rabbitmq import ManagedNode, managed_node
from tests.rigs.ingest import MakeEntrance
from tests.rigs.ingest_rabbitmq import Exchanges, reading
from tests.rigs.waiting import DEADLINE_S


@pytest.fixture(scope="module")
def node() -> ManagedNode:
    """A private node with the management plugin."""
    return managed_node().start()


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who looks for other bindings once a minute, or once, is to have an answer."""
    monkeypatch.setattr(management, "_TIMEOUT_S", DEADLINE_S)


@pytest.fixture
def entrance_url(node: ManagedNode) -> str:
    return node.url


@pytest.fixture
def make_managed(make_entrance: MakeEntrance, node: ManagedNode) -> MakeEntrance:
    """Entrances that use the management API."""
    return partial(make_entrance, management=[node.management])


def words(capsys: pytest.CaptureFixture[str]) -> str:
    return " ".join(capsys.readouterr().out.split())


async def test_a_queue_bound_to_a_delay_exchange_is_reported(
    make_managed: MakeEntrance,
    rabbit: Exchanges,
    node: ManagedNode,
    redis_url: str,
    namespace: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    events: list[Event] = []
    monkeypatch.setattr(EventLog, "__call__", lambda _, e: events.append(e))
    delay, wrong = f"{namespace}.delay", f"{namespace}-wrong"
    await rabbit.target(wrong)
    entrance = make_managed()
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
    node: ManagedNode, namespace: str, tmp_path: Path
) -> None:
    file = tmp_path / "password"
    file.write_text("guest\n")
    url = node.url.replace(":guest@", "@") + f"?password_file={file}"
    parameters = parameters_of("rabbitmq", url, PublishOptions())
    api = Management.of("rabbitmq", parameters, [node.management])
    assert await api.bindings_into(namespace) == []
    file.write_text("wrong")
    with pytest.raises(ManagementError, match="401"):
        await api.bindings_into(namespace)


async def test_a_user_without_the_right_to_mark_the_owner_reads_and_is_warned(
    make_managed: MakeEntrance,
    rabbit: Exchanges,
    node: ManagedNode,
    namespace: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    events: list[Event] = []
    monkeypatch.setattr(EventLog, "__call__", lambda _, e: events.append(e))
    await asyncio.to_thread(node.ctl, "add_user", namespace, "secret")
    target = re.escape(namespace)
    own = rf"{target}\.delay(\.expired)?"
    rights = [f"^{own}$", f"^({target}|{own})$", f"^{own}$"]
    await asyncio.to_thread(node.ctl, "set_permissions", namespace, *rights)
    url = node.url.replace("guest:guest", f"{namespace}:secret")
    entrance = make_managed(url=url)
    entrance.ingest("rabbitmq")
    await reading(entrance, f"{namespace}.delay")
    (event,) = [e for e in events if isinstance(e, SourceUnguarded)]
    assert "403" in event.reason or "ACCESS_REFUSED" in event.reason
    assert f"'{namespace}.delay'" in event.reason
