"""The script `schedule` stores new messages in a few calls, and odd ones one by one.

A single one is first tried by `schedule_one`, as clients do. Both ways are compared:
the same calls in the same bucket give the same answers, contents and wake-ups, whatever is in the
bucket already.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest
import redis
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from delaybridge.accept.accept import Accepted
from delaybridge.message import Answer, OnConflict, Record, encode_record
from delaybridge.store.protocol import keys
from delaybridge.store.protocol.scripts import scripts
from delaybridge.store.protocol.verbs import NO_SOURCE, RedisCommand, SourceOffsets
from tests.rigs.bucket import World

NOW_MS = 1_800_000_000_000
IN_A_FEW_CALLS = "local all_new = count > 0 "
ONE_BY_ONE = IN_A_FEW_CALLS.replace("count > 0", "false")
HERE, THERE = (encode_record(Record(f"kafka:{topic}", b"")) for topic in ("here", "there"))

IDS = st.one_of(
    st.sampled_from("abc"), st.sampled_from("nopqrstuvw"), st.text("ü\x7f *?{", min_size=1)
)
WHENS = st.sampled_from(
    ["+0", "+1", "+1", "+60000", f"{NOW_MS + 7}", f"{NOW_MS - 1}", f"{NOW_MS - 5}", "1000000000000"]
)
STAMPS = st.sampled_from([b"\0\0\0\1", b"same", b"\xff\xfe\r\n"])
MESSAGES = st.tuples(
    STAMPS, IDS, WHENS, st.sampled_from([0, 1, 128, 255, 255]), st.sampled_from([b"", HERE, THERE])
)
REACHES = st.sampled_from(["", "", '[["^kafka:", "^here$"]]', "[]"])
POLICIES = st.sampled_from([OnConflict.FAIL, OnConflict.KEEP, OnConflict.REPLACE])


class Call(NamedTuple):
    """One call of `schedule`. offset: of the first message, None if they have no source."""

    messages: list[tuple[bytes, str, str, int, bytes]]
    policy: Any = OnConflict.FAIL
    offset: int | None = None
    reach: str = ""
    maybe: bool = False
    first: bool = True


CALLS = st.builds(
    Call,
    st.lists(MESSAGES, min_size=1, max_size=8),
    POLICIES,
    st.none() | st.integers(0, 12),
    REACHES,
    st.booleans(),
    st.sampled_from([True, True, True, False]),
)
# What is done to the bucket before.
STEPS = st.one_of(
    CALLS,
    st.tuples(st.sampled_from(["claim", "fire", "park", "bury", "settle", "once"])),
    st.tuples(st.just("cancel"), st.sampled_from("abcn")),
    st.tuples(st.just("look"), st.sampled_from([NOW_MS - 10, NOW_MS + 1, NOW_MS + 10**6])),
    st.tuples(st.just("orphan"), st.sampled_from(["due", "messages", "mirror"]), IDS),
    st.tuples(st.just("later"), st.sampled_from([1, 700_000])),
    st.tuples(
        st.just("broken"), st.sampled_from([key for key in keys.BUCKET_KEYS if key != "lease"])
    ),
    st.tuples(st.just("broken"), st.just("")),
)


class Side:
    """A bucket on which one of the two scripts runs."""

    def __init__(self, url: str, namespace: str, source: str, *, tries_one: bool = False) -> None:
        self.world = World(url, namespace, NOW_MS)
        self._script, self._tries_one = source, tries_one
        self._calls = self.world.redis.pubsub(ignore_subscribe_messages=True)
        self._channel = keys.wake(namespace)
        self._calls.subscribe(self._channel)
        self._copies: list[Any] = []

    def close(self) -> None:
        self._calls.close()
        self.world.__exit__()

    def empty(self) -> None:
        self.world.redis.delete(*map(self.world.key, keys.BUCKET_KEYS))
        self.world.now_ms = NOW_MS
        self.owner: Any = None
        self._copies = []

    def schedule(self, call: Call) -> Any:
        """The answers, or the error."""
        command = command_of(self.world, call)
        try:
            if self._tries_one and (due_ms := self._schedule_one(call)):
                return [(Answer.CREATED, due_ms)]
            reply = self.world.redis.eval(
                self._script, len(command.keys), *command.keys, *command.args
            )
        except redis.ResponseError as exc:
            return str(exc).partition(" ")[0]
        return command.parse(reply)

    def _schedule_one(self, call: Call) -> int:
        """The answer of the script for one message; 0 if a client would not ask it."""
        is_plain = call.offset is None and not call.reach and not call.maybe
        if len(call.messages) > 1 or call.policy is OnConflict.REPLACE or not is_plain:
            return 0
        stamped = stamped_of(call)[0]
        command = self.world.bucket.schedule_one(stamped, is_drawn=False, now_ms=self.world.now_ms)
        text = scripts()["schedule_one"][0]
        try:
            return self.world.redis.eval(text, len(command.keys), *command.keys, *command.args)
        except redis.ResponseError:
            return 0  # then `schedule` is asked

    def do(self, step: Any) -> Any:
        if isinstance(step, Call):
            return self.schedule(step)
        try:
            return getattr(self, f"_{step[0]}")(*step[1:])
        except Exception as exc:
            return type(exc).__name__

    def woken(self) -> list[bytes]:
        """The wake-ups since this was called last."""
        self.world.redis.publish(self._channel, "last")
        heard = []
        for message in self._calls.listen():
            if message["data"] == b"last":
                break
            heard.append(message["data"])
        return heard

    def content(self) -> dict[str, tuple[str, Any]]:
        """Everything in the bucket, whatever its type; without old `calls`, which may go."""
        found = {}
        for name in keys.BUCKET_KEYS:
            key = self.world.key(name)
            kind = self.world.redis.type(key).decode()
            if kind == "hash":
                found[name] = kind, self.world.redis.hgetall(key)
            elif kind == "zset":
                kept_ms = self.world.now_ms - 600_000 if name == "calls" else 0
                entries = self.world.redis.zrange(key, 0, -1, withscores=True)
                kept = [one for one in entries if one[1] >= kept_ms]
                found[name] = (kind, kept) if kept else ("none", None)
            else:
                found[name] = kind, self.world.redis.get(key)
        return found

    def _claim(self) -> None:
        self.owner = self.owner or self.world.owner()
        self._copies += self.owner.claim(ahead_ms=10, pace_ms=50)

    def _fire(self) -> None:
        self.owner.fire(self.world.now_ms + 10)

    def _park(self) -> None:
        self.owner.park(self._copies.pop())

    def _bury(self) -> None:
        self.owner.bury(self._copies.pop())

    def _settle(self) -> None:
        self.owner.settle(self._copies.pop())

    def _once(self) -> None:
        self.world.run(self.owner.settling_once(self._copies.pop()))

    def _cancel(self, id: str) -> Any:
        command = self.world.bucket.cancel(b"undo", id, now_ms=self.world.now_ms)
        return self.world.run(command)

    def _look(self, at_ms: int) -> None:
        self.world.redis.hset(self.world.key("marks"), "look", at_ms)

    def _orphan(self, name: str, id: str) -> None:
        if name == "messages":
            self.world.redis.hset(self.world.key(name), id, b"no head")
        else:
            self.world.redis.zadd(self.world.key(name), {id: NOW_MS + 3})

    def _later(self, ms: int) -> None:
        self.world.now_ms += ms

    def _broken(self, name: str) -> None:
        """Give a key another type; an empty name stands for a bucket that was never used."""
        if name:
            self.world.redis.set(self.world.key(name), "not ours")
        else:
            self.world.redis.delete(self.world.key("marks"))


def stamped_of(call: Call) -> list[tuple[bytes, Accepted]]:
    return [
        (stamp, Accepted(id, b"", when, rank, payload))
        for stamp, id, when, rank, payload in call.messages
    ]


def command_of(world: World, call: Call) -> RedisCommand[Any]:
    stamped = stamped_of(call)
    source = NO_SOURCE
    if call.offset is not None:
        source = SourceOffsets("t:0", range(call.offset, call.offset + len(stamped)))
    return world.bucket.schedule(
        stamped,
        call.policy,
        source=source,
        reach=call.reach,
        maybe=call.maybe,
        first=call.first,
        now_ms=world.now_ms,
    )


@pytest.fixture
def sides(any_redis_url: str, namespace: str) -> Iterator[tuple[Side, Side]]:
    """Two buckets: one with the script as it is, one with the script that goes one by one."""
    source = scripts()["schedule"][0]
    assert source.count(IN_A_FEW_CALLS) == 1
    slow = source.replace(IN_A_FEW_CALLS, ONE_BY_ONE)
    both = (
        Side(any_redis_url, f"{namespace}-a", source, tries_one=True),
        Side(any_redis_url, f"{namespace}-b", slow),
    )
    try:
        yield both
    finally:
        for side in both:
            side.close()


def new(*ids: str, when: str = "+5", stamp: bytes = b"same") -> Call:
    return Call([(stamp, id, when, 255, HERE) for id in ids])


@example(steps=[new("a", "b")])
@example(steps=[new("a", "b", "a"), new("c")])
@example(steps=[("look", NOW_MS + 10**6), ("orphan", "due", "b"), new("a", "b")])
@example(steps=[new("a"), ("cancel", "a"), new("n", "o"), new("a"), ("later", 700_000), new("p")])
@example(steps=[new("a"), ("broken", "due"), new("b"), new("a")])
@example(steps=[("broken", "messages"), new("b")])
@example(steps=[new("a", "b")._replace(policy=OnConflict.FAIL, maybe=True), new("c")])
@example(
    steps=[
        new("a")._replace(offset=3),
        new("b", "c")._replace(offset=3),
        new("d")._replace(offset=9),
    ]
)
@settings(deadline=None, suppress_health_check=list(HealthCheck), print_blob=True)
@given(steps=st.lists(STEPS, min_size=1, max_size=8))
@pytest.mark.slow_with("6.2")
def test_both_ways_give_the_same_answers_contents_and_wake_ups(
    sides: tuple[Side, Side], steps: list[Any]
) -> None:
    for side in sides:
        side.empty()
    for step in steps:
        quick, slow = (side.do(step) for side in sides)
        assert quick == slow, step
        woken, expected = (side.woken() for side in sides)
        has_orphans = any(one[0] == "orphan" for one in steps if not isinstance(one, Call))
        assert woken == expected or has_orphans, step
        assert sides[0].content() == sides[1].content(), step
