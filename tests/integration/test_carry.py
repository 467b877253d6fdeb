"""Export and import: messages are carried as they are, however they move, and however often."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from delaybridge import Client, Message, Selection
from delaybridge.carry.exporting import ALL_STATES, MessageExport, portions
from delaybridge.carry.importing import Import
from delaybridge.carry.line import BadLine, Line, read_line
from delaybridge.message import Limits, State
from delaybridge.store.protocol.ids import quarantine_ids
from delaybridge.store.protocol.stored import Stored
from delaybridge.store.redis.store import Store
from tests.rigs.bucket import TTL_MS, Owner, World
from tests.rigs.command_line import Run, runner

HOUR_MS = 3_600_000
BROKERS = {
    "memory": "memory://", "rabbitmq": "amqp://127.0.0.1:1", "kafka": "kafka://127.0.0.1:1",
    "kombu": "kombu+memory://",
}  # fmt: skip
Make = Callable[..., Client]


@pytest.fixture
def make_client(redis_url: str, namespace: str) -> Iterator[Make]:
    opened: list[Client] = []

    def make(suffix: str, buckets: int | None = None) -> Client:
        opened.append(
            Client(redis_url, namespace=namespace + suffix, brokers=BROKERS, buckets=buckets)
        )
        return opened[-1]

    yield make
    for client in opened:
        client.close()


def lines_of(client: Client) -> list[Line]:
    """What an export of everything writes."""
    run = MessageExport(ALL_STATES, lambda bad: pytest.fail(str(bad)))
    text = b"".join(
        client.run(lambda calls, some=some: run.read(calls, some))  # type: ignore[misc]
        for page in client.select(Selection(states=ALL_STATES, is_whole=True))
        for some in portions(page)
    )
    found = [read_line(line, "line") for line in text.splitlines()]
    assert not [each for each in found if isinstance(each, BadLine)]
    return found  # type: ignore[return-value]


def carry(client: Client, lines: Sequence[Line | BadLine], **how: Any) -> Import:
    run = Import(client.kinds, Limits(), **{"tell": lambda bad: None, **how})
    for batch in run.batches(enumerate(lines, 1)):
        client.run(lambda calls, batch=batch: run.store(calls, batch))  # type: ignore[misc]
    return run


def content(client: Client, *ids: str) -> list[dict[str, Any]]:
    found = [client.get(id) for id in ids]
    names = [name for name in Stored.__slots__ if name != "bucket"]
    return [{name: getattr(each, name) for name in names} for each in found]


def world_of(store: Store, redis_url: str, client: Client) -> World:
    return World.of_key(store, redis_url, client._calls.namespace, b"k")


def fill(client: Client, world: World) -> list[str]:
    """A message in each state, with everything that a message can have."""
    every: dict[str, Any] = {"key": "k", "priority": 3, "ttl": "5m", "retry": {"max_attempts": 9}}
    owner: Owner = world.owner()
    exits: dict[str, Any] = {
        "retried": lambda i: owner.bucket.retry(owner.token, TTL_MS, [(i, HOUR_MS, True, "no")]),
        "buried": lambda i: owner.bucket.bury(owner.token, TTL_MS, [(i, True, False, "why")]),
        "parked": lambda i: owner.bucket.park(owner.token, TTL_MS, [i]),
    }
    for id, exit in exits.items():
        client.schedule("rabbitmq:a/k", b"x", id=id, delay="15m", headers={"n": 1}, **every)
        (copy,) = owner.claim(ahead_ms=HOUR_MS)
        owner.fire(copy.score)
        assert world.run(exit(copy.item)) is not None
    client.schedule("kafka:t", None, id="tombstone", delay="15h", headers=[("a", b"\xff")])
    client.schedule("kafka:t", "é", id="text", delay="15h", properties={"partition": 3})
    client.schedule("kombu:q", b"\xff", id="bytes", key=b"\xfe", delay="15h", headers={"t": {}})
    client.schedule_many(
        [Message("pull:t", b"x", id="a", tenant="acme", delay="1h", at_most_once=False)]
    )
    world.run(world.quarantining(quarantine_ids("q")[0]))
    return ["retried", "buried", "parked", "tombstone", "text", "bytes", "acme/a"]


def test_everything_of_a_message_is_carried(
    make_client: Make, store: Store, redis_url: str
) -> None:
    source, target = make_client(""), make_client("-to", buckets=64)
    source.schedule("memory:q", b"x", id="other", key="k", delay="20h")
    with world_of(store, redis_url, source) as world:
        ids = fill(source, world)
        lines = lines_of(source)
        assert len(lines) == len(ids) + 2
        run = carry(target, lines)
        assert run.counts == {"created": len(lines)}
        before, after = content(source, *ids), content(target, *ids)
        parked = before[ids.index("parked")]
        assert parked["state"] == State.PARKED
        parked |= {"state": State.DELAYED, "reason": None}  # it is due at once where it comes
        assert after == before
        assert [each.id for each in target.dead.quarantined("q")] == ["q~1"]
        assert carry(target, lines).counts == {"duplicate": len(lines)}
        assert {(each.id, each.state) for each in lines_of(target)} == {
            (each.id, State.DELAYED if each.id == "parked" else each.state) for each in lines
        }


def test_what_is_in_flight_is_told_and_only_carried_if_that_is_asked(
    make_client: Make, store: Store, redis_url: str
) -> None:
    source, target = make_client(""), make_client("-to")
    source.schedule("memory:q", b"x", id="a", key="k", delay="15m")
    with world_of(store, redis_url, source) as world:
        owner: Owner = world.owner()
        (copy,) = owner.claim(ahead_ms=HOUR_MS)
        (line,) = lines_of(source)
        assert (line.state, line.fired) == (State.IN_FLIGHT, False)
        owner.fire(copy.score)
        (line,) = lines_of(source)
        assert (line.state, line.fired) == (State.IN_FLIGHT, True)
    assert carry(target, [line]).counts == {"in_flight": 1}
    assert target.get("a") is None
    assert carry(target, [line], takes_in_flight=True).counts == {"created": 1}
    assert target.cancel("a") == "cancelled_maybe_delivered"


def test_a_message_that_moves_while_its_bucket_is_walked_is_found_once(
    make_client: Make, store: Store, redis_url: str
) -> None:
    source = make_client("")
    source.schedule("memory:q", b"x", id="a", key="k", delay="15m")
    source.schedule("memory:q", b"x", id="z", key="k", delay="20h")
    number = source.get("a").bucket  # type: ignore[union-attr]
    with world_of(store, redis_url, source) as world:
        owner: Owner = world.owner()
        found: list[str] = []
        states = (State.IN_FLIGHT, State.PARKED, State.DELAYED)
        walk = source._walk(Selection(states=states, is_whole=True))
        source.run(lambda calls: calls.open())
        looks = 0
        while (page := source._store.complete(walk.page())) is not None:
            found += [each.id for each in page]
            bucket, look, _ = walk._places[0] if walk._places else (None, None, 0)
            if bucket is None or bucket.number != number:
                continue
            looks += 1
            if look == State.PARKED:  # it is delayed while those in flight are read
                (copy,) = owner.claim(ahead_ms=HOUR_MS)
            elif look == State.DELAYED:  # in flight while the parked ones are read
                world.run(owner.bucket.park(owner.token, TTL_MS, [copy.item]))
    assert looks > 2
    assert sorted(found) == ["a", "z"]


def test_bad_lines_are_told_and_hinder_no_other(make_client: Make) -> None:
    target = make_client("")
    good = {"v": 1, "id": "a", "destination": "memory:q", "due": "2030-01-31T09:00:00Z"}
    texts: list[tuple[Any, str]] = [
        ({**good, "body": "x"}, ""),
        (good, "body"),
        ({**good, "body": "x", "body_json": {}}, "body"),
        ({**good, "body": "x", "due_ms": 1}, "due_ms"),
        ({**good, "body": "x", "due": "soon"}, "due"),
        ({**good, "body": "x", "v": 2}, "v"),
        ({**good, "body": "x", "attempts": -1, "state": "dead"}, "attempts"),
        ({**good, "body": "x", "destination": "nowhere:q"}, "destination"),
        ({**good, "body": "x", "ttl_ms": 2**70}, "ttl_ms"),
        ({**good, "body": "x", "id": "a\n"}, "id"),
        ({**good, "body": "x", "tenant": "acme"}, "id"),
        ({**good, "body": "x", "record_base64": "AAAA"}, "record"),
        ({**good, "body": "x", "extra": 1}, "extra"),
        ({**good, "body": "x", "headers": {"delaybridge-x": "1"}}, "headers"),
        ([], "line"),
        ({**good, "body": "other"}, "id"),
        ({**good, "id": "b", "body_json": {"n": [1, 2]}}, ""),
    ]
    told: list[BadLine] = []
    lines = [
        read_line(json.dumps(each).encode(), f"line {n}") for n, (each, _) in enumerate(texts, 1)
    ]
    run = carry(target, lines, tell=told.append)
    wanted = {f"line {n}": field for n, (_, field) in enumerate(texts, 1) if field}
    found = {each.place.partition(",")[0]: each.field for each in told}
    assert found.keys() == wanted.keys()
    assert [place for place, field in wanted.items() if field not in found[place]] == []
    assert run.counts == {"created": 2, "bad": 14, "conflict": 1}
    stored = target.get("b")
    assert stored is not None
    assert stored.body == b'{"n": [1, 2]}'


def test_a_dry_run_stores_nothing_and_says_what_goes_where(make_client: Make) -> None:
    source, target = make_client(""), make_client("-to")
    for id, delay in (("a", "1h"), ("b", "3h"), ("c", "2h")):
        source.schedule("memory:q", b"x", id=id, delay=delay)
    target.schedule("memory:q", b"other", id="a", delay="1h")
    lines = lines_of(source)
    run = carry(target, lines, dry=True)
    assert run.counts == {"conflict": 1, "created": 2}
    assert target.get("b") is None
    bound = run.bound["memory:q"]
    dues = sorted(each.due_ms or 0 for each in lines)
    assert bound == (2, dues[1], dues[2])


@pytest.mark.slow_with("mariadb*", "sqlite*")
def test_the_ledger_knows_what_is_imported(
    redis_url: str, namespace: str, ledger_url: str, make_client: Make, store: Store
) -> None:
    source = make_client("-from")
    source.schedule("memory:q", b"x", id="other", key="k", delay="20h")
    with world_of(store, redis_url, source) as world:
        fill(source, world)
        lines = lines_of(source)
    options: dict[str, Any] = {"durability": "ledger", "ledger": ledger_url, "hot_window_s": 10.0}
    with Client(redis_url, namespace=namespace, brokers=BROKERS, **options) as target:
        assert carry(target, lines).counts == {"created": len(lines)}
        assert carry(target, lines).counts == {"duplicate": len(lines)}
        assert {(each.id, each.state) for each in lines_of(target)} == {
            (each.id, State.DELAYED if each.id == "parked" else each.state) for each in lines
        }
        assert target.cancel("text") == "cancelled"
        assert target.get("text") is None


def test_the_commands_move_messages_without_a_loss(
    run: Run,
    make_client: Make,
    tmp_path: Path,
    flags: list[str],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    source, target = make_client(""), make_client("-to")
    source.schedule_many([Message("memory:q", b"x", id=f"m{n}", delay="1h") for n in range(3)])
    file, receipt = tmp_path / "a.jsonl.gz", tmp_path / "stored.jsonl"
    exported = run("message", "export", "-o", str(file), "--destination", "memory:q")
    assert (exported.code, exported.err) == (0, "3 delayed\n")
    text = gzip.decompress(file.read_bytes()).decode()
    assert run("message", "export").out == text
    full = run("message", "export", "-o", "/dev/full")
    assert (full.code, full.err.split(": ")[1]) == (1, "/dev/full")
    there = [f"{flag}-to" if "namespace" in flags[n - 1] else flag for n, flag in enumerate(flags)]
    into = partial(runner(there, capsys, monkeypatch), "message", "import")
    assert "memory:q  3  due" in into(str(file), "--dry-run").out
    assert into(str(file), "--receipt", str(receipt)).err == "3 created\n"
    with receipt.open("ab") as cut:
        cut.write(b'{"line": 4, "id"')  # a crash
    assert "--receipt" in into(str(file), "--receipt", str(receipt)).err
    assert into(str(file), "--after", "1").err == "2 duplicate\n"
    assert into("-", stdin=f"{text}junk\n".encode()).code == 6
    source.reschedule("m1", delay="2h")
    cancelled = run("message", "cancel", "--from-file", str(receipt), "--yes")
    assert cancelled.code == 6
    answers = dict(line.split("  ") for line in cancelled.out.splitlines())
    assert answers == {"m0": "cancelled", "m1": "changed", "m2": "cancelled"}
    assert [source.get(f"m{n}") is None for n in range(3)] == [True, False, True]
    assert [target.get(f"m{n}") is None for n in range(3)] == [False] * 3
