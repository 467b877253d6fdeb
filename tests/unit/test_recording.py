"""Commands recorded in a ledger: what is written, sent and answered, step by step."""

from __future__ import annotations

from typing import Any

import pytest

from delaybridge.errors import (
    ConfigError,
    LedgerUnavailable,
    StoreDamaged,
    StoreDenied,
    StoreFull,
    StoreUnavailable,
)
from delaybridge.ledger.comparing.healing import Standing
from delaybridge.message import Answer, OnConflict
from delaybridge.settings.durability import Durability, Keeping
from delaybridge.store.namespace import registry
from delaybridge.store.protocol import keys
from delaybridge.store.protocol.layout import Epoch, Layout
from delaybridge.store.protocol.recorder import IN_DOUBT, open_recorder
from delaybridge.store.protocol.verbs import plain
from tests.rigs.scripted_redis import (
    BUCKET,
    BUCKETS,
    CANCELLED,
    COLD,
    DUPLICATE,
    HOT,
    IN_FLIGHT,
    NOW_MS,
    RESCHEDULED,
    UNKNOWN,
    ScriptedRedis,
)

CREATED = [(Answer.CREATED, HOT)]
BEGUN = Standing("", "?run:1")


@pytest.fixture
def site() -> ScriptedRedis:
    return ScriptedRedis()


def test_a_call_to_a_server_without_a_clock_is_not_written(site: ScriptedRedis) -> None:
    site.replies["TIME"] = [
        lambda at: StoreUnavailable("redis: away") if "ns:1}" in at.near else NOW_MS * 1000
    ]
    calls = [site.schedule("x", bucket=BUCKETS[1]), site.schedule("y", bucket=BUCKETS[2])]
    away, created = site.run(*calls, node_of=lambda key: key[:6])
    assert isinstance(away, StoreUnavailable) and created == CREATED
    assert site.rows() == [("y", "delayed", 1)]
    assert [each.args[10] for each in site.sent("schedule")] == ["y"]


def test_the_first_error_of_a_pipeline_is_its_outcome(site: ScriptedRedis) -> None:
    site.replies["schedule"] = [[1, HOT, 1], StoreFull("redis: first"), StoreDenied("redis: then")]
    found = site.recorded([site.schedule(id) for id in "xyz"])
    assert found.answers[0] == CREATED
    with pytest.raises(StoreFull, match="first"):
        found.result()


def test_the_hot_window_is_given_in_seconds() -> None:
    kept = Durability(Keeping.LEDGER), "sqlite:////tmp/none.db", "ns", 5.0
    made = open_recorder(*kept, 12.5)
    assert made is not None and made.hot_window_ms == 12_500
    with pytest.raises(ConfigError, match="hot_window_s"):
        open_recorder(*kept, 9.9)


def test_all_rows_of_a_pipeline_are_written_by_the_clocks_of_its_servers(
    site: ScriptedRedis,
) -> None:
    later = NOW_MS + 7
    site.replies["TIME"] = [lambda at: (later if "ns:2}" in at.near else NOW_MS) * 1000]
    calls = [site.schedule(id, bucket=BUCKETS[n]) for id, n in (("x", 1), ("y", 2), ("z", 1))]
    assert site.run(*calls, node_of=lambda key: key[:6]) == [CREATED] * 3
    found = site.ask("SELECT id, created_ms FROM message ORDER BY id")
    assert [tuple(each) for each in found] == [("x", NOW_MS), ("y", later), ("z", NOW_MS)]


def test_what_the_ledger_does_not_take_is_neither_sent_nor_in_doubt(site: ScriptedRedis) -> None:
    site.fails_at = 1
    (answer,) = site.run(site.schedule("x"))
    assert isinstance(answer, LedgerUnavailable) and IN_DOUBT not in str(answer)
    assert not site.sent("schedule")


def test_an_error_of_the_ledger_after_the_row_is_there_leaves_it_in_doubt(
    site: ScriptedRedis,
) -> None:
    site.fails_at = 2
    (answer,) = site.run(site.schedule("x"))
    assert isinstance(answer, LedgerUnavailable) and str(answer).endswith(IN_DOUBT)
    assert site.rows() == [("x", "delayed", 1)]
    assert not site.sent("schedule")


REPLIES: list[tuple[Any, int]] = [
    (StoreUnavailable("redis: away"), 1),
    (StoreDamaged("redis: damaged"), 1),
    (StoreFull("redis: full"), 0),  # these have written nothing
    (StoreDenied("redis: denied"), 0),
    ([DUPLICATE, HOT, 1], 0),
    ([IN_FLIGHT, HOT, 1], 0),
    ([-1], 0),  # another birth id
    ([1, HOT, 1], 1),
]


@pytest.mark.parametrize(("reply", "rows"), REPLIES)
def test_a_row_is_withdrawn_only_if_its_message_was_surely_not_stored(
    site: ScriptedRedis, reply: Any, rows: int
) -> None:
    site.replies["schedule"] = [reply]
    (answer,) = site.run(site.schedule("x"))
    assert len(site.rows()) == rows
    if isinstance(reply, Exception):
        assert str(answer).endswith(IN_DOUBT) == bool(rows)


def test_a_row_of_an_earlier_try_is_not_withdrawn(site: ScriptedRedis) -> None:
    call = site.schedule("x")
    site.run(call)
    site.replies["schedule"] = [[DUPLICATE, HOT, 1]]
    site.run(call)
    assert site.rows() == [("x", "delayed", 1)]


@pytest.mark.parametrize("due_ms", [HOT + 9000, HOT + 9001])
def test_messages_due_after_the_hot_window_are_in_the_ledger_alone(
    site: ScriptedRedis, due_ms: int
) -> None:
    is_cold = due_ms > HOT + 9000
    (answer,) = site.run(site.schedule("x", due_ms))
    assert answer == ([(Answer.CREATED, due_ms)] if is_cold else CREATED)
    assert (len(site.sent("schedule")), site.rows()[0][2]) == ((0, 2) if is_cold else (1, 1))


# a comparison of the bucket that begins meanwhile


def test_a_cancel_is_made_again_if_a_comparison_began_before_its_commit(
    site: ScriptedRedis,
) -> None:
    site.run(site.schedule("x"))
    site.replies["HMGET"] = [Standing(), BEGUN]
    stamp = b"\0\0\0\1"
    site.replies["cancel"] = [[CANCELLED, stamp], [CANCELLED, b""]]
    assert site.run(BUCKET.cancel(b"call", "x")) == [Answer.CANCELLED]
    assert [each.args[1] for each in site.sent("cancel")] == [b"call"] * 2
    assert site.rows() == [("x", "cancelled", 0)]


def test_a_move_that_a_comparison_undoes_is_made_again(site: ScriptedRedis) -> None:
    """It began before the call, dropped the message as one of an older past, and brought it back
    by its row, which had the old time yet."""
    site.run(site.schedule("x"))
    site.replies["HMGET"] = [Standing("", "?run:1")]
    moved = [RESCHEDULED, b"\0\0\0\1", HOT - 500]
    site.replies["reschedule"] = [moved, moved]
    site.replies["ZSCORE"] = [HOT, HOT - 500]
    assert site.run(BUCKET.reschedule(b"call", "x", str(HOT - 500))) == [Answer.RESCHEDULED]
    assert len({each.args[1] for each in site.sent("reschedule")}) == 2, "a call of its own"
    assert site.ask("SELECT due_ms FROM message") == [(HOT - 500,)]


def test_marks_that_cannot_be_read_may_be_those_of_another_comparison(site: ScriptedRedis) -> None:
    site.replies["HMGET"] = [Standing(), StoreUnavailable("redis: away"), Standing()]
    site.replies["cancel"] = [[CANCELLED, b"\0\0\0\1"]]
    assert site.run(BUCKET.cancel(b"call", "x")) == [Answer.CANCELLED]
    assert len(site.sent("cancel")) == 2


def test_a_call_that_is_overtaken_each_time_is_in_doubt(site: ScriptedRedis) -> None:
    site.replies["HMGET"] = [Standing("", f"?run:{n}") for n in range(9)]
    site.replies["cancel"] = [[CANCELLED, b"\0\0\0\1"]]
    (answer,) = site.run(BUCKET.cancel(b"call", "x"))
    assert isinstance(answer, LedgerUnavailable) and IN_DOUBT in str(answer)
    assert len(site.sent("cancel")) == 3


def test_a_call_that_is_answered_otherwise_the_second_time_is_in_doubt(site: ScriptedRedis) -> None:
    site.replies["HMGET"] = [Standing(), BEGUN]
    site.replies["reschedule"] = [RESCHEDULED, UNKNOWN]
    (answer,) = site.run(BUCKET.reschedule(b"call", "x", "+5"))
    assert isinstance(answer, LedgerUnavailable)
    first, second = site.sent("reschedule")
    assert first.args[1] != second.args[1], "a call that Redis knows would do nothing"


# the namespace


FIRST, SECOND = "1" * 16, "2" * 16  # birth ids


def made(buckets: int, birth: str) -> Any:
    return registry.born("ns", Layout((Epoch(0, buckets),)), birth)[0]


def test_a_namespace_is_made_again_as_the_ledger_knows_it(site: ScriptedRedis) -> None:
    site.replies["SET"] = [True]
    site.run(made(8, FIRST))
    site.run(made(16, SECOND))
    assert [each.args[1] for each in site.sent("SET")] == [f"8:{FIRST}"] * 2


def test_without_the_ledger_no_namespace_is_made(site: ScriptedRedis) -> None:
    site.fails_at = 1
    (answer,) = site.run(made(8, FIRST))
    assert isinstance(answer, LedgerUnavailable)
    assert not site.asked


def test_only_what_makes_this_namespace_concerns_the_ledger(site: ScriptedRedis) -> None:
    concerns = site.recorder.concerns
    assert concerns([made(8, FIRST)])
    assert not concerns(registry.born("other", Layout((Epoch(0, 8),)), FIRST))
    assert not concerns([plain("SET", keys.birth("ns"), f"8:{FIRST}")])
    assert not concerns([plain("GET", keys.birth("ns"))])
    assert concerns([registry.set_rule("ns", "kafka:t", b"", b"{}", limit=9)])


# what is cold


def test_a_cold_call_for_a_live_message_is_sent(site: ScriptedRedis) -> None:
    site.run(site.schedule("x"))
    site.replies["schedule"] = [[DUPLICATE, HOT, 1]]
    assert site.run(site.schedule("x", COLD)) == [[(Answer.DUPLICATE, HOT)]]
    assert site.rows() == [("x", "delayed", 1)]
    assert not site.sent("restore"), "Redis decides, by the call"


def test_a_cold_message_goes_before_a_hot_call_for_its_id(site: ScriptedRedis) -> None:
    site.run(site.schedule("x", COLD))
    site.run(site.schedule("x"))
    names = [each.name for each in site.asked]
    assert names.index("restore") < names.index("schedule")
    assert [tier for *_, tier in site.rows()] == [1, 1]


def test_a_row_that_is_cold_no_more_says_so_before_it_is_sent(site: ScriptedRedis) -> None:
    site.run(site.schedule("x"))
    site.replies["schedule"] = [StoreUnavailable("redis: away")]
    site.run(site.schedule("x", COLD))
    assert [tier for *_, tier in site.rows()] == [1, 1]


def test_messages_of_several_buckets_are_promoted(site: ScriptedRedis) -> None:
    for bucket in BUCKETS:
        site.run(site.schedule("x", COLD, bucket=bucket))
    site.run(*[site.schedule("x", bucket=bucket) for bucket in BUCKETS])
    assert sorted(each.args[4] for each in site.sent("restore")) == [0, 1, 2]


@pytest.mark.parametrize("broken", ["HMGET", "GET", "restore"])
def test_a_call_whose_cold_message_cannot_be_promoted_is_in_doubt(
    site: ScriptedRedis, broken: str
) -> None:
    site.run(site.schedule("x", COLD))
    site.replies[broken] = [StoreUnavailable("redis: away")]
    if broken == "HMGET":
        site.replies[broken].insert(0, Standing())
    (answer,) = site.run(site.schedule("x"))
    assert isinstance(answer, StoreUnavailable) and str(answer).endswith(IN_DOUBT)
    assert not site.sent("schedule")


def test_a_namespace_that_is_gone_from_both_promotes_nothing(site: ScriptedRedis) -> None:
    site.run(site.schedule("x", COLD))
    site.replies["GET"] = [None]
    (answer,) = site.run(site.schedule("x"))
    assert isinstance(answer, LedgerUnavailable) and str(answer).endswith(IN_DOUBT)
    assert not site.sent("restore") and not site.sent("schedule")


@pytest.mark.parametrize(
    ("policy", "until_ms", "is_sent"),
    [
        (OnConflict.FAIL, NOW_MS + 1, True),
        (OnConflict.FAIL, NOW_MS, False),
        (OnConflict.REPLACE, NOW_MS + 1, False),
    ],
)
def test_redis_answers_a_cold_call_for_an_id_that_was_delivered_within_its_window(
    site: ScriptedRedis, policy: Any, until_ms: int, is_sent: bool
) -> None:
    site.replies["HGET"], site.replies["ZSCORE"] = [b"9"], [str(until_ms).encode()]
    site.run(site.schedule("x", COLD, policy))
    assert len(site.sent("schedule")) == is_sent


@pytest.mark.parametrize(
    ("healed", "is_known", "others", "brought"),
    [
        ("", 0, 1, True),
        ("?run:1", 0, 1, True),
        ("run:1", 0, 1, False),  # its comparison has brought it
        ("other:1", 0, 1, True),  # Redis has started again, perhaps with an older past
        ("", 1, 1, False),
        ("", 0, 0, False),
    ],
)
def test_what_is_to_be_replaced_goes_into_redis_if_that_has_lost_it(
    site: ScriptedRedis, healed: str, is_known: int, others: int, brought: bool
) -> None:
    for _ in range(others):
        site.run(site.schedule("x"))
    site.replies["HMGET"], site.replies["HEXISTS"] = [Standing("", healed)], [is_known]
    site.run(site.schedule("x", policy=OnConflict.REPLACE))
    assert bool(site.sent("restore")) == brought
    assert len(site.sent("HEXISTS")) == (1 if others and healed != "run:1" else 0)
