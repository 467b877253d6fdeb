"""Three at once on one cold id, in any order of their steps: no answer is given twice."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import pytest
import redis

from delaybridge import Client, Message
from delaybridge.ledger.comparing.promotion import promote_due
from delaybridge.message import Answer, OnConflict
from delaybridge.store.protocol.verbs import new_stamp
from tests.rigs.ledgers import LedgerProbe
from tests.rigs.stories import Actor, Made, ledger_clients, played

TO = "memory:a"
STORIES = 20
FIRST = 65


@pytest.fixture
def made(redis_url: str, namespace: str, ledger_url: str) -> Iterator[Made]:
    with ledger_clients(redis_url, namespace, ledger_url) as found:
        yield found


class Three:
    """A cold message that was accepted; two will cancel it, and one schedules its id again."""

    def __init__(self, clients: list[Client], id: str, delay: str = "1h") -> None:
        self.id, self._client = id, clients[0]
        assert clients[0].schedule(TO, b"x", delay="1h", id=id) == Answer.CREATED
        again = clients[0].accept(Message(TO, b"x", delay=delay, id=id))
        call = [(new_stamp(), again)]
        self.schedules = Actor(clients[1], lambda on: on.schedule(call, OnConflict.KEEP))
        self.cancels = [Actor(one, lambda on: on.cancel(id, None)) for one in clients[2:4]]

    @property
    def told(self) -> tuple[Answer, int]:
        """What the one that schedules was told; how many were told that they cancelled it."""
        (receipt,) = self.schedules.answer
        return receipt.answer, [one.answer for one in self.cancels].count(Answer.CANCELLED)

    def rows(self, ledger: LedgerProbe) -> list[str]:
        """The state of each row, in the order of their calls."""
        found = ledger.ask("SELECT state FROM message WHERE id = :id ORDER BY number", id=self.id)
        return [state for (state,) in found]


def promoting(client: Client) -> Actor:
    def steps(calls: Any) -> Any:
        (bucket,) = yield from calls.open()
        return (yield from promote_due(bucket, client._store.recorder.cold, 2**50))  # type: ignore[union-attr]

    return Actor(client, steps)


@pytest.mark.slow_with("mariadb")
def test_no_message_is_cancelled_by_two(made: Made, ledger: LedgerProbe) -> None:
    clients = [made() for _ in range(5)]
    for seed in range(FIRST, FIRST + STORIES):
        draw = random.Random(seed)
        three = Three(clients, f"m{seed}", draw.choice(["1h", "5s"]))
        promoters = [promoting(clients[4])] if draw.random() < 0.3 else []
        played([three.schedules, *three.cancels, *promoters], draw)
        (scheduled, told), rows = three.told, three.rows(ledger)
        created = 1 + (scheduled is Answer.CREATED)
        there = clients[0].get(three.id) is not None
        story = seed, scheduled, [one.answer for one in three.cancels], rows, there
        assert told <= created + (scheduled is Answer.CANCELLED), story
        assert created - told == there or told > created - there, story
        assert rows.count("delayed") == there, story
        assert not (told and rows[0] == "delayed"), story
        clients[0].cancel(three.id)


@pytest.mark.slow_with("mariadb*", "postgres*")
def test_a_cancel_leaves_the_row_of_a_call_that_redis_has_refused(
    made: Made, ledger: LedgerProbe
) -> None:
    """No worker has ever held the bucket: nothing else says that there is a ledger."""
    three = Three([made() for _ in range(4)], "x")
    first, second = three.cancels
    three.schedules.until(lambda: len(three.rows(ledger)) == 2)
    second.until_ledger()  # it has read both rows
    three.schedules.end()
    assert first.end() is Answer.CANCELLED
    assert second.end() is Answer.UNKNOWN
    assert three.told == (Answer.DUPLICATE, 1)
    assert three.rows(ledger) == ["cancelled"]


@pytest.mark.slow_with("mariadb*", "postgres*")
def test_a_cancel_ends_the_message_that_was_accepted(made: Made, ledger: LedgerProbe) -> None:
    three = Three([made() for _ in range(4)], "x")
    three.schedules.until(lambda: len(three.rows(ledger)) == 2)
    assert three.cancels[0].end() is Answer.CANCELLED
    three.schedules.end()
    assert three.told == (Answer.CREATED, 1)
    assert three.rows(ledger) == ["cancelled", "delayed"]


@pytest.mark.slow_with("mariadb*", "postgres*")
def test_a_call_finds_an_accepted_one_whose_row_has_a_higher_number(
    made: Made, ledger: LedgerProbe
) -> None:
    """Numbers are drawn before the commit, so they may be in another order than the commits."""
    three = Three([made() for _ in range(4)], "x")
    three.schedules.until(lambda: len(three.rows(ledger)) == 2)
    (accepted, _) = ledger.ask("SELECT number FROM message WHERE id = 'x' ORDER BY number")
    ledger.ask("UPDATE message SET number = number + 1000 WHERE number = :n", n=accepted[0])
    three.schedules.end()
    assert three.told == (Answer.DUPLICATE, 0)
    assert three.rows(ledger) == ["delayed"]


@pytest.mark.slow_with("mariadb*", "postgres*")
@pytest.mark.parametrize("end", ["published", ""])
def test_a_cancel_that_is_late_is_told_that_the_message_has_left(
    made: Made, ledger: LedgerProbe, end: str
) -> None:
    """It had read the row before; so long ago that Redis remembers nothing. Or it was withdrawn."""
    clients = [made() for _ in range(2)]
    clients[0].schedule(TO, b"x", delay="1h", id="x")
    late = Actor(clients[1], lambda on: on.cancel("x", None))
    late.until_ledger()
    change = f"UPDATE message SET state = '{end}', tier = 0" if end else "DELETE FROM message"
    ledger.ask(f"{change} WHERE id = 'x'")
    assert late.end() is Answer.UNKNOWN
    assert ledger.state("x") == end


@pytest.mark.slow_with("mariadb*", "postgres*")
def test_a_cancel_that_is_made_again_ends_the_row_of_its_message_alone(
    made: Made, ledger: LedgerProbe, redis_url: str
) -> None:
    """A worker began to compare the bucket before the commit: so it is the same call again."""
    clients = [made() for _ in range(4)]
    three = Three(clients, "x")
    (bucket,) = clients[0].run(lambda calls: calls.open())
    promoting(clients[0]).end()
    first = three.cancels[0]
    with redis.Redis.from_url(redis_url) as on:
        first.until(lambda: not on.hexists(bucket.key("messages"), "x"))
        three.schedules.until(lambda: len(three.rows(ledger)) == 2)
        on.hset(bucket.key("marks"), "healed", "run:1")
    assert first.end() is Answer.CANCELLED
    three.schedules.end()
    assert three.told == (Answer.CREATED, 1)
    assert three.rows(ledger) == ["cancelled", "delayed"]
