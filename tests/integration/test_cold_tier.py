"""The cold tier: messages that are in the ledger alone are answered for as those in Redis are."""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Any

import pytest
import redis

from delaybridge import AsyncClient, Client, Message, Stored
from delaybridge.errors import ConfigError, LedgerUnavailable, MessageConflict
from delaybridge.ledger.comparing.promotion import promote_due
from delaybridge.ledger.recording import cold_reads
from delaybridge.ledger.recording.recorder import LedgerRecorder
from delaybridge.message import Answer, State
from delaybridge.operate.views.horizon import read_horizon
from delaybridge.operate.views.tally import count_by_destination
from delaybridge.store.messages.selection import Selection, Walk
from delaybridge.store.protocol.recorder import open_recorder
from delaybridge.store.protocol.verbs import new_stamp
from tests.rigs.crew import Arrived, Crew, note_arrivals
from tests.rigs.ledgers import LedgerProbe
from tests.rigs.waiting import until_async

TO = ("memory:a", "memory:b")
BROKERS = {"memory": "memory://"}
BUCKETS = 4
WINDOW_S = 10.0
IDS = [f"m{n}" for n in range(12)]
SPAN_S = 4000

Made = Callable[[], Client]


def at(seconds: float) -> datetime:
    return datetime.fromtimestamp(seconds, UTC)


@pytest.fixture
def made(redis_url: str, namespace: str, ledger_url: str) -> Iterator[Made]:
    """Makes clients whose messages are cold if they are due in more than ten seconds."""
    found: list[Client] = []

    def make() -> Client:
        found.append(
            Client(
                redis_url,
                namespace=namespace,
                brokers=BROKERS,
                durability="ledger",
                ledger=ledger_url,
                hot_window_s=WINDOW_S,
                buckets=BUCKETS,
            )  # fmt: skip
        )
        return found[-1]

    yield make
    for client in found:
        client.close()


@pytest.fixture
def client(made: Made) -> Client:
    return made()


@pytest.fixture
def alone(redis_url: str, namespace: str) -> Iterator[Client]:
    """A client of the same namespace without the ledger: what Redis has."""
    with Client(redis_url, namespace=namespace, brokers=BROKERS) as found:
        yield found


@pytest.fixture
def plain(redis_url: str, namespace: str) -> Iterator[Client]:
    """A client of another namespace, without a ledger."""
    with Client(redis_url, namespace=f"{namespace}-2", brokers=BROKERS, buckets=BUCKETS) as found:
        yield found


def promote(client: Client, until_ms: int) -> int:
    """Promote what is due by then, as a worker does."""
    store = client._store
    assert isinstance(store.recorder, LedgerRecorder)
    cold = store.recorder.cold
    buckets = client.run(lambda calls: calls.open())
    window_ms = until_ms - time.time_ns() // 1_000_000
    looked = (store.complete(promote_due(bucket, cold, window_ms)) for bucket in buckets)
    return sum(each.messages for each in looked)


def shown(found: Stored | None) -> object:
    if found is None:
        return None
    return found.id, found.state, found.due_ms, found.body, found.priority, found.destination


def pages(client: Client, limit: int, **what: Any) -> list[object]:
    cursor, found = None, []
    while True:
        page = client.pending(limit=limit, cursor=cursor, **what)
        found += page.items
        cursor = page.cursor
        if cursor is None:
            return [shown(each) for each in found]


def selected(client: Client, selection: Selection) -> list[str]:
    """What a bulk verb would act on."""

    def steps(calls: Any) -> Any:
        walk, found = Walk(calls, selection), list[str]()
        while (page := (yield from walk.page())) is not None:
            found += [each.id for each in page]
        return sorted(found)

    return client.run(steps)


def counted(client: Client) -> object:
    stats = client.stats()
    by_bucket = [(each.bucket, each.delayed, each.next_due_ms) for each in stats.buckets]
    by_place = client.run(count_by_destination)
    return stats.delayed, stats.next_due_ms, by_bucket, by_place


def outlook(client: Client, destination: str | None, from_ms: int) -> object:
    """The horizon from an instant on: with the time of the call its cells would begin."""
    found = client.run(
        lambda calls: read_horizon(calls, SPAN_S * 1000, 600_000, destination, from_ms)
    )
    return found.cells, found.messages, found.overdue, found.later


def acted(client: Client, verb: str, *args: Any, **options: Any) -> object:
    try:
        found = getattr(client, verb)(*args, **options)
    except MessageConflict:
        return "conflict"
    return (str.__str__(found), found.due_ms) if verb == "schedule" else found


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.slow_with("mariadb-*", "postgres-[123]", "sqlite-[023]")
def test_the_answers_are_those_of_one_tier(
    client: Client, plain: Client, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    if seed % 2:  # as if the database were slow: counts of many may be old, others not
        monkeypatch.setattr(cold_reads, "SLOW_S", 0.0)
        monkeypatch.setattr(cold_reads, "READ_AGAIN", 1e6)
    draw = random.Random(seed)
    base_s = round(time.time())
    for _ in range(120):
        id, due = draw.choice(IDS), at(base_s + draw.choice([5, draw.randrange(300, SPAN_S)]))
        match draw.randrange(8):
            case 0 | 1 | 2:
                body, to = draw.choice([b"1", b"2"]), draw.choice(TO)
                policy = draw.choice(["fail", "keep", "replace"])
                options = {
                    "at": due, "id": id, "on_conflict": policy, "priority": draw.choice([0, 9]),
                }  # fmt: skip
                call: Any = ("schedule", to, body), options
            case 3:
                call = ("cancel", id), {}
            case 4:
                call = ("reschedule", id), {"at": due}
            case 5:
                promote(client, (base_s + draw.randrange(SPAN_S)) * 1000)
                continue
            case 6:
                messages = [Message(TO[0], b"1", at=due, id=draw.choice(IDS)) for _ in range(4)]
                call = ("schedule_many", messages), {"on_conflict": "keep"}
            case _:
                limit = draw.randrange(1, 5)
                assert pages(client, limit) == pages(plain, limit)
                span = {"due_from_ms": (base_s + 600) * 1000, "due_to_ms": (base_s + 2000) * 1000}
                assert pages(client, limit, **span) == pages(plain, limit, **span)
                assert counted(client) == counted(plain)
                continue
        args, options = call
        assert acted(client, *args, **options) == acted(plain, *args, **options), call
        assert shown(client.get(id)) == shown(plain.get(id))
    for to in (None, "memory:a"):
        assert outlook(client, to, base_s * 1000) == outlook(plain, to, base_s * 1000)
    late = Selection(due_from_ms=(base_s + 1000) * 1000)
    for selection in (Selection(destination=TO[0]), Selection(id_prefix="m1"), late):
        assert selected(client, selection) == selected(plain, selection)


async def test_a_worker_counts_those_in_redis_without_asking_the_database(
    redis_url: str, namespace: str, ledger_url: str
) -> None:
    kept: dict[str, Any] = {"durability": "ledger", "ledger": ledger_url, "hot_window_s": WINDOW_S}
    async with AsyncClient(redis_url, namespace=namespace, brokers=BROKERS, **kept) as client:
        await client.schedule_many([Message(TO[0], b"x", delay=d) for d in ("1d", 5)])
        buckets = await client.run(lambda calls: calls.open())
        sizes = [command for bucket in buckets for command in bucket.sizes()]
        for redis_only in (True, False):
            found = await client._store.run_each(sizes, redis_only=redis_only)
            assert sum(found) == 2 - redis_only


def test_redis_has_nothing_of_them(
    client: Client, alone: Client, redis_url: str, namespace: str, ledger: LedgerProbe
) -> None:
    client.stats()
    with redis.Redis.from_url(redis_url) as connection:
        before = {*connection.scan_iter(f"*{namespace}*")}
        receipts = client.schedule_many(
            [Message(TO[0], b"x", delay="1d", id=f"m{n}") for n in range(500)]
        )
        assert {*receipts} == {Answer.CREATED}
        assert {*connection.scan_iter(f"*{namespace}*")} == before
    assert alone.stats().delayed == 0
    assert client.stats().delayed == 500
    soon = client.schedule(TO[0], b"x", delay=WINDOW_S - 1)
    assert alone.stats().delayed == 1
    assert ledger.ask("SELECT tier, count(*) FROM message GROUP BY tier ORDER BY tier") == [
        (1, 1), (2, 500)
    ]  # fmt: skip
    assert client.cancel_many([receipt.id for receipt in receipts]) == [Answer.CANCELLED] * 500
    assert client.get(receipts[7].id) is None
    assert client.cancel(soon.id) is Answer.CANCELLED
    assert client.stats().delayed == 0
    assert promote(client, 2**50) == 0


@pytest.mark.parametrize("promoted", [0.0, 0.3, 0.9])
@pytest.mark.slow_with("mariadb-*", "sqlite-0.[09]", "postgres-0.0")
def test_many_are_estimated_by_a_sample_of_both(client: Client, promoted: float) -> None:
    count, minority = 6000, 1500
    base_ms = (round(time.time()) + 3600) * 1000
    messages = [Message(TO[n % 4 == 0], b"x", at=at(base_ms / 1000 + n)) for n in range(count)]
    client.schedule_many(messages)
    promote(client, base_ms + round(promoted * count) * 1000)
    assert client.stats().delayed == count
    found = {each.destination: each.delayed for each in client.run(count_by_destination)}
    assert sum(each.messages for each in found.values()) == pytest.approx(count, rel=0.01)
    (few, error) = min(found.values())
    assert error > 0
    assert abs(few - minority) < 3 * error
    ahead = client.run(lambda calls: read_horizon(calls, 4 * 3_600_000, 4 * 3_600_000, TO[1]))
    cell = ahead.cells[-1] if len(ahead.cells) == 1 else max(ahead.cells, key=lambda c: c.messages)
    assert sum(each.messages for each in ahead.cells) == pytest.approx(minority, abs=3 * cell.error)


def test_the_same_call_again_is_the_same_call(client: Client) -> None:
    sent = [(new_stamp(), client.accept(Message(TO[0], b"x", delay="1d", id="x")))]
    first = client.schedule_accepted(sent)
    assert client.schedule_accepted(sent) == first == [Answer.CREATED]
    promote(client, 2**50)
    assert client.schedule_accepted(sent) == [Answer.CREATED]
    assert client.cancel("x") is Answer.CANCELLED
    client.schedule_accepted(sent)
    assert client.get("x") is None
    assert promote(client, 2**50) == 0


def test_calls_that_ingest_reads(client: Client) -> None:
    """They are made once, or depend on the destination: Redis decides."""
    for id in ("a", "b", "c"):
        client.schedule(TO[0], b"x", delay="1d", id=id, key="k")
    (bucket,) = {client.get(id).bucket for id in ("a", "b", "c")}  # type: ignore[union-attr]
    verbs = client.run(lambda calls: calls.open())[bucket]
    mine, other = '[["^memory:a$"]]', '[["^memory:b$"]]'

    def run(command: Any) -> Answer:
        def steps(_: object) -> Any:
            return (yield [command])

        (answer,) = client.run(steps)
        return Answer(answer)

    assert run(verbs.cancel(new_stamp(), "a", reach=other)) is Answer.FOREIGN
    assert run(verbs.cancel(new_stamp(), "a", reach=mine)) is Answer.CANCELLED
    assert run(verbs.cancel(new_stamp(), "b", source="s", offset=1)) is Answer.CANCELLED
    due = str(round((time.time() + 7200) * 1000))
    assert run(verbs.reschedule(new_stamp(), "c", due, reach=other)) is Answer.FOREIGN
    assert run(verbs.reschedule(new_stamp(), "c", due, source="s", offset=2)) is Answer.RESCHEDULED
    assert run(verbs.cancel(new_stamp(), "c", source="s", offset=2)) is Answer.UNKNOWN
    assert client.stats().delayed == 1


@pytest.mark.slow_with("mariadb")
@pytest.mark.slow_with("sqlite")
def test_many_at_once_agree_on_one_message(made: Made, ledger: LedgerProbe) -> None:
    """Of each id there is one message at most, however schedulers and promoters meet."""
    seen: list[Counter[tuple[str, str]]] = []
    errors: list[Exception] = []

    def work(client: Client, seed: int) -> None:
        draw, mine = random.Random(seed), Counter[tuple[str, str]]()
        try:
            for _ in range(60):
                id = draw.choice(IDS[:4])
                match draw.randrange(5):
                    case 0:
                        promote(client, 2**50)
                    case 1:
                        mine[id, client.cancel(id).value] += 1
                    case 2:
                        client.reschedule(id, delay=draw.choice(["1h", "2h"]))
                    case _:
                        delay = draw.choice([5, 3600, 7200])
                        answer = client.schedule(
                            TO[0], b"x", delay=delay, id=id, on_conflict="keep"
                        )
                        mine[id, f"schedule {str.__str__(answer)}"] += 1
        except Exception as exc:
            errors.append(exc)
        seen.append(mine)

    threads = [threading.Thread(target=work, args=(made(), seed)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors
    client, total = made(), sum(seen, Counter[tuple[str, str]]())
    promote(client, 2**50)
    for id in IDS[:4]:
        stored = total[id, "schedule created"] - total[id, "cancelled"]
        undone = total[id, "schedule cancelled"]  # before their callers had an answer
        assert stored <= (client.get(id) is not None) <= stored + undone, (id, total)
    live = ledger.ask("SELECT id FROM message WHERE tier > 0")
    assert len(live) == len({*live}) == client.stats().delayed
    client.cancel_many(IDS[:4])
    assert promote(client, 2**50) == client.stats().delayed == 0


def test_while_the_database_is_silent(client: Client, ledger: LedgerProbe) -> None:
    hot = client.schedule(TO[0], b"x", delay=5).id
    cold = client.schedule(TO[0], b"x", delay="1d").id
    ledger.ask("ALTER TABLE message RENAME TO hidden")
    try:
        assert client.get(hot) is not None
        assert client.stats().delayed == 1
        for ask in (client.get, client.cancel):
            with pytest.raises((LedgerUnavailable, ConfigError)):
                ask(cold)
    finally:
        ledger.ask("ALTER TABLE hidden RENAME TO message")
    assert client.get(cold) is not None


@pytest.mark.parametrize("window", [-1, 9.9, float("nan"), "1h"])
def test_a_window_that_is_none_is_refused(tmp_path: Any, window: Any) -> None:
    from delaybridge.settings.durability import check_durability

    with pytest.raises(ConfigError, match="hot_window_s"):
        open_recorder(check_durability("ledger"), f"sqlite:///{tmp_path}/x", "n", 1, window)


async def test_a_worker_promotes_and_delivers_in_time(
    redis_url: str, namespace: str, postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from delaybridge.ledger.sql.database import upgrade

    upgrade(postgres_url, 10)
    arrived: Arrived = note_arrivals(monkeypatch)
    settings = {"hot_window_s": WINDOW_S, "reconcile_s": 5.0}
    async with Crew(redis_url, namespace, ledger=postgres_url, hot_window_s=WINDOW_S) as crew:
        probe = LedgerProbe(postgres_url)

        async def cold() -> list[str]:
            """Others, if a starved machine took so long that some were due within the window."""
            ids = await crew.schedule(300, seconds=1, first_s=WINDOW_S + 1)
            if probe.ask("SELECT count(*) FROM message WHERE tier = 2") == [(300,)]:
                return ids
            await crew.client.cancel_many(ids)
            return []

        ids = await until_async(cold, "all are in the ledger alone")
        assert (await crew.client.pending(state=State.DELAYED)).items
        gone = ids[::10]
        assert {*await crew.client.cancel_many(gone)} == {Answer.CANCELLED}
        cancelled = probe.states()["cancelled"]
        left = [id for id in ids if id not in gone]
        crew.start(ledger=settings)
        await arrived.all(left)
        assert len(arrived.late_ms) == len(left)
        assert min(arrived.late_ms) >= 0
        await until_async(
            lambda: probe.states() == {"published": len(left), "cancelled": cancelled}
        )
        probe.close()
        await crew.stop()
