"""A verb changes the row of the message that it acted on, and no other call's for the same id."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import redis

from delaybridge import Client, Message
from delaybridge.message import Answer, OnConflict
from delaybridge.store.protocol.bucket import Bucket
from delaybridge.store.protocol.verbs import new_stamp
from tests.rigs.ledgers import LedgerProbe
from tests.rigs.stories import Actor, Made, ledger_clients

TO = "memory:a"
REDIS_ALONE = pytest.mark.slow_with("mariadb*", "postgres*")


@pytest.fixture
def made(redis_url: str, namespace: str, ledger_url: str) -> Iterator[Made]:
    with ledger_clients(redis_url, namespace, ledger_url) as found:
        yield found


@pytest.fixture
def on(redis_url: str) -> Iterator[redis.Redis]:
    with redis.Redis.from_url(redis_url) as found:
        yield found


def replacing(client: Client) -> Callable[[Any], Any]:
    call = [(new_stamp(), client.accept(Message(TO, b"y", delay=5, id="m")))]

    def steps(calls: Any) -> Any:
        (receipt,) = yield from calls.schedule(call, OnConflict.REPLACE)
        return receipt.answer

    return steps


# verb -> its script, the call, its answer, whether it is about a dead message.
VERBS: dict[str, tuple[str, Callable[[Client], Callable[[Any], Any]], Answer, bool]] = {
    "cancel": ("cancel", lambda _: lambda on: on.cancel("m", None), Answer.CANCELLED, False),
    "discard": ("discard", lambda _: lambda on: on.discard("m", None), Answer.DISCARDED, True),
    "reschedule": (
        "reschedule",
        lambda _: lambda on: on.reschedule("m", None, "+0"),
        Answer.RESCHEDULED,
        False,
    ),
    "kick": ("kick", lambda _: lambda on: on.kick("m", None), Answer.KICKED, True),
    "replace": ("schedule", replacing, Answer.REPLACED, False),
}
STATES = {"reschedule": ["published"], "kick": ["published"], "replace": ["cancelled", "published"]}


class Site:
    """The message `m`, which is hot; who calls a verb, and another client."""

    def __init__(self, made: Made, on: redis.Redis, ledger: LedgerProbe) -> None:
        self.one, self.other, self._on, self._ledger = made(), made(), on, ledger
        self.other.schedule(TO, b"x", id="m", delay=5)
        (self.bucket,) = self.one.run(lambda calls: calls.open())

    def key(self, name: str) -> str:
        bucket: Bucket = self.bucket
        return bucket.key(name)

    def bury(self) -> None:
        """As a worker does."""
        self._on.zrem(self.key("due"), "m")
        self._on.zadd(self.key("dead"), {"m": time.time_ns() // 1_000_000})
        self._on.hset(self.key("dead_reason"), "m", "why")

    def deliver(self) -> None:
        """As a worker does, and the ledger knows it."""
        self._on.zrem(self.key("due"), "m")
        self._on.hdel(self.key("messages"), "m")
        self.end("published", tier=0)

    def end(self, state: str, tier: int) -> None:
        """What a worker tells of the last row."""
        end = "UPDATE message SET state = :state, tier = :tier WHERE number = :last"
        ((last,),) = self._ledger.ask("SELECT max(number) FROM message WHERE id = 'm'")
        self._ledger.ask(end, state=state, tier=tier, last=last)

    @property
    def in_redis(self) -> object:
        return self._on.hget(self.key("messages"), "m"), self._on.zscore(self.key("due"), "m")

    @property
    def due_ms(self) -> int:
        return int(float(self._on.zscore(self.key("due"), "m") or 0))

    @property
    def rows(self) -> list[tuple[str, int, str]]:
        """State, due time and error of each row, in the order of their calls."""
        what = "SELECT state, due_ms, error FROM message WHERE id = 'm' ORDER BY number"
        return [(state, due_ms, error or "") for state, due_ms, error in self._ledger.ask(what)]


@pytest.fixture
def site(made: Made, on: redis.Redis, ledger: LedgerProbe) -> Site:
    return Site(made, on, ledger)


@REDIS_ALONE
@pytest.mark.parametrize("is_lost", [False, True], ids=["in doubt", "sent again"])
@pytest.mark.parametrize("verb", VERBS)
def test_a_call_that_was_accepted_before_the_commit_is_left_alone(
    verb: str, is_lost: bool, site: Site
) -> None:
    script, call, answer, is_dead = VERBS[verb]
    if is_dead:
        site.bury()
    before = site.in_redis
    first = Actor(site.one, call(site.one), loses=script if is_lost else "")
    first.until(lambda: site.in_redis != before)
    if site.in_redis != (None, None):
        site.deliver()
    assert site.other.schedule(TO, b"again", id="m", delay="1h") == Answer.CREATED
    own = site.rows[-1]
    assert first.end() is answer
    *old, last = site.rows
    assert last == own
    assert [state for state, *_ in old] == STATES.get(verb, ["cancelled"])
    assert (found := site.other.get("m")) is not None
    assert found.body == b"again"


@REDIS_ALONE
@pytest.mark.parametrize("verb", ["reschedule", "kick"])
def test_a_call_sent_again_writes_when_its_message_is_due(verb: str, site: Site) -> None:
    script, call, answer, is_dead = VERBS[verb]
    if is_dead:
        site.bury()
    before = site.in_redis
    first = Actor(site.one, call(site.one), loses=script)
    first.until(lambda: site.in_redis != before)
    assert first.end() is answer
    assert site.rows == [("delayed", site.due_ms, "")]


@REDIS_ALONE
@pytest.mark.parametrize("verb", ["reschedule", "kick"])
def test_a_call_sent_again_leaves_a_message_dead(verb: str, site: Site) -> None:
    """It died meanwhile, and the ledger knows it."""
    script, call, answer, is_dead = VERBS[verb]
    if is_dead:
        site.bury()
    before = site.in_redis
    first = Actor(site.one, call(site.one), loses=script)
    first.until(lambda: site.in_redis != before)
    site.bury()
    site.end("dead", tier=1)
    rows = site.rows
    assert first.end() is answer
    assert site.rows == rows


@REDIS_ALONE
def test_of_two_that_move_a_message_the_last_one_in_redis_counts(site: Site) -> None:
    """The other one commits last."""
    before = site.in_redis
    first = Actor(site.one, lambda calls: calls.reschedule("m", None, "+0"))
    first.until(lambda: site.in_redis != before)
    assert site.other.reschedule("m", delay="1h") is Answer.RESCHEDULED
    assert first.end() is Answer.RESCHEDULED
    assert site.rows == [("delayed", site.due_ms, "")]


@REDIS_ALONE
def test_a_replaced_call_that_replaced_another_is_over(site: Site) -> None:
    """Both are under way; the one that Redis has answered last commits first."""
    before = site.in_redis
    first = Actor(site.one, replacing(site.one))
    first.until(lambda: site.in_redis != before)
    assert site.other.schedule(TO, b"z", id="m", delay=6, on_conflict="replace") == Answer.REPLACED
    assert first.end() is Answer.REPLACED
    assert [(state, error) for state, _, error in site.rows] == [
        ("cancelled", "replaced"), ("cancelled", "replaced"), ("delayed", ""),
    ]  # fmt: skip


@REDIS_ALONE
def test_of_many_each_replaces_its_own(made: Made, ledger: LedgerProbe) -> None:
    """Cold and hot, new and old, in one call; its rows are those that stay."""
    client, due_s = made(), {"h0": 5, "h1": 6, "h2": 7, "c0": 3600, "c1": 3700}
    client.schedule_many([Message(TO, b"x", id=id, delay=s) for id, s in due_s.items()])
    later = {"c2": 3600, "h2": 3700, "c0": 5, "n": 4, "h0": 9, "c1": 3800}
    found = client.schedule_many(
        [Message(TO, b"y", id=id, delay=s) for id, s in later.items()], on_conflict="replace"
    )
    is_new = {"c2", "n"}
    assert [each.answer for each in found] == [
        Answer.CREATED if id in is_new else Answer.REPLACED for id in later
    ]
    rows = ledger.ask("SELECT id, state, tier FROM message WHERE id <> 'hot' ORDER BY number")
    states = {id: [(state, tier) for each, state, tier in rows if each == id] for id, *_ in rows}
    old, live, cold = ("cancelled", 0), ("delayed", 1), ("delayed", 2)
    assert states == {
        "h0": [old, live], "h1": [live], "h2": [old, live],
        "c0": [old, live], "c1": [old, live], "c2": [cold], "n": [live],
    }  # fmt: skip
