"""What owners found in a bucket that lost keys is told, until an operator has dealt with it."""

from __future__ import annotations

import shlex
import time

import pytest

from delaybridge import Client
from delaybridge.message import Record, encode_record
from delaybridge.operate.notices.repairs import TOTALS
from delaybridge.operate.views.described import moment
from delaybridge.store.namespace import orphans
from delaybridge.store.namespace.history_alarm import FRESH_MS
from delaybridge.store.protocol import keys
from delaybridge.store.redis.store import Store
from tests.rigs.bucket import TTL_MS, World
from tests.rigs.command_line import Run

KEY = b"k"
HELD = 101
LONG_MS = 7_200_000
FEW = {"due": 7, "dead": 3, "parked": 0, "bare": 2, "other": 0}


@pytest.fixture
def lost(caller: Client, store: Store, redis_url: str, namespace: str) -> World:
    """A bucket that lost its key `due`, two hours after messages were due."""
    caller.schedule("kafka:t", b"x", key=KEY, id="first", delay="1h")
    with World.of_key(store, redis_url, namespace, KEY) as world:
        world.now_ms -= LONG_MS
        payload = encode_record(Record("kafka:t", b"x"))
        for number in range(HELD):
            world.schedule(f"m{number}", world.now_ms + 1, payload=payload)
        world.now_ms += LONG_MS
        world.redis.delete(world.key("due"))
        owner, everything = world.owner(), orphans.FIRST._replace(limit=500)
        world.run(orphans.mend(owner.bucket, (owner.token, TTL_MS), everything, "hold"))
        yield world


def test_the_command_that_doctor_shows_sends_what_is_held_back(
    lost: World, caller: Client, run: Run
) -> None:
    found = caller.stats()
    assert (found.delayed, found.parked) == (1, HELD)
    assert {bucket: each.waiting for bucket, each in found.held_back.items()} == {lost.number: HELD}
    assert not found.retrying and not found.overdue_ms  # an operator decides, nothing is late
    assert run("health").code == 1
    (told,) = (line for line in run("doctor").out.splitlines() if "held back." in line)
    assert f"{HELD} messages of buckets {lost.number} " in told
    command = shlex.split(told.rpartition("delaybridge ")[2].partition("  [")[0])
    assert run(*command).code == 0
    found = caller.stats()
    assert (found.delayed, found.parked, found.held_back) == (HELD + 1, 0, {})
    assert run("alarm", "clear").code == 0
    assert run("--json", "health", "--max-overdue", "9h").objects[0]["faults"] == [
        "15 of 16 buckets have no worker"
    ]


HELD_BACK = ("--state", "parked", "--reason", "orphaned")


def test_what_is_held_back_is_listed_by_its_due_time_and_says_why(lost: World, run: Run) -> None:
    ended, now = (moment(lost.now_ms - ago_ms) for ago_ms in (LONG_MS, 0))
    found = run("--json", "message", "ls", *HELD_BACK, "--due-to", now, "--limit", "200").objects
    assert len(found) == HELD
    assert {each["reason"].partition(":")[0] for each in found} == {"orphaned"}
    none = run("message", "ls", "--state", "parked", "--due-to", ended)
    assert none.err == "no parked messages\n"
    (shown,) = run("--json", "message", "show", "m0", "--key", KEY.decode()).objects
    assert shown["reason"] == "orphaned: it was in no set, and long overdue: publish or cancel it"


@pytest.mark.parametrize("verb", ["publish-now", "cancel", "reschedule --by +1h"])
def test_what_is_held_back_is_found_by_its_due_time(verb: str, lost: World, run: Run) -> None:
    asked = ("message", *verb.split(), *HELD_BACK, "--yes", "--due-to")
    assert run(*asked, moment(lost.now_ms - LONG_MS)).err == "no message matches\n"
    assert run(*asked, moment(lost.now_ms)).code == 0
    assert lost.redis.zcard(lost.key("parked")) == 0


def test_a_message_in_no_set_is_told_though_it_cannot_be_late(
    caller: Client, store: Store, redis_url: str, namespace: str, run: Run
) -> None:
    for id in ("found", "lost", "dead"):
        caller.schedule("kafka:t", b"x", key=KEY, id=id, delay="0s")

    def faults() -> list[str]:
        told = run("--json", "health", "--max-overdue", "9h").objects[0]["faults"]
        return [each for each in told if "in no set" in each]

    with World.of_key(store, redis_url, namespace, KEY) as world:
        world.redis.zrem(world.key("due"), "dead")
        world.redis.zadd(world.key("dead"), {"dead": 1, "bare": 1})
        world.redis.hset(world.key("marks"), "bare", 1)  # it has no record
        assert faults() == []
        world.redis.zrem(world.key("due"), "lost")
        assert faults() == [f"1 messages of buckets {world.number} are in no set"]
        assert "are in no set" in run("doctor").out
        assert caller.stats().buckets[world.number].unlisted == 1


@pytest.mark.parametrize(("age_ms", "is_fault"), [(0, True), (FRESH_MS + 60_000, False)])
def test_keys_that_were_lost_are_told_until_the_alarm_is_cleared(
    caller: Client, store: Store, namespace: str, run: Run, age_ms: int, is_fault: bool
) -> None:
    caller.schedule("kafka:t", b"x", delay="1h")
    values = [time.time_ns() // 1_000_000 - age_ms, *FEW.values()]
    for number in (2, 5):
        marks = keys.bucket_key(namespace, number, "marks")
        store.redis.hset(marks, mapping=dict(zip(TOTALS, values, strict=True)))

    def said(*words: str) -> list[str]:
        health = run("--json", "health").objects[0]
        return [text for word in words for text in health[word] if "keys were lost" in text]

    (text,) = said("faults" if is_fault else "notes")
    assert "keys were lost in buckets 2, 5: 14 messages are delayed again, 6 are dead again" in text
    assert "4 lost their body" in text
    counted = run("--json", "stats").objects[0]["orphans"]
    assert {name: counted[name] for name in FEW} == {n: 2 * count for n, count in FEW.items()}
    of_buckets = [each for each in run("--json", "bucket", "ls").objects if each["orphans"]["due"]]
    assert [each["bucket"] for each in of_buckets] == [2, 5]
    assert run("alarm", "show").code == 1
    assert run("alarm", "clear").out == "cleared\n"
    assert said("faults", "notes") == [] and run("alarm", "show").code == 0
