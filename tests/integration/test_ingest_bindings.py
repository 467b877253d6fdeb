"""A RabbitMQ with the management API: its password, and rights that are missing."""

from __future__ import annotations

import asyncio
import re
from functools import partial
from pathlib import Path

import pytest

from delaybridge.events import Event, SourceUnguarded
from delaybridge.ingest.rabbitmq import management
from delaybridge.ingest.rabbitmq.management import Management, ManagementError
from delaybridge.publish import PublishOptions
from delaybridge.publish.rabbitmq.publisher import parameters_of
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
    """Who asks once is to have an answer."""
    monkeypatch.setattr(management, "_TIMEOUT_S", DEADLINE_S)


@pytest.fixture
def entrance_url(node: ManagedNode) -> str:
    return node.url


@pytest.fixture
def make_managed(make_entrance: MakeEntrance, node: ManagedNode) -> MakeEntrance:
    """Entrances that use the management API."""
    return partial(make_entrance, management=[node.management])


async def test_the_management_api_is_asked_with_the_password_in_the_file(
    node: ManagedNode, namespace: str, tmp_path: Path
) -> None:
    file = tmp_path / "password"
    file.write_text("guest\n")
    url = node.url.replace(":guest@", "@") + f"?password_file={file}"
    parameters = parameters_of("rabbitmq", url, PublishOptions())
    api = Management.for_broker("rabbitmq", parameters, [node.management])
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
    await rabbit.target(namespace)
    entrance = make_managed(url=url)
    entrance.ingest("rabbitmq")
    await reading(entrance, f"{namespace}.delay")
    (event,) = [e for e in events if isinstance(e, SourceUnguarded)]
    assert "403" in event.reason or "ACCESS_REFUSED" in event.reason
    assert f"'{namespace}.delay'" in event.reason
