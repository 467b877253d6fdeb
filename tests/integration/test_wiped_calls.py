"""What a client with a ledger is told while Redis is wiped, and if one of the two fails."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import redis

from delaybridge import Client, Message
from delaybridge.errors import LedgerUnavailable, StoreDamaged
from delaybridge.message import Answer, OnConflict
from delaybridge.store.protocol.keys import birth
from delaybridge.store.protocol.recorder import IN_DOUBT
from delaybridge.store.protocol.verbs import new_stamp
from tests.rigs.ledgers import LedgerProbe
from tests.rigs.stories import Actor

TO = "memory:q"
LATER_MS = 1_893_456_000_000  # 2030
MOST_STEPS = 40


@pytest.fixture
def client(redis_url: str, namespace: str, ledger_url: str) -> Iterator[Client]:
    kept: dict[str, Any] = {"durability": "ledger", "ledger": ledger_url, "hot_window_s": 10.0}
    with Client(
        redis_url, namespace=namespace, brokers={"memory": "memory://"}, buckets=1, **kept
    ) as found:
        yield found


@pytest.fixture
def wipe(redis_url: str, namespace: str) -> Iterator[Callable[[], None]]:
    with redis.Redis.from_url(redis_url) as on:
        yield lambda: on.delete(*[*on.scan_iter(f"{{{namespace}*"), "none"])  # type: ignore[misc]


def replacing(client: Client, id: str) -> Any:
    call = [(new_stamp(), client.accept(Message(TO, b"new", delay="1h", id=id)))]
    return lambda on: on.schedule(call, OnConflict.REPLACE)


VERBS: dict[str, Callable[[Client, str], Any]] = {
    "cancel": lambda _, id: lambda on: on.cancel(id, None),
    "reschedule": lambda _, id: lambda on: on.reschedule(id, None, str(LATER_MS)),
    "replace": replacing,
}
STATES = {  # of the message's rows, after an answer
    Answer.CANCELLED: ["cancelled"],
    Answer.RESCHEDULED: ["delayed"],
    Answer.REPLACED: ["cancelled", "delayed"],
}


@pytest.mark.slow_with("mariadb*", "postgres*")
@pytest.mark.parametrize("delay", ["5s", "1h"])
@pytest.mark.parametrize("verb", VERBS)
def test_it_is_wiped_between_any_two_steps(
    client: Client, ledger: LedgerProbe, wipe: Callable[[], None], verb: str, delay: str
) -> None:
    """No worker runs: it would restore the message, and the call would find it."""
    for steps in range(MOST_STEPS):
        id = f"m{steps}"
        client.schedule(TO, b"old", delay=delay, id=id)
        actor = Actor(client, VERBS[verb](client, id))
        over = [actor.step() for _ in range(steps)]
        wipe()
        answer = actor.end() if not any(over) else actor.answer
        if isinstance(answer, Exception):
            assert isinstance(answer, LedgerUnavailable), (steps, answer)
            assert IN_DOUBT in str(answer)
            continue
        told = answer[0].answer if isinstance(answer, list) else answer
        if told is Answer.CREATED:
            continue  # Redis did not know that there was one to be replaced
        rows = ledger.ask("SELECT state FROM message WHERE id = :id ORDER BY number", id=id)
        assert [state for (state,) in rows] == STATES[told], (steps, told)
        if told is Answer.RESCHEDULED:
            assert ledger.due_ms(id) == LATER_MS, steps
        if any(over):
            return
    pytest.fail(f"it has more than {MOST_STEPS} steps")


@pytest.mark.slow_with("mariadb*", "postgres*")
@pytest.mark.parametrize("delay", ["5s", "1h"])
def test_a_reschedule_makes_the_namespace_again(
    client: Client, redis_url: str, namespace: str, wipe: Callable[[], None], delay: str
) -> None:
    client.schedule(TO, b"x", delay=delay, id="x")
    with redis.Redis.from_url(redis_url) as on:
        born = on.get(birth(namespace))
        wipe()
        assert client.reschedule("x", delay="2h") is Answer.RESCHEDULED
        assert on.get(birth(namespace)) == born


@pytest.mark.slow_with("mariadb*", "postgres*")
def test_an_error_of_redis_says_that_the_ledger_has_the_message(
    client: Client, redis_url: str, ledger: LedgerProbe
) -> None:
    client.schedule(TO, b"x", delay=5, id="x")
    (bucket,) = client.run(lambda calls: calls.open())
    with redis.Redis.from_url(redis_url) as on:
        on.set(bucket.key("due"), "damaged")
        with pytest.raises(StoreDamaged, match=f"doctor; {IN_DOUBT}"):
            client.schedule(TO, b"x", delay=5, id="y")
    assert ledger.states() == {"delayed": 2}


@pytest.mark.slow_with("mariadb*", "postgres*")
@pytest.mark.parametrize("verb", ["cancel", "reschedule", "schedule"])
def test_an_error_of_the_ledger_says_that_redis_has_done_it(
    client: Client, redis_url: str, ledger: LedgerProbe, verb: str
) -> None:
    client.schedule(TO, b"new", delay=5, id="x")
    (bucket,) = client.run(lambda calls: calls.open())
    again = client.accept(Message(TO, b"new", delay=5, id="x"))
    actor = Actor(
        client,
        VERBS[verb](client, "x")
        if verb in VERBS
        else lambda on: on.schedule([(new_stamp(), again)], OnConflict.FAIL),
    )
    with redis.Redis.from_url(redis_url) as on:
        actor.until(lambda: on.exists(bucket.key("calls")) == 1)
    ledger.ask("ALTER TABLE message RENAME TO hidden")
    assert isinstance(actor.end(), LedgerUnavailable)
    assert str(actor.answer).endswith(f"; {IN_DOUBT}")


@pytest.mark.slow_with("mariadb*", "postgres*")
@pytest.mark.parametrize("verb", ["cancel", "reschedule"])
def test_a_replacement_that_redis_has_lost_comes_back(
    client: Client, redis_url: str, ledger: LedgerProbe, verb: str
) -> None:
    """Redis still has the note of its call: the answer, if it is sent again."""
    client.schedule(TO, b"old", delay=5, id="x")
    assert client.schedule(TO, b"new", delay=5, id="x", on_conflict="replace") == Answer.REPLACED
    (bucket,) = client.run(lambda calls: calls.open())
    with redis.Redis.from_url(redis_url) as on:
        assert on.delete(bucket.key("messages"), bucket.key("due")) == 2
    assert Actor(client, VERBS[verb](client, "x")).end() in STATES
    assert ledger.states()["cancelled"] == (2 if verb == "cancel" else 1)
