"""Every verb with its reply lost once: sent again, it gives the answer of the lost reply.

Two buckets are brought into the same state. On one the call is made directly; on the other through
a proxy that lets Redis execute it and drops the reply, so that Redis is asked twice. Answer and
bucket must be the same. Three numbers may differ, since callers do not act on them: `moved` and
`fired` of a reclaim, and the clock of an announcement.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any
from urllib.parse import urlsplit

import pytest

from delaybridge.accept.accept import Accepted
from delaybridge.message import WAIT, Answer, OnConflict, State
from delaybridge.store import keys, pulling, registry
from delaybridge.store.bound import bound
from delaybridge.store.command import RedisCommand
from delaybridge.store.keys import SCRIPT_KEYS
from delaybridge.store.replies import Fleet, Reclaimed, Trimmed
from delaybridge.store.store import AsyncStore, Store
from delaybridge.store.verbs import SourceOffsets
from tests.rigs.bucket import TTL_MS, World
from tests.rigs.lossy_proxy import LossyProxy

Case = Callable[[World], RedisCommand[Any]]
Twins = tuple[World, World]
SOURCE = SourceOffsets("t:0", [7])


def _buried(world: World) -> None:
    owner, copies = world.fired("x")
    owner.bury(*copies, maybe=True)


def schedule(world: World) -> RedisCommand[Any]:
    return world.scheduling("x", world.now_ms)


def schedule_replacing(world: World) -> RedisCommand[Any]:
    world.claimed("x")
    return world.scheduling("x", world.now_ms + 5, payload=b"other", policy=OnConflict.REPLACE)


def schedule_conflicting(world: World) -> RedisCommand[Any]:
    world.schedule("x", world.now_ms)
    return world.scheduling("x", world.now_ms + 5, payload=b"other")


def schedule_duplicate(world: World) -> RedisCommand[Any]:
    world.schedule("x", world.now_ms)
    return world.scheduling("x", world.now_ms + 5)


def schedule_waiting(world: World) -> RedisCommand[Any]:
    world.fired("x")
    return world.scheduling("x", world.now_ms, policy=WAIT)


def schedule_read_before(world: World) -> RedisCommand[Any]:
    # `created` the first time: to a reader of a source both answers mean the same.
    command = world.scheduling("x", world.now_ms, policy=WAIT, source=SOURCE)
    world.run(command)
    return command


def schedule_conflicting_from_a_source(world: World) -> RedisCommand[Any]:
    world.schedule("x", world.now_ms)
    return world.scheduling("x", world.now_ms, payload=b"other", policy=WAIT, source=SOURCE)


def quarantine(world: World) -> RedisCommand[Any]:
    return world.quarantining("x", "y")


def quarantine_an_id_that_is_taken(world: World) -> RedisCommand[Any]:
    world.schedule("x", world.now_ms)
    return world.quarantining("x")


def cancel_from_a_source(world: World) -> RedisCommand[Any]:
    world.schedule("x", world.now_ms)
    return world.canceling("x", "t:0", 7)


def cancel(world: World) -> RedisCommand[Any]:
    world.schedule("x", world.now_ms)
    return world.canceling("x")


def cancel_on_the_wheel(world: World) -> RedisCommand[Any]:
    world.claimed("x", "y")
    return world.canceling("x")


def cancel_in_flight(world: World) -> RedisCommand[Any]:
    world.fired("x")
    return world.canceling("x")


def cancel_unknown(world: World) -> RedisCommand[Any]:
    return world.canceling("x")


def reschedule(world: World) -> RedisCommand[Any]:
    world.schedule("x", world.now_ms)
    return world.rescheduling("x", world.now_ms + 5)


def reschedule_maybe_delivered(world: World) -> RedisCommand[Any]:
    world.fired("x")
    world.successor()
    return world.rescheduling("x", world.now_ms + 5)


def reschedule_dead(world: World) -> RedisCommand[Any]:
    _buried(world)
    return world.rescheduling("x", world.now_ms + 5)


def kick(world: World) -> RedisCommand[Any]:
    _buried(world)
    return world.kicking("x")


def discard(world: World) -> RedisCommand[Any]:
    _buried(world)
    return world.discarding("x")


def get(world: World) -> RedisCommand[Any]:
    world.claimed("x")
    return world.bucket.get("x")


def sample(world: World) -> RedisCommand[Any]:
    world.claimed("x")
    return world.bucket.sample(9)


def page(world: World) -> RedisCommand[Any]:
    world.claimed("x", "y", "z")
    return world.bucket.page(State.IN_FLIGHT, limit=2)


def tally(world: World) -> RedisCommand[Any]:
    world.schedule("x", world.now_ms)
    return world.bucket.tally(State.DELAYED, 5, 1)


def acquire(world: World) -> RedisCommand[Any]:
    world.claimed("x")
    world.end_lease()
    return world.bucket.acquire("worker:9", TTL_MS)


def acquire_first(world: World) -> RedisCommand[Any]:
    return world.bucket.acquire("worker:9", TTL_MS)


def renew(world: World) -> RedisCommand[Any]:
    world.schedule("x", world.now_ms)
    return world.bucket.renew(world.owner().token, TTL_MS)


def release(world: World) -> RedisCommand[Any]:
    return world.bucket.release(world.owner().token)


def claim(world: World) -> RedisCommand[Any]:
    for n in range(5):
        world.schedule(f"x{n}", world.now_ms + n)
    return world.owner().claiming(limit=3)


def claim_all(world: World) -> RedisCommand[Any]:
    world.schedule("x", world.now_ms)
    world.schedule("y", world.now_ms + 60_000)
    return world.owner().claiming()


def claim_nothing(world: World) -> RedisCommand[Any]:
    return world.owner().claiming()


def fire(world: World) -> RedisCommand[Any]:
    owner, (x, y) = world.claimed("x", "y")
    world.cancel(x.id)
    return owner.firing(y.score).command


def fire_acknowledging(world: World) -> RedisCommand[Any]:
    owner, (x, y) = world.claimed("x", "y")
    world.cancel(x.id)
    owner.fire(0.0)
    world.cancel(y.id)
    return owner.firing(y.score).command


def settle(world: World) -> RedisCommand[Any]:
    owner, copies = world.fired("x", "y")
    return owner.settling(*copies)


def settle_at_most_once(world: World) -> RedisCommand[Any]:
    owner, (x, y) = world.fired("x", "y")
    owner.settle(y)
    return owner.settling_once(x, y)


def retry(world: World) -> RedisCommand[Any]:
    owner, copies = world.fired("x", "y")
    return owner.retrying(*copies, delay_ms=100, maybe=True)


def retry_not_attempted(world: World) -> RedisCommand[Any]:
    owner, copies = world.claimed("x", "y")
    return owner.retrying(*copies)


def retry_until_later(world: World) -> RedisCommand[Any]:
    owner, copies = world.claimed("x", "y")
    return owner.deferring(*copies)


def park(world: World) -> RedisCommand[Any]:
    owner, copies = world.claimed("x", "y")
    return owner.parking(*copies)


def offer(world: World) -> RedisCommand[Any]:
    owner, copies = world.claimed("x", "y")
    return pulling.offer(owner.bucket, (owner.token, TTL_MS), [(c.item, "pull:t") for c in copies])


def unpark(world: World) -> RedisCommand[Any]:
    owner, copies = world.claimed("x", "y")
    owner.park(*copies)
    return owner.unparking()


def unpark_named(world: World) -> RedisCommand[Any]:
    owner, copies = world.claimed("x", "y")
    owner.park(*copies)
    return owner.unparking(ids=["x"])


def page_parked(world: World) -> RedisCommand[Any]:
    owner, copies = world.claimed("x", "y")
    owner.park(*copies)
    return bound(owner.bucket, State.PARKED, limit=1)


def bury(world: World) -> RedisCommand[Any]:
    owner, copies = world.fired("x", "y")
    return owner.burying(*copies, maybe=True)


def reclaim(world: World) -> RedisCommand[Any]:
    world.fired("x", "y")
    world.end_lease()
    return world.owner().reclaiming()


def trim(world: World) -> RedisCommand[Any]:
    owner, copies = world.fired("x", "y", "z")
    owner.bury(*copies)
    return owner.bucket.trim(owner.token, TTL_MS, keep=1, age_ms=None, now_ms=world.now_ms)


def announce(world: World) -> RedisCommand[Any]:
    return registry.announce(world.namespace, "worker", "one", TTL_MS, b"{}", now_ms=world.now_ms)


def announce_leaving(world: World) -> RedisCommand[Any]:
    world.run(announce(world))
    return registry.announce(world.namespace, "worker", "one", 0, now_ms=world.now_ms)


CASES: list[Case] = [
    schedule, schedule_replacing, schedule_conflicting, schedule_duplicate, schedule_waiting,
    schedule_read_before, schedule_conflicting_from_a_source, quarantine,
    quarantine_an_id_that_is_taken, cancel_from_a_source, cancel, cancel_on_the_wheel,
    cancel_in_flight, cancel_unknown, reschedule, reschedule_maybe_delivered, reschedule_dead,
    kick, discard, get, page, sample, tally, acquire, acquire_first, renew, release, claim,
    claim_all, claim_nothing, fire, fire_acknowledging, settle, settle_at_most_once, retry,
    retry_not_attempted, retry_until_later, park, offer, unpark, unpark_named, page_parked, bury,
    reclaim, trim, announce, announce_leaving,
]  # fmt: skip
each_case = pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)


@pytest.fixture
def twins(any_redis_url: str, namespace: str, now_ms: int) -> Iterator[Twins]:
    with (
        World(any_redis_url, f"{namespace}-a", now_ms) as one,
        World(any_redis_url, f"{namespace}-b", now_ms) as other,
    ):
        yield one, other
        for world in (one, other):
            one.redis.delete(keys.workers(world.namespace), keys.worker_info(world.namespace))


@pytest.fixture
def proxy(any_redis_url: str) -> Iterator[LossyProxy]:
    with LossyProxy(urlsplit(any_redis_url).port or 0) as proxy:
        yield proxy


def everything(world: World) -> dict[str, Any]:
    """The bucket, and the namespace's announcements of workers."""
    workers = world.redis.zrange(keys.workers(world.namespace), 0, -1, withscores=True)
    info = world.redis.hgetall(keys.worker_info(world.namespace))
    return world.state() | {"workers": workers, "worker_info": info}


def told(answer: Any) -> Any:
    """The part of an answer that callers act on."""
    if isinstance(answer, Reclaimed):
        return answer.left
    if isinstance(answer, Trimmed):
        return None
    return answer._replace(now_us=0) if isinstance(answer, Fleet) else answer


def test_there_is_a_case_for_every_verb(now_ms: int) -> None:
    verbs = {case.__name__.partition("_")[0] for case in CASES}
    # A `receive` sent again gives other messages, or none: see test_pull.py.
    # Of `seal`, `restore` and `drop` only the numbers in their answers differ. For the others
    # see test_allow.py, test_rules.py, test_series.py, test_recurring_interleavings.py.
    others = "allow set_rule record define recur fence receive seal restore drop"
    assert verbs == SCRIPT_KEYS.keys() - set(others.split())


@each_case
def test_a_verb_whose_reply_is_lost_gives_the_same_answer_and_leaves_the_same_bucket(
    twins: Twins, proxy: LossyProxy, case: Case
) -> None:
    one, other = twins
    answer = one.run(case(one))
    command = case(other)
    with closing(Store(proxy.url)) as store:
        store.run([registry.store_time()])  # connected
        proxy.drop_next_replies(1)
        (again,) = store.run([command])
    assert proxy.dropped == 1
    assert told(again) == told(answer)
    assert everything(other) == everything(one)


@each_case
def test_a_verb_executed_three_times_is_executed_once(twins: Twins, case: Case) -> None:
    one, other = twins
    answer = one.run(case(one))
    command = case(other)
    answers = [told(other.run(command)) for _ in range(3)]
    assert answers == [told(answer)] * 3
    assert everything(other) == everything(one)


async def test_a_whole_pipeline_whose_replies_are_lost_is_sent_again_by_the_async_store(
    twins: Twins, proxy: LossyProxy
) -> None:
    one, other = twins
    pipelines = []
    for world in twins:
        owner, copies = world.fired("x", "y", "z")
        world.schedule("new", world.now_ms)
        world.schedule("gone", world.now_ms + 60_000)
        pipelines.append([
            owner.parking(copies[0]), owner.settling(copies[1]),
            owner.retrying(copies[2], delay_ms=60_000), owner.claiming(),
            owner.firing(world.now_ms + 1).command, world.canceling("gone"),
        ])  # fmt: skip
    expected = one.store.run(pipelines[0])
    store = AsyncStore(proxy.url)
    try:
        await store.run([registry.store_time()])
        proxy.drop_next_replies(2)
        assert await store.run(pipelines[1]) == expected
    finally:
        await store.close()
    assert proxy.dropped == 2
    assert everything(other) == everything(one)


def test_a_delay_on_redis_clock_is_not_restarted_when_the_call_is_sent_again(
    twins: Twins, proxy: LossyProxy
) -> None:
    world, _ = twins
    relative = world.scheduling_all([Accepted("x", b"x", "+60000", 255, b"payload")])
    first = world.run(relative)
    args = [world.now_ms + 777, *relative.args[1:]]  # Redis' clock when it is executed again
    again = world.run(RedisCommand("schedule", relative.keys, args, relative.parse))
    assert again == first == [(Answer.CREATED, world.now_ms + 60_000)]
