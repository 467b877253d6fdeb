"""The pump's statements, one by one: which rows each of them takes, and who has the lock."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
from sqlalchemy import Engine, create_engine

from delaybridge import Message, outbox
from delaybridge.outbox.database import OutboxTable
from tests.rigs.waiting import PATIENCE_S, until

OWN, OTHER = "own", "other"
Opened = Callable[[str], OutboxTable]


@pytest.fixture(params=["sqlite", "postgres", "mariadb"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'app.db'}"
    return str(request.getfixturevalue(f"{request.param}_url"))


@pytest.fixture
def engine(url: str) -> Iterator[Engine]:
    engine = create_engine(url)
    with engine.begin() as connection:
        outbox.create_table(connection)
    yield engine
    engine.dispose()


def put(engine: Engine, *ids: str, namespace: str = OWN) -> None:
    with engine.begin() as connection:
        for id in ids:
            outbox.schedule(
                connection, Message("kafka:a", b"x", delay=1, id=id), namespace=namespace
            )


@contextmanager
def opened(url: str, namespace: str = OWN) -> Iterator[OutboxTable]:
    with closing(OutboxTable(url, namespace, timeout_s=PATIENCE_S)) as table:
        yield table


@pytest.mark.slow_with("mariadb")
def test_a_batch_has_the_rows_of_its_namespace_that_wait_up_to_the_newest(
    url: str, engine: Engine
) -> None:
    put(engine, "theirs", namespace=OTHER)
    put(engine, "a", "b", "a", "c")
    put(engine, "theirs", namespace=OTHER)
    with opened(url) as table:
        newest = table.newest()
        assert newest is not None
        put(engine, "a", "later")
        with table.batch(newest) as batch:
            assert batch is not None
            calls = batch.page(0)
            a, b, again, c = (call.number for call in calls)
            assert [call.id for call in calls] == ["a", "b", "a", "c"]
            assert [call.number for call in batch.page(b)] == [again, c]
            batch.finish([b], {a: "conflict: " + "é" * 1000})
        assert table.newest(newest) and table.newest(newest + 100) is None
        with table.batch(newest) as batch:
            assert batch is not None
            assert [call.number for call in batch.page(0)] == [again, c]
            assert batch.with_rows({"a", "b", "c", "theirs"}, a) == set()
            assert batch.with_rows({"a", "b", "c", "theirs"}, again) == {"a"}
            assert batch.with_rows({"a", "b", "c", "later"}, c) == {"a", "c"}
        listed = table.listed(2)
        assert [(row.number, row.id, (row.error or "")[:9]) for row in listed] == [
            (a, "a", "conflict:"), (again, "a", ""),
        ]  # fmt: skip
        counted = table.counted()
        assert (counted.rows, counted.refused) == (5, 1)


@pytest.mark.parametrize("url", ["postgres", "mariadb"], indirect=True)
def test_of_one_namespace_one_pump_has_a_batch_at_a_time(url: str, engine: Engine) -> None:
    put(engine, "a")
    with opened(url) as first, opened(url) as second, opened(url, OTHER) as other:

        def is_free(table: OutboxTable) -> bool:
            with table.batch(9) as batch:
                return batch is not None

        with first.batch(9):
            assert not is_free(second)
            assert is_free(other)
        assert is_free(second), "though the first one keeps its connection"
        with pytest.raises(ZeroDivisionError), first.batch(9) as batch:
            assert batch is not None
            batch.finish([call.number for call in batch.page(0)], {})
            raise ZeroDivisionError
        assert is_free(second)
        assert first.counted().rows == 1, "it was rolled back"


@pytest.mark.parametrize("url", ["postgres"], indirect=True)
def test_whoever_listens_hears_of_each_commit_and_of_those_before(url: str, engine: Engine) -> None:
    from delaybridge.outbox.listener import CommitListener

    heard = list[str]()
    listener = CommitListener(url, lambda: heard.append("news"), timeout_s=PATIENCE_S)
    with closing(listener):
        listener.start()
        until(lambda: len(heard) == 1, "it looks when it has begun")
        assert listener.is_listening
        put(engine, "a")
        until(lambda: len(heard) == 2, "a row was committed")
        with engine.begin() as connection:
            outbox.cancel(connection, "a", namespace=OWN)
            outbox.schedule(connection, Message("kafka:a", b"x", delay=1), namespace=OWN)
            connection.rollback()
        with engine.begin() as connection:
            outbox.cancel(connection, "a", namespace=OWN)
        until(lambda: len(heard) == 3, "one was committed, and one rolled back")
    assert len(heard) == 3
