"""Every command that the list of troubles gives as a remedy works when it is pasted.

Those of RabbitMQ are pasted in tests/acceptance/test_incidents.py.
"""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from urllib.parse import urlsplit

import pytest
import redis

from delaybridge import Client
from delaybridge.operate.troubles.addressed import addressed
from delaybridge.operate.troubles.found import troubles
from delaybridge.operate.troubles.listed import listed, trouble
from delaybridge.operate.views.retrying import Retrying
from delaybridge.operate.views.stats import Stats
from delaybridge.settings.settings import Settings
from delaybridge.store.namespace import registry
from delaybridge.store.redis.store import Store
from tests.rigs.bucket import Owner
from tests.rigs.burials import bury
from tests.rigs.command_line import Run
from tests.rigs.ledgers import made
from tests.rigs.waiting import DEADLINE_S
from tests.servers.cluster import ClusterSite
from tests.servers.redis import RedisServer
from tests.servers.sentinel import SentinelSite

VALUES = {
    "broker": "rabbitmq", "destination": "rabbitmq:orders", "place": "rabbitmq:orders",
    "count": "16", "twice": "200000000", "folder": "/etc/apt", "worker": "w1",
    "asked": "16",
}  # fmt: skip
STATS = Stats(0, 0, 0, 0, 0, None, 0, [], [])
FOR_EVER = re.compile(r"delaybridge (scan|front|ingest rabbitmq)\b")


def commands(program: str) -> list[str]:
    """Those that begin like this, of all rows, once."""
    texts = [each.rpartition(": ")[2] for row in listed().values() for each in row.remedy]
    return sorted({each for each in texts if each.startswith(f"{program} ")})


def test_each_remedy_is_words_and_a_command_of_a_known_program() -> None:
    known = "delaybridge redis-cli rabbitmqadmin kafka-topics.sh timedatectl df du export".split()
    for row in listed().values():
        found = trouble(row.code, "", about="x", remedy=". ".join(row.remedy))
        assert len(found.commands) == len(row.remedy), row.code
        assert {each.split()[0] for each in found.commands} <= set(known), row.code


@pytest.fixture
def namespace_in_use(
    store: Store, caller: Client, namespace: str, owner_of: Callable[[str], Owner]
) -> None:
    """A worker that is alive, a message that waits, one that is dead, and a pause."""
    about = b'{"instance": "a1", "brokers": {"rabbitmq": null}, "paused": []}'
    for destination in ("rabbitmq:orders/paid", "rabbitmq:/orders"):
        caller.schedule(destination, b"", delay=900)
    caller.schedule("rabbitmq:orders/paid", b"", delay=900, id="dead")
    bury(owner_of("dead"), "dead", "unroutable: 312")
    caller.destinations.pause("rabbitmq:orders")
    store.run([registry.announce(namespace, "w1", "a1", 300_000, about)])


@pytest.mark.parametrize("command", commands("delaybridge"))
def test_a_command_of_ours_exits_with_0(
    command: str, run: Run, namespace_in_use: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DELAYBRIDGE_BROKERS__RABBITMQ", "amqp://127.0.0.1:1/")
    if "ledger" in command:
        monkeypatch.setenv("DELAYBRIDGE_DURABILITY", "ledger")
        monkeypatch.setenv("DELAYBRIDGE_LEDGER__URL", made(f"sqlite:///{tmp_path / 'ledger.db'}"))
    words = shlex.split(command.format_map(VALUES))[1:]
    if FOR_EVER.match(command):
        words.append("--help")  # its options are known; the drill starts it
    if "drain" in words:
        words.append("--timeout=0s")  # the one whom it asks is an announcement alone
    said = run(*words)
    assert said.code == 0 or (words == ["doctor"] and said.code == 1), said


def pasted(command: str, settings: Settings) -> str:
    """What bash prints when it is pasted, with the address that `doctor` adds; it exits with 0."""
    found = trouble("store_evicts", policy="x", remedy=f"Do: {command.format_map(VALUES)}")
    (text,) = addressed(found, settings).commands
    done = subprocess.run(
        ["bash", "-c", text], capture_output=True, text=True, timeout=DEADLINE_S, check=False
    )
    assert done.returncode == 0 and not done.stdout.startswith("ERR"), (text, done)
    return done.stdout


def of_redis(url: str) -> Settings:
    return Settings.load(overrides={"redis": {"url": url}}, environ={})


OF_OTHERS = re.compile("redis-cli (--cluster|CLUSTER|-p 26379|.*require-full-coverage)")


@pytest.mark.parametrize("command", [c for c in commands("redis-cli") if not OF_OTHERS.match(c)])
def test_a_command_for_redis_works(command: str) -> None:
    with RedisServer() as server:
        said = pasted(command, of_redis(server.url))
        assert said
        if "CONFIG SET" in command:
            name, value = command.format_map(VALUES).split()[-2:]
            with redis.Redis.from_url(server.url, decode_responses=True) as client:
                assert said == "OK\n" and client.config_get(name) == {name: value}
                client.config_set("appendonly", "no")  # it does not end while it writes a file


@pytest.mark.slow  # it starts a Cluster and Sentinels
@pytest.mark.parametrize("command", [c for c in commands("redis-cli") if OF_OTHERS.match(c)])
def test_a_command_for_a_cluster_or_sentinels_works(
    command: str, cluster_site: ClusterSite, sentinel_site: SentinelSite
) -> None:
    node = cluster_site.nodes[0].address
    if "26379" in command:
        port = str(sentinel_site.sentinels[0].port)
        command = command.replace("26379", port).replace(
            "{service}", urlsplit(sentinel_site.url).path.split("/")[1]
        )
    found = trouble("store_evicts", about=f"redis {node}", policy="x", remedy=f"Do: {command}")
    (text,) = addressed(found, of_redis(cluster_site.url)).commands
    done = subprocess.run(
        ["bash", "-c", f"echo yes | {text.replace('{node}', node)}"],
        capture_output=True, text=True, timeout=DEADLINE_S, check=False,
    )  # fmt: skip
    assert done.returncode == 0 and not done.stdout.startswith("ERR"), (text, done)


def test_exports_are_settings_and_the_rest_runs() -> None:
    lines = [each.format_map(VALUES) for each in commands("export")]
    settings = of_redis("redis://localhost/0")
    check = f"{shlex.quote(sys.executable)} -m delaybridge config show --sources"
    for line in lines:
        name = line.split()[1].partition("=")[0]
        assert name in pasted(f"{line} DELAYBRIDGE_LEDGER__URL=sqlite:///x && {check}", settings)
    for command in [*commands("df"), *commands("du")]:
        assert pasted(command, settings)


@pytest.mark.parametrize(
    ("url", "options"),
    [
        ("redis://h", "-h h -p 6379"),
        ("rediss://bob:s3cretZr7qK2mVx9TbWc4P@h:7/3", "--tls -h h -p 7 --user bob"),
        ("unix:///run/a%20b.sock", "-s '/run/a b.sock'"),
        ("redis+cluster://x:1,y:2", "-h n -p 9"),
        ("redis+sentinel://x:1/s", "-h n -p 9"),
    ],
)
def test_a_command_for_redis_has_the_address_and_no_password(url: str, options: str) -> None:
    found = trouble("store_evicts", about="redis n:9", policy="x")
    expected = f"redis-cli {options} CONFIG SET maxmemory-policy noeviction"
    once = addressed(found, of_redis(url))
    assert once.commands == [expected]
    assert addressed(once, of_redis(url)) == once


@pytest.mark.parametrize(
    ("destination", "reason", "commands"),
    [
        ("r:a%20b", "exchange_missing: 404",
         ["rabbitmqadmin --host h --vhost 'v w' -u me declare exchange --name 'a b' --type topic "
          "--durable true"]),
        ("r:orders", "unroutable: 312 NO_ROUTE, no queue is bound with key 'a b'",
         ["rabbitmqadmin --host h --vhost 'v w' -u me declare queue --name 'orders.a b' --type "
          "quorum --durable true && rabbitmqadmin --host h --vhost 'v w' -u me declare binding "
          "--source orders --destination-type queue --destination 'orders.a b' --routing-key "
          "'a b'"]),
        ("r:/q", "unroutable: 312 NO_ROUTE, no queue is named 'q'",
         ["rabbitmqadmin --host h --vhost 'v w' -u me declare queue --name q --type quorum "
          "--durable true"]),
        ("k:t", "topic_missing: 3",
         ["kafka-topics.sh --bootstrap-server a:1,b:2 --create --topic t"]),
    ],
)  # fmt: skip
def test_what_is_missing_at_a_broker_is_made_there(
    destination: str, reason: str, commands: list[str]
) -> None:
    brokers = {"r": "amqp://me:s3cretZr7qK2mVx9TbWc4P@h:1/v%20w", "k": "kafka://u:p@a:1,b:2"}
    settings = Settings.load(overrides={"brokers": brokers}, environ={})
    failing = Retrying(destination, reason.partition(":")[0], 1, 0, reason)
    (found,) = troubles(STATS._replace(retrying=[failing]), settings=settings)
    assert found.commands == [*commands, f"delaybridge dead kick --destination {destination} --yes"]
