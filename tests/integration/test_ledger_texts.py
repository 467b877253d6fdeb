"""Texts that a database does not take as they are: rows have them printable; what is refused."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from delaybridge import Answer, Client, Selection
from delaybridge.errors import LedgerRefused, LedgerUnavailable
from delaybridge.ingest.entries import Entry, Quarantine
from delaybridge.ingest.storing import store_entries
from delaybridge.ledger.sql.records import Records
from delaybridge.ledger.sql.rows import Step
from delaybridge.message import Record, State, encode_record
from delaybridge.store.protocol import verbs
from delaybridge.store.protocol.verbs import Work
from tests.rigs.ledgers import LedgerProbe

ODD, PRINTABLE = "a\0b\u2028c\\d", "a\\x00b\\u2028c\\d"
LONGEST = "i" * 255
PAYLOAD = encode_record(Record(f"memory:{ODD}", b"x"))
BUCKETS = 4
SERVERS = pytest.mark.parametrize("ledger_url", ["postgres", "mariadb"], indirect=True)


@pytest.fixture
def client(redis_url: str, namespace: str, ledger_url: str) -> Iterator[Client]:
    with Client(
        redis_url, namespace=namespace, brokers={"memory": "memory://"}, buckets=BUCKETS,
        durability="ledger", ledger=ledger_url,
    ) as found:  # fmt: skip
        yield found


def store(client: Client, entries: Sequence[Entry]) -> list[Any]:
    return client.run(lambda calls: store_entries(calls, entries))


def run(client: Client, work: Work[Any]) -> Any:
    recorder = client._store.recorder
    assert recorder is not None
    return recorder.ledger.run(work)


def test_what_is_refused_may_have_any_routing_key_reason_and_id(
    client: Client, ledger: LedgerProbe
) -> None:
    names = (None, LONGEST)
    entries = [Quarantine.with_own_id(name, b"call", PAYLOAD, f"ingress:{ODD}") for name in names]
    assert store(client, entries) == [Answer.CREATED] * 2
    rows = ledger.ask("SELECT destination, error FROM message")
    assert [*map(tuple, rows)] == [(f"memory:{PRINTABLE}", f"ingress:{PRINTABLE}")] * 2
    found = client.select(Selection(destination="memory", states=(State.DEAD,)))
    assert sum(len(client.dead.discard_many(page)) for page in found) == 2
    assert {*ledger.states()} == {"cancelled"}


def test_the_history_takes_what_a_worker_and_a_broker_are_called(
    client: Client, ledger: LedgerProbe
) -> None:
    step = Step("x", "in_flight", "dead", 1, f"{ODD}{LONGEST}", 0, error=ODD)
    run(client, Work(lambda on: Records("own").note(on, [step])))
    ((worker, error),) = ledger.ask("SELECT worker, error FROM transition")
    assert (worker[: len(PRINTABLE)], len(worker), error) == (PRINTABLE, 255, PRINTABLE)


@SERVERS
def test_what_the_database_does_not_take_is_refused_for_good_and_the_others_go_on(
    client: Client, ledger: LedgerProbe
) -> None:
    """An error that may pass would be tried again for ever."""
    ids = ["i" * 300, *(f"m{number}" for number in range(20))]
    answers = store(client, [Quarantine(id, b"call", PAYLOAD, "ingress:odd") for id in ids])
    bucket = verbs.bucket_of(ids[0].encode(), BUCKETS)
    for id, answer in zip(ids, answers, strict=True):
        if verbs.bucket_of(id.encode(), BUCKETS) == bucket:
            assert isinstance(answer, LedgerRefused) and not isinstance(answer, LedgerUnavailable)
            assert "nothing was written" in str(answer)
        else:
            assert answer is Answer.CREATED
    assert len(ledger.ask("SELECT id FROM message")) == answers.count(Answer.CREATED) > 0


def test_text_that_no_encoding_has_is_refused(client: Client) -> None:
    with pytest.raises(LedgerRefused):
        run(client, Work(lambda on: Records("own").live(on, ["\ud800"])))
