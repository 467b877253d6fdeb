"""A search by header finds what a look at every message finds, page by page, and bulk verbs too."""

from __future__ import annotations

import random
from functools import partial

import pytest

from delaybridge import Client, Message, State
from delaybridge.operate.cli.messages.stored import page_of
from delaybridge.operate.views import listing
from delaybridge.operate.views.listing import Cursor, Page
from delaybridge.store.calls import Calls
from delaybridge.store.messages.record_filters import Conditions
from delaybridge.store.messages.selection import Selection
from delaybridge.store.protocol.replies import Row
from delaybridge.store.protocol.verbs import Steps

COLOURS = ("blue", "red", "42", "crimson")


def crowd(seed: int, size: int) -> list[Message]:
    """Messages that share milliseconds; each has a colour, some by another header's name."""
    draw = random.Random(seed)
    return [
        Message(
            "rabbitmq:/q", draw.randbytes(draw.choice([1, 2000])), id=f"m{n}",
            at=f"2035-01-01T00:00:00.00{draw.randrange(3)}Z",
            headers={draw.choice(["colour", "color"]): draw.choice([*COLOURS, 42])},
        )
        for n in range(size)
    ]  # fmt: skip


def found(client: Client, header: str) -> list[str]:
    """Ids, page by page."""
    ids, cursor, asked = list[str](), None, {"state": State.DELAYED, "limit": 7, "header": header}
    while True:
        page: Page = client.run(partial(page_of, cursor=cursor, **asked))
        ids, cursor = [*ids, *(one.id for one in page.items)], page.cursor
        if cursor is None:
            return ids


def looked_through(max_bytes: int, needles: list[bytes], calls: Calls) -> Steps[list[Row]]:
    """Every row of the first bucket, a few at a time."""
    bucket, rows = (yield from calls.every_bucket())[0], list[Row]()
    after: Cursor | None = None
    while True:
        ask = bucket.page(State.DELAYED, limit=9, after=after, max_bytes=max_bytes, needles=needles)
        ((some, more),) = yield [ask]
        rows += some
        if not more:
            return rows
        assert after != (some[-1].score, some[-1].id), "a page goes on"
        after = some[-1].score, some[-1].id


@pytest.mark.parametrize("looked", [20, 100_000])
def test_a_search_finds_each_message_with_the_header_once_and_in_order(
    redis_url: str, namespace: str, monkeypatch: pytest.MonkeyPatch, looked: int
) -> None:
    monkeypatch.setattr(listing, "LOOKED", looked)
    messages = crowd(seed=looked, size=120)
    with Client(redis_url, namespace=namespace, buckets=4) as client:
        client.schedule_many(messages)
        ordered = sorted(messages, key=lambda m: (m.at, m.id or ""))
        for value in COLOURS:
            header = f"colour={value}"
            having = [m.id for m in ordered if str(dict(m.headers).get("colour")) == value]
            assert having and found(client, header) == having, header
            selected = client.select(Selection(header=header))
            assert sorted(one.id for page in selected for one in page) == sorted(having)
        assert found(client, "colour=green") == found(client, "absent") == []


@pytest.mark.parametrize("max_bytes", [1, 5000, 2**22])
def test_a_look_for_needles_goes_on_behind_what_it_looked_at_however_large_it_is(
    redis_url: str, namespace: str, max_bytes: int
) -> None:
    needles = Conditions(header="colour=crimson").needles
    with Client(redis_url, namespace=namespace, buckets=1) as client:
        client.schedule_many(crowd(seed=5, size=60))
        every = client.run(partial(looked_through, max_bytes, []))
        rows = client.run(partial(looked_through, max_bytes, needles))
    assert len(every) == 60
    fitting = [row for row in every if all(needle in row.record for needle in needles)]
    assert [row for row in rows if row in fitting] == fitting
    if max_bytes > 2**20:
        assert len(rows) < len(every) / 2, "others are not returned, but for the last of each look"
