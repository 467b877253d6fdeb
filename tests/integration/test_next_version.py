"""This version beside the next one: what both understand, and what this one refuses."""

from __future__ import annotations

from pathlib import Path

import pytest
from sqlalchemy import create_engine

from delaybridge import Client, StoreNewer
from delaybridge.errors import ConfigError, DecodeError
from delaybridge.ledger.sql import schema
from delaybridge.ledger.sql.tables import VERSION_TABLE
from delaybridge.message import Answer
from delaybridge.operate.troubles.found import troubles
from delaybridge.store.protocol import keys
from delaybridge.store.protocol.record import split_record
from delaybridge.store.protocol.verbs import RedisCommand, plain
from delaybridge.store.redis.store import Store
from tests.rigs.bucket import World
from tests.rigs.command_line import Run
from tests.rigs.fleet import Fleet
from tests.rigs.next_version import NEW_FORMAT, NEXT, put_next_version, run_next

SCHEDULES = """
from delaybridge import Client, __version__
url, namespace = {where}
with Client(url, namespace=namespace, brokers={{"file": "memory://"}}) as client:
    for n in range(20):
        plan = {{"max_attempts": 3, "hedge_ms": 50}}
        client.schedule("file:q", f"{{n}}", id=f"next-{{n}}", delay={delay}, retry=plan)
    print(__version__)
"""
WRITES = """
from delaybridge.operate.cli import main
for what in ("message", "definitions"):
    main([*{flags}, what, "export"])
"""


@pytest.fixture(scope="module")
def newer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the next version."""
    folder = tmp_path_factory.mktemp("next") / "version"
    put_next_version(folder)
    return folder


def test_both_schedule_and_deliver_and_take_over_from_each_other(
    redis_url: str, namespace: str, tmp_path: Path, newer: Path
) -> None:
    with Fleet(tmp_path, redis_url, namespace, ttl_ms=2000) as fleet:
        fleet.start("this", settled=False)
        later = fleet.start("next", instead=newer, settled=False)
        fleet.wait_shared("this", "next")
        said = {each.code: str(each) for each in troubles(fleet.client.stats())}
        assert NEXT in said["worker_versions_differ"]
        program = SCHEDULES.format(where=repr((redis_url, namespace)), delay=0.5)
        assert run_next(newer, program) == f"{NEXT}\n"
        ids = [f"next-{n}" for n in range(20)] + fleet.schedule(20, seconds=0.5, first_s=0.2)
        later.kill()  # what it held goes to this version, and is understood here
        fleet.wait_published(ids)
        fleet.wait_settled()
        assert not fleet.early()
        tried_again = {record.id for record in fleet.published() if record.attempt > 1}
    assert set(fleet.twice()) <= tried_again


def test_a_namespace_with_a_later_format_is_refused_and_left_as_it_is(
    redis_url: str, namespace: str, store: Store, newer: Path, run: Run
) -> None:
    program = SCHEDULES.format(where=repr((redis_url, namespace)), delay=0)
    run_next(newer, program, **{NEW_FORMAT: "2"})
    record: RedisCommand[bytes] = plain("GET", keys.birth(namespace))
    (before,) = store.run([record])
    assert before.startswith(b"v2:16:")
    with Client(redis_url, namespace=namespace, brokers={"file": "memory://"}) as client:
        with pytest.raises(StoreNewer, match="has format 2, this version reads format 1: install"):
            client.schedule("file:q", b"x", delay=1, id="ours")
        with pytest.raises(StoreNewer):
            client.destinations.pause("file:q")
    for command in ("stats", "scan", "message ls", "bucket ls"):
        refused = run(*command.split())
        assert refused.code == 2, command
        assert "install the version of delaybridge that wrote it" in refused.err, command
    found = run("doctor")
    assert found.code == 1
    assert "[namespace_newer]" in found.out and " SET '" not in found.out
    assert store.run([record]) == [before]


def test_documents_of_the_next_version_are_refused_with_the_version_that_is_read(
    newer: Path, flags: list[str], run: Run
) -> None:
    flags += ["--broker", "m=memory://"]  # of `run`, too
    assert run("schedule", "m:q", "x", "--in", "1h").code == 0
    written = run_next(newer, WRITES.format(flags=flags))
    line, document = written.split("\n", 1)
    assert '"v":2' in line
    refused = run("message", "import", "-", stdin=line.encode())
    assert refused.code == 2 and "this program reads version 1" in refused.err
    refused = run("definitions", "import", "-", stdin=document.encode())
    assert refused.code == 2 and "must be 1" in refused.err


def test_tables_of_a_later_version_are_refused_and_left_as_they_are(tmp_path: Path) -> None:
    engine = create_engine(f"sqlite:///{tmp_path}/ledger.db")
    schema.upgrade(engine)
    with engine.connect() as connection:
        connection.exec_driver_sql(f"UPDATE {VERSION_TABLE} SET version_num = '99'")
        connection.commit()
        refused = "have version 99, .*: install a newer"
        with pytest.raises(ConfigError, match=refused):
            schema.check(connection)
        with pytest.raises(ConfigError, match=refused):
            schema.upgrade(engine)
        assert schema.version(connection) == "99"
    engine.dispose()


def test_a_record_with_a_later_head_is_kept_byte_for_byte(world: World) -> None:
    world.schedule("a1", world.now_ms + 60_000)
    owner, copies = world.claimed("b1")
    for id in ("a1", "b1"):
        world.redis.hset(world.key("messages"), id, later(world, id))
    with pytest.raises(DecodeError, match="the head has format 3, of another version"):
        split_record(later(world, "b1"))  # so it is buried
    owner.bury(*copies)
    expected = {id: later(world, id) for id in ("a1", "b1")}
    assert world.kick("b1") == Answer.UNREADABLE
    assert world.reschedule("a1", 1) == Answer.RESCHEDULED  # overdue: others then note the time
    for id, record in expected.items():
        found = stored(world, id)
        assert (found[:1], found[9:]) == (record[:1], record[9:])  # all but the due time


def stored(world: World, id: str) -> bytes:
    found = world.redis.hget(world.key("messages"), id)
    assert isinstance(found, bytes)
    return found


def later(world: World, id: str) -> bytes:
    """The record of a message as a later version might have written it."""
    return b"\x03" + stored(world, id)[1:]
