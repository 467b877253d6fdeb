"""What others do to a delay exchange at the broker: seen, red, and mended by the command shown."""

from __future__ import annotations

import asyncio
import re
import shlex
from collections.abc import Callable
from functools import partial
from typing import Any

import pika
import pytest

from delaybridge.ingest.rabbitmq import intake, management, watch
from delaybridge.ingest.rabbitmq.topology import binding_arguments
from delaybridge.operate import cli
from delaybridge.operate.terminal.logs import TextFormatter
from tests.rigs.broker_rabbitmq import ManagedNode, managed_node
from tests.rigs.ingest import Entrance, MakeEntrance
from tests.rigs.ingest_fronted import deleted, enlisted, listed, made
from tests.rigs.ingest_rabbitmq import HOUR_MS, Exchanges, reading, source
from tests.rigs.waiting import DEADLINE_S
from tests.servers.process import LOOPBACK, free_port

Check = Callable[..., tuple[int, str]]


@pytest.fixture(scope="module")
def node() -> ManagedNode:
    return managed_node().start()


@pytest.fixture
def entrance_url(node: ManagedNode) -> str:
    return node.url


@pytest.fixture(autouse=True)
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    """Look often, and wait for each answer as long as a busy machine needs."""
    monkeypatch.setattr(watch, "EVERY_S", 0.05)
    monkeypatch.setattr(intake, "_DECLARE_S", 0.05)
    monkeypatch.setattr(management, "_TIMEOUT_S", DEADLINE_S)


@pytest.fixture
def make_managed(make_entrance: MakeEntrance, node: ManagedNode) -> MakeEntrance:
    """Entrances that use the management API."""
    return partial(make_entrance, management=[node.management])


@pytest.fixture
def check(
    node: ManagedNode,
    redis_url: str,
    namespace: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> Check:
    """Runs a command in this process: the exit code, and what it printed."""
    monkeypatch.setenv("DELAYBRIDGE_BUCKETS", "4")
    monkeypatch.setenv("DELAYBRIDGE_INGEST__EXCHANGES", f"{namespace}.delay")
    monkeypatch.setenv("DELAYBRIDGE_INGEST__MANAGEMENT", node.management)

    def run(*command: str, url: str = node.url) -> tuple[int, str]:
        flags = ["--redis", redis_url, "--namespace", namespace]
        code = cli.main([*flags, "--broker", f"rabbitmq={url}", *command])
        return code, " ".join(capsys.readouterr().out.split())

    return run


async def fault(entrance: Entrance, delay: str, about: str) -> str:
    """The one fault of a source that is read, once it is announced."""

    async def found() -> str:
        shown = await source(entrance, delay, "reading")
        faults = shown.faults if shown else ()
        return next((each for each in faults if about in each), "")

    return str(await entrance.until(found, f"a fault with {about!r}"))


async def well(entrance: Entrance, delay: str) -> None:
    async def is_well() -> bool:
        shown = await source(entrance, delay, "reading")
        return shown is not None and not shown.faults

    await entrance.until(is_well, "no fault")


async def pasted(node: ManagedNode, text: str) -> None:
    """Run the `rabbitmqctl` lines at the end of a fault, as a shell would."""
    for line in text[text.index("rabbitmqctl ") :].split(" && "):
        await asyncio.to_thread(node.ctl, *shlex.split(line)[1:])


HOSTILE = "wr'o\"ng $x; \u00fc/"


@pytest.mark.parametrize("kind", ["queue", "exchange"])
async def test_a_foreign_binding_takes_messages_away_and_is_red_with_the_unbind_command(
    kind: str,
    make_managed: MakeEntrance,
    rabbit: Exchanges,
    node: ManagedNode,
    namespace: str,
    check: Check,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    delay, wrong = await rabbit.target(namespace) + ".delay", f"{namespace}-{HOSTILE}"
    await rabbit.target(wrong)
    entrance = make_managed()
    entrance.ingest("rabbitmq")
    await reading(entrance, delay)
    await well(entrance, delay)

    def bind(channel: Any) -> None:
        for key in ("", "two"):  # one command removes both
            getattr(channel, f"{kind}_bind")(wrong, delay, key)

    await rabbit.do(bind)
    text = await fault(entrance, delay, repr(wrong))
    log = [TextFormatter().format(record) for record in caplog.records]
    assert sum(line.endswith(text[text.index(" run: rabbitmqctl") :]) for line in log) == 1
    await rabbit.publish(delay, "k", b"taken")
    assert (await rabbit.take(wrong, 1))[0][2] == b"taken"
    for command in ("health", "doctor"):
        code, out = await asyncio.to_thread(check, command)
        assert (code, out.count(" ".join(text.split()))) == (1, 1), command
    await entrance.stop_all()
    code, out = await asyncio.to_thread(check, "doctor")  # by itself
    assert code == 1 and " ".join(text.split()) in out
    await pasted(node, text)
    entrance.ingest("rabbitmq")
    await well(entrance, delay)
    monkeypatch.delenv("DELAYBRIDGE_INGEST__EXCHANGES")  # the running process announces it
    _, out = await asyncio.to_thread(check, "doctor")
    assert f"nothing else is bound to {delay}" in out
    await rabbit.publish(delay, "k", b"passed on")
    assert (await rabbit.take(namespace, 1))[0][2] == b"passed on"


async def test_a_second_binding_to_the_intake_queue_is_removed_and_a_missing_one_is_red(
    make_managed: MakeEntrance, rabbit: Exchanges, node: ManagedNode, namespace: str, check: Check
) -> None:
    """As an import of definitions of the earlier form brings it back."""
    delay = await rabbit.target(namespace) + ".delay"
    entrance = make_managed()
    task = entrance.ingest("rabbitmq")
    await reading(entrance, delay)
    await well(entrance, delay)
    await entrance.stop(task)

    def bind(channel: Any) -> None:
        channel.queue_bind(delay, delay, "#")
        channel.queue_bind(delay, delay, "k", {"x-match": "all", "h": 1})

    await rabbit.do(bind)
    code, out = await asyncio.to_thread(check, "doctor")
    assert code == 1 and "by more than its own binding" in out
    task = entrance.ingest("rabbitmq")

    async def are_removed() -> bool:
        code, out = await asyncio.to_thread(check, "doctor")
        return code == 0 and f"nothing else is bound to {delay}" in out

    await entrance.until(are_removed, "removed")
    await entrance.stop(task)
    await rabbit.publish(delay, "k", b"", {"h": 1})
    assert (await rabbit.waiting(namespace), await rabbit.waiting(delay)) == (1, 0)
    await rabbit.do(lambda channel: channel.queue_unbind(delay, delay, "", binding_arguments()))
    code, out = await asyncio.to_thread(check, "doctor")
    assert code == 1 and "at once; start ingest" in out


@pytest.mark.parametrize(
    ("kinds", "queue", "definition"),
    [
        (["policies"], "", {"expires": HOUR_MS, "max-length": 5}),
        (["operator-policies"], "", {"expires": HOUR_MS}),
        (["policies", "operator-policies"], "", {"expires": HOUR_MS}),
        (["policies"], ".expired", {"message-ttl": HOUR_MS}),
        (["policies"], ".expired", {"delivery-limit": 3}),
        (["policies"], "", {"max-length": 5, "overflow": "drop-head"}),
        (["policies"], "", {"dead-letter-strategy": "at-most-once"}),
    ],
)
@pytest.mark.slow_with("kinds2-*", "kinds3-*")
async def test_a_policy_that_deletes_or_hides_a_queue_is_red_with_the_command_that_keeps_it_off(
    kinds: list[str],
    queue: str,
    definition: dict[str, Any],
    make_managed: MakeEntrance,
    rabbit: Exchanges,
    node: ManagedNode,
    namespace: str,
) -> None:
    delay = await rabbit.target(namespace) + ".delay"
    entrance = make_managed()
    entrance.ingest("rabbitmq")
    await reading(entrance, delay)
    await well(entrance, delay)
    pattern = f"^{re.escape(delay + queue)}"
    policy = {"pattern": pattern, "definition": definition, "apply-to": "queues", "priority": 10}
    for kind in kinds:
        node.put(f"{kind}/%2F/{namespace}", policy)
    text = await fault(entrance, delay, repr(delay + queue))
    assert text.count("set_policy") == kinds.count("policies")
    assert text.count("set_operator_policy") == kinds.count("operator-policies")
    await pasted(node, text)
    await well(entrance, delay)


HARMLESS = {
    "max-length": 5,
    "overflow": "reject-publish",
    "dead-letter-exchange": "other",
    "alternate-exchange": "other",
}


async def test_a_policy_that_the_queues_make_harmless_is_not_told(
    make_managed: MakeEntrance, rabbit: Exchanges, node: ManagedNode, namespace: str
) -> None:
    delay = await rabbit.target(namespace) + ".delay"
    entrance = make_managed()
    with node.policy(f"^{re.escape(delay)}", **HARMLESS):
        task = entrance.ingest("rabbitmq")
        await reading(entrance, delay)
        counts = entrance.ingest_of(task).counts[0]
        await entrance.until(lambda: "management" in counts._faults, "looked at")
        assert not counts.faults


async def test_a_missing_target_is_red_also_without_the_management_api(
    make_managed: MakeEntrance, rabbit: Exchanges, namespace: str, check: Check
) -> None:
    delay = f"{namespace}.delay"
    entrance = make_managed(management=["off"])
    entrance.ingest("rabbitmq")
    text = await fault(entrance, delay, f"exchange '{namespace}' does not exist")
    code, out = await asyncio.to_thread(check, "health")
    assert code == 1 and text in out
    await rabbit.target(namespace)
    await well(entrance, delay)
    await rabbit.do(lambda channel: channel.exchange_delete(namespace))
    await fault(entrance, delay, "does not exist")


async def test_a_changed_alternate_exchange_is_red_until_the_command_shown_has_run(
    make_managed: MakeEntrance, rabbit: Exchanges, node: ManagedNode, namespace: str, check: Check
) -> None:
    delay = await rabbit.target(namespace) + ".delay"
    entrance = make_managed()
    entrance.ingest("rabbitmq")
    await reading(entrance, delay)

    async def is_changed() -> bool:
        other = {"alternate-exchange": "amq.fanout"}

        def change(channel: Any) -> None:
            channel.exchange_delete(delay)
            channel.exchange_declare(delay, "headers", durable=True, arguments=other)

        try:
            await rabbit.do(change)
        except pika.exceptions.ChannelClosedByBroker:
            return False  # ingest has declared it in between
        return True

    await entrance.until(is_changed, "declared before ingest does")
    text = await fault(entrance, delay, "alternate-exchange")
    assert (await asyncio.to_thread(check, "health"))[0] == 1
    command = re.search(r"delaybridge (ingest rabbitmq --convert \S+)", text)
    assert command, text
    code, out = await asyncio.to_thread(check, *shlex.split(command[1]))
    assert code == 0, out
    await well(entrance, delay)
    await rabbit.publish(delay, "k", b"passed on")
    assert (await rabbit.take(namespace, 1))[0][2] == b"passed on"


async def test_an_exchange_whose_binding_vanished_with_the_delay_exchange_is_named(
    make_managed: MakeEntrance,
    rabbit: Exchanges,
    namespace: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    delay, other = await rabbit.target(namespace) + ".delay", f"{namespace}-other"
    await rabbit.target(other)
    entrance = make_managed()
    seen: list[Any] = []
    ask = management.Management.bindings_into

    async def asked(api: management.Management, exchange: str) -> Any:
        seen[:] = await ask(api, exchange)
        return list(seen)

    monkeypatch.setattr(management.Management, "bindings_into", asked)
    entrance.ingest("rabbitmq")
    await reading(entrance, delay)
    await rabbit.do(lambda channel: channel.exchange_bind(delay, other))
    await entrance.until(lambda: seen, "seen bound")
    await rabbit.do(lambda channel: channel.exchange_delete(delay))
    await entrance.until(lambda: f"exchange '{other}' is not bound" in caplog.text, "told")


def user(node: ManagedNode, name: str, *rights: str) -> str:
    """The URL of a user with these rights to configure, write and read."""
    node.put(f"users/{name}", {"password": "secret", "tags": "management"})
    names = ("configure", "write", "read")
    node.put(f"permissions/%2F/{name}", dict(zip(names, rights, strict=True)))
    return node.url.replace("guest:guest", f"{name}:secret")


async def test_rights_that_are_taken_away_while_ingest_reads_are_red(
    make_managed: MakeEntrance, rabbit: Exchanges, node: ManagedNode, namespace: str
) -> None:
    delay = await rabbit.target(namespace) + ".delay"
    all_rights = [f"^{namespace}"] * 3
    entrance = make_managed(url=user(node, namespace, *all_rights))
    entrance.ingest("rabbitmq")
    await reading(entrance, delay)
    for lost in range(3):
        left = [*all_rights]
        left[lost] = "^$"
        user(node, namespace, *left)
        assert f"begins with '{delay}'" in await fault(entrance, delay, "403 ACCESS_REFUSED")
        user(node, namespace, *all_rights)
        await well(entrance, delay)


async def test_without_the_api_doctor_prints_the_rights_that_forbid_a_binding(
    make_managed: MakeEntrance,
    rabbit: Exchanges,
    node: ManagedNode,
    namespace: str,
    check: Check,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    delay = await rabbit.target(namespace) + ".delay"
    url = user(node, namespace, "^$", "^$", "^$")
    for address in ("off", f"http://{LOOPBACK}:{free_port()}"):
        monkeypatch.setenv("DELAYBRIDGE_INGEST__MANAGEMENT", address)
        _, out = await asyncio.to_thread(check, "doctor", url=url)
        assert "cannot be seen" in out
    found = re.search(rf"rabbitmqctl set_permissions {namespace} (\S+) (\S+) (\S+)", out)
    assert found, out
    await pasted(node, found[0])
    entrance = make_managed(url=url)
    entrance.ingest("rabbitmq")
    await reading(entrance, delay)
    await rabbit.publish(delay, "k", b"stored", {"x-delay": HOUR_MS})
    await entrance.until(entrance.delayed, "stored")
    # whoever has every right but that to read it
    other = Exchanges(user(node, f"{namespace}-c", ".*", ".*", rf"^(?!{re.escape(delay)})"))
    with pytest.raises(pika.exceptions.ChannelClosedByBroker, match="ACCESS_REFUSED"):
        await other.do(lambda channel: channel.queue_bind(namespace, delay, ""))


async def test_a_changed_state_is_announced_at_once_and_not_with_the_next_beat(
    make_managed: MakeEntrance, rabbit: Exchanges, namespace: str
) -> None:
    delay = await rabbit.target(namespace) + ".delay"
    entrance = make_managed(lease={"ttl_ms": 600_000, "renew_ms": 300_000})
    entrance.ingest("rabbitmq")
    await reading(entrance, delay)
    await rabbit.do(lambda channel: channel.exchange_delete(namespace))
    await fault(entrance, delay, "does not exist")
    await rabbit.target(namespace)
    await well(entrance, delay)


async def test_an_exchange_of_a_front_is_found_without_the_list_and_shown_when_it_is_deleted(
    make_managed: MakeEntrance, rabbit: Exchanges, namespace: str, check: Check
) -> None:
    entrance = make_managed(exchanges=[], front=True)
    route = await made(rabbit, f"{namespace}.D")
    task = entrance.ingest("rabbitmq")
    await reading(entrance, route.source)

    async def is_listed() -> bool:
        return await listed(entrance) == [route, other]

    other = await made(rabbit, f"{namespace}.other")
    await enlisted(entrance, other)
    await entrance.until(is_listed, "what is read is on the list")
    await entrance.stop(task)
    code, printed = await asyncio.to_thread(check, "health")
    assert (code, f"no ingest process reads {route.queue}" in printed) == (1, True)
    await deleted(rabbit, route)
    _, printed = await asyncio.to_thread(check, "doctor")
    assert f"rabbitmq:{route.source}: the exchange was deleted; in '{route.queue}'" in printed
