"""Redis users with the rights that docs/security.md gives them, and with one right less."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis

from delaybridge import Client
from delaybridge.errors import StoreDenied
from delaybridge.message import Answer
from delaybridge.operate import cli
from delaybridge.operate.parts import rights
from delaybridge.operate.views.facts import read_facts
from delaybridge.store.calls import Calls
from delaybridge.store.namespace import registry
from delaybridge.store.protocol import verbs
from delaybridge.store.protocol.verbs import Steps
from delaybridge.store.redis.store import Store
from tests.rigs.crew import Arrived, Crew
from tests.rigs.waiting import until, until_async
from tests.servers.redis import EVERY_VERSION, VERSIONS, RedisServer

PAGE = (Path(__file__).parents[2] / "docs" / "security.md").read_text()
LINES = dict(re.findall(rf"^ACL SETUSER ({'|'.join(rights.ROLES)}) (on .*)$", PAGE, re.M))
NS = "ns.1"


class Guarded:
    """A Redis with the users of the page of security."""

    def __init__(self, server: RedisServer) -> None:
        self.server = server
        self.redis = redis.Redis.from_url(server.url)
        self.reset()

    def reset(self) -> None:
        """Each user with all its rights, and no other."""
        for name, rules in LINES.items():
            self.change(name, "reset", *rules.replace("NS", NS).split())

    def change(self, name: str, *rules: str) -> None:
        self.redis.execute_command("ACL", "SETUSER", name, *rules)

    def url(self, name: str) -> str:
        return f"redis://{name}:PASSWORD@127.0.0.1:{self.server.port}/0"


@pytest.fixture(scope="module", params=EVERY_VERSION)
def server(request: pytest.FixtureRequest) -> Iterator[RedisServer]:
    """Each version of Redis has its own words for a refusal."""
    binary = VERSIONS[request.param]()
    if binary is None:
        pytest.skip("no such server here")
    with RedisServer(binary=binary) as server:
        yield server


@pytest.fixture
def guarded(server: RedisServer) -> Iterator[Guarded]:
    guarded = Guarded(server)
    guarded.redis.flushall()
    yield guarded
    guarded.redis.close()


COMMANDS = (
    *("stats", "health", "worker ls", "bucket ls", "dead ls", "dead ls --by-reason", "message ls"),
    *("message ls --state parked", "message ls --state in_flight", "message ls --state dead"),
    *("message show later", "message reschedule later --in 2h", "message publish-now soon"),
    *("message cancel later", "message cancel --destination memory:p --yes", "dead show lost"),
    *("dead kick lost", "dead discard lost", "schedule memory:q x --in 1h", "doctor"),
    "destination purge memory:q --confirm memory:q",
)


async def test_each_user_of_the_page_of_security_can_do_its_work_and_an_operator_every_command(
    guarded: Guarded, arrived: Arrived, capsys: pytest.CaptureFixture[str]
) -> None:
    with Client(guarded.url("producer"), namespace=NS, brokers={"memory": "memory://"}) as client:
        crew = Crew(guarded.url("operator"), NS)
        crew.start(url=guarded.url("worker"))
        client.schedule("memory:q", b"x", delay=0.05, id="first")
        await arrived.all(["first"])
        for id, destination in (("later", "memory:q"), ("soon", "memory:q"), ("p", "memory:p")):
            client.schedule(destination, b"x", delay=3600, id=id)
        client.schedule("memory:q", b"x", delay=3600, id="gone")
        assert client.get("gone") is not None
        assert client.reschedule("gone", delay=7200) == Answer.RESCHEDULED
        assert client.cancel("gone") == Answer.CANCELLED
        _ingest(client)
        refused = []
        for line in COMMANDS:
            flags = ["--redis", guarded.url("operator"), "--namespace", NS]
            flags += [] if line == "doctor" else ["--broker", "memory=memory://"]
            code = cli.main([*flags, *line.split()])
            printed = "".join(capsys.readouterr())
            if code == 2 or re.search(r"access refused|NOPERM|role operator|internal", printed):
                refused.append(f"{line}: {printed}")
        await crew.stop()
        await crew.close()
    assert refused == []


async def test_only_the_operator_needs_the_right_to_load_scripts(
    guarded: Guarded, arrived: Arrived
) -> None:
    """The users that the page recommends: with the others' rights they could load any script."""
    roles = ("producer", "consumer", "worker")
    for role in roles:
        rules = LINES[role].replace("NS", NS).replace(" +script|load", "")
        guarded.change(role, "reset", *rules.split())
        with redis.Redis.from_url(guarded.url(role)) as own, pytest.raises(redis.ResponseError):
            own.script_load("while true do end")
    guarded.redis.script_flush()
    assert cli.main(["--redis", guarded.url("operator"), "scripts", "load"]) == 0
    brokers = {"memory": "memory://"}
    crew = Crew(guarded.url("operator"), NS)
    crew.start(url=guarded.url("worker"))
    with (
        Client(guarded.url("producer"), namespace=NS, brokers=brokers) as producer,
        Client(guarded.url("consumer"), namespace=NS, brokers=brokers) as consumer,
    ):
        producer.schedule("memory:q", b"x", delay=0.05, id="first")
        producer.schedule("pull:t", b"y", delay=0.05, id="second")
        producer.schedule("memory:q", b"z", delay=3600, id="third")
        assert producer.cancel("third") == Answer.CANCELLED
        _ingest(producer)
        await arrived.all(["first"])
        found = await until_async(lambda: consumer.topics.receive("t"), "it is received")
        assert [each.body for each in found] == [b"y"]
    await crew.stop()
    await crew.close()
    for role in roles:
        with Client(guarded.url(role), namespace=NS) as client:
            assert client.run(lambda calls, r=role: rights.lacking_for(NS, r)) == []


def _ingest(client: Client) -> None:
    """The commands of an ingest process that clients do not send; a message is quarantined."""
    announcement = registry.announce(NS, "i", "0" * 16, 1000, b"{}", kind=registry.INGEST)
    kept = [(verbs.new_stamp(), "lost", b"payload", "ingress:bad: why")]

    def call(calls: Calls) -> Steps[None]:
        buckets = yield from calls.open()
        yield [announcement, buckets[verbs.bucket_of(b"lost", len(buckets))].quarantine(kept)]

    client.run(call)


@pytest.mark.parametrize("role", rights.ROLES)
def test_every_missing_right_is_named_and_no_key_is_left(guarded: Guarded, role: str) -> None:
    def lacking(*rules: str) -> list[str]:
        guarded.change(role, *rules)
        store = Store(guarded.url(role))
        found = store.complete(rights.lacking_for(NS, role))
        store.close()
        guarded.reset()
        return found

    assert lacking() == []
    until(lambda: guarded.redis.keys() == [], "nothing is left")
    for name in rights.commands_of(role):
        assert lacking(f"-{name.lower()}") == [f"+{name.lower()}"]
        guarded.redis.flushall()
    assert lacking("-evalsha") == ["+evalsha"]
    assert lacking("-script") == ["+script|load"]
    assert lacking("resetchannels") == [f"&{{{NS}:* &{{{NS}}}*"]
    for pattern in (f"~{{{NS}:*", f"~{{{NS}}}*"):
        assert lacking("resetkeys", pattern) == [f"~{{{NS}:* ~{{{NS}}}*"]


async def test_a_worker_that_may_not_settle_does_not_start_and_names_the_command(
    guarded: Guarded, arrived: Arrived
) -> None:
    guarded.change("worker", "-hdel", "-zrem")
    crew = Crew(guarded.url("operator"), NS)
    await crew.client.schedule("memory:q", b"x", delay=0)
    with pytest.raises(StoreDenied, match=r"\+hdel, \+zrem"):
        await crew.start(url=guarded.url("worker"))
    assert arrived.attempts == []
    guarded.reset()
    crew.start(url=guarded.url("worker"))
    await until_async(lambda: arrived.attempts, "it is delivered")
    await crew.stop()
    await crew.close()


async def test_doctor_names_the_rights_that_the_user_lacks(
    guarded: Guarded, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = ["--namespace", NS, "doctor"]
    assert cli.main(["--redis", guarded.url("worker"), *flags]) == 0
    printed = capsys.readouterr().out
    assert "ok    rights: " in printed and ": worker\n" in printed
    assert "role operator: +" in printed
    guarded.change("worker", "-zrem")
    assert cli.main(["--redis", guarded.url("worker"), *flags]) == 1
    assert "role worker: +zrem" in capsys.readouterr().out


def test_tail_names_the_right_that_it_lacks_and_does_not_try_for_ever(
    guarded: Guarded, capsys: pytest.CaptureFixture[str]
) -> None:
    guarded.change("operator", "-subscribe")
    assert cli.main(["--redis", guarded.url("operator"), "--namespace", NS, "tail"]) == 5
    assert "grant +subscribe" in capsys.readouterr().err


async def test_what_an_operator_may_not_ask_of_redis_is_left_out_with_the_reason(
    guarded: Guarded,
) -> None:
    """And the rights beyond the least, as the page names them, show it."""
    (optional,) = re.findall(r"The console's page Store says more with `([^`]+)`", PAGE)
    guarded.redis.config_set("slowlog-log-slower-than", 0)
    with Client(guarded.url("operator"), namespace=NS) as client:
        client.schedule("pull:x", b"S3CR3T-CANARY", delay=3600, id="a", key="b")
        guarded.redis.config_set("slowlog-log-slower-than", 10_000)
        least = client.run(read_facts)
        guarded.change("operator", *optional.split())
        more = client.run(read_facts)
    assert least.size_bytes is None and "memory" in least.missing.lower()
    (server,) = least.servers
    assert server.slow is None and "slowlog" in server.slow_missing.lower()
    assert server.info["role"] == "master" and server.scripts is not None
    assert more.size_bytes and more.missing == ""
    (server,) = more.servers
    assert server.slow and "schedule" in {each.what for each in server.slow}
    assert "CANARY" not in str(more)
