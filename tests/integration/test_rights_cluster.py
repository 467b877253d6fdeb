"""Users with no more than the rights of docs/security.md on a Cluster and on Sentinels."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from delaybridge import Client, StoreDenied
from delaybridge.operate import cli
from delaybridge.operate.parts import rights
from delaybridge.store.namespace import registry
from delaybridge.store.redis.store import Store
from tests.rigs.crew import Arrived, Crew
from tests.rigs.waiting import until
from tests.servers.cluster import ClusterSite
from tests.servers.sentinel import SentinelSite

PAGE = (Path(__file__).parents[2] / "docs" / "security.md").read_text()
LINES = re.findall(r"^ACL SETUSER (\w+) (.*)$", PAGE, re.M)
MEMORY = {"memory": "memory://"}


@pytest.fixture
def users(cluster_site: ClusterSite, namespace: str) -> Iterator[None]:
    """The users of the page, on every server; taken away at the end."""
    names = {name for name, _ in LINES if name != "watch"}
    for node in cluster_site.nodes:
        for name, rules in LINES:
            if name in names:
                words = rules.replace("NS", namespace).split()
                node.client.execute_command("ACL", "SETUSER", name, *words)
    yield
    for node in cluster_site.nodes:
        node.client.execute_command("ACL", "DELUSER", *names)


def as_user(site: ClusterSite, name: str) -> str:
    return site.url.replace("://", f"://{name}:PASSWORD@")


def lacking(site: ClusterSite, role: str, namespace: str) -> list[str]:
    store = Store(as_user(site, role))
    store.run([registry.store_time()])
    found = store.complete(rights.lacking_for(namespace, role, store))
    store.close()
    return found


@pytest.mark.usefixtures("users")
async def test_the_users_of_the_page_do_their_work_on_a_cluster(
    cluster_site: ClusterSite, namespace: str, arrived: Arrived, capsys: pytest.CaptureFixture[str]
) -> None:
    for role in rights.ROLES:
        assert lacking(cluster_site, role, namespace) == []
    crew = Crew(as_user(cluster_site, "operator"), namespace)
    crew.start(url=as_user(cluster_site, "worker"))
    ids = [f"m{number}" for number in range(40)]
    url = as_user(cluster_site, "producer")
    with Client(url, namespace=namespace, brokers=MEMORY) as client:
        for id in ids:
            client.schedule("memory:q", b"x", delay=0.05, id=id)
    await arrived.all(ids)
    flags = ["--redis", as_user(cluster_site, "operator"), "--namespace", namespace]
    for line in ("doctor", "stats", "health", "bucket ls", "worker ls", "message ls"):
        cli.main([*flags, *line.split()])
        printed = "".join(capsys.readouterr())
        assert not re.search(r"access refused|NOPERM|FAIL  r|internal", printed), printed
    await crew.stop()
    await crew.close()


@pytest.mark.usefixtures("users")
def test_a_right_that_is_missing_on_one_master_is_found_there(
    cluster_site: ClusterSite, namespace: str
) -> None:
    one = cluster_site.masters[1]
    for right in ("hdel", "spublish", "ssubscribe"):
        one.client.execute_command("ACL", "SETUSER", "worker", f"-{right}")
        assert lacking(cluster_site, "worker", namespace) == [f"+{right} (on {one.address})"]
        one.client.execute_command("ACL", "SETUSER", "worker", f"+{right}")
    one.client.execute_command("ACL", "SETUSER", "worker", "resetchannels", f"&{{{namespace}}}*")
    (found,) = lacking(cluster_site, "worker", namespace)
    assert found.startswith(f"&{{{namespace}:*") and found.endswith(f"(on {one.address})")


@pytest.mark.usefixtures("users")
def test_without_the_right_to_load_scripts_an_operator_loads_them(
    cluster_site: ClusterSite, namespace: str, capsys: pytest.CaptureFixture[str]
) -> None:
    for node in cluster_site.masters:
        node.client.execute_command("ACL", "SETUSER", "producer", "-script|load", "-eval")
        node.client.script_flush()
    url = as_user(cluster_site, "producer")
    with Client(url, namespace=namespace, brokers=MEMORY) as client:
        with pytest.raises(StoreDenied, match="delaybridge scripts load"):
            client.schedule("memory:q", b"x", delay=60)
        assert lacking(cluster_site, "producer", namespace) == ["+script|load"]
        assert cli.main(["--redis", as_user(cluster_site, "operator"), "scripts", "load"]) == 0
        assert "on 3 masters" in capsys.readouterr().out
        assert client.schedule("memory:q", b"x", delay=60) == "created"
    assert lacking(cluster_site, "producer", namespace) == []


def test_the_user_of_the_page_may_ask_the_sentinels(
    sentinel_site: SentinelSite, namespace: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (rules,) = [rules for name, rules in LINES if name == "watch"]
    for sentinel in sentinel_site.sentinels:
        sentinel.client.execute_command("ACL", "SETUSER", "watch", *rules.split())
    url = f"{sentinel_site.url}?sentinel_username=watch&sentinel_password=PASSWORD"
    with Client(url, namespace=namespace, brokers=MEMORY) as client:
        assert client.schedule("memory:q", b"x", delay=60) == "created"

    def all_answer() -> bool:  # each is given a third of a second, which one may stand still
        cli.main(["--redis", url, "--namespace", namespace, "doctor"])
        return "3 of 3 answer" in capsys.readouterr().out

    until(all_answer, "the doctor hears all of them")
