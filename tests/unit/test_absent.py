"""Calls about messages that Redis does not have and the ledger does, step by step."""

from __future__ import annotations

from typing import Any

import pytest

from delaybridge.errors import LedgerUnavailable, StoreUnavailable
from delaybridge.ledger.comparing.healing import Presence, Standing
from delaybridge.message import Answer
from tests.rigs.scripted_redis import (
    BUCKET,
    BUCKETS,
    CANCELLED,
    COLD,
    HOT,
    KICKED,
    RESCHEDULED,
    UNKNOWN,
    ScriptedRedis,
)

NOT_HERE = [UNKNOWN, b""]


@pytest.fixture
def site() -> ScriptedRedis:
    """A live message x in bucket 1, which Redis has lost."""
    site = ScriptedRedis()
    site.run(site.schedule("x"))
    site.replies["cancel"] = [NOT_HERE, _cancelled]
    site.replies["reschedule"] = [UNKNOWN, RESCHEDULED]
    site.replies["kick"] = [UNKNOWN, KICKED]
    site.asked.clear()
    return site


def _cancelled(command: Any) -> list[Any]:
    """By the row."""
    return [CANCELLED, command.args[8]]


def cancels(site: ScriptedRedis) -> list[Any]:
    """The rows that were named when Redis was asked to cancel."""
    return [each.args[8] for each in site.sent("cancel")]


# cancelled


def test_what_redis_lacks_is_cancelled_by_its_row(site: ScriptedRedis) -> None:
    assert site.run(BUCKET.cancel(b"call", "x")) == [Answer.CANCELLED]
    assert cancels(site) == ["?", b"\0\0\0\1"]
    first, second = site.sent("cancel")
    assert first.args[1] != second.args[1], "Redis would give the first answer again"
    assert site.rows() == [("x", "cancelled", 0)]


@pytest.mark.parametrize("bucket", [0, 1, 2])
def test_only_the_row_of_that_bucket_is_meant(site: ScriptedRedis, bucket: int) -> None:
    site.run(site.schedule("x", bucket=BUCKETS[2]))
    answer = Answer.CANCELLED if bucket else Answer.UNKNOWN
    assert site.run(BUCKETS[bucket].cancel(b"call", "x")) == [answer]
    states = [state for _, state, _ in site.rows()]
    assert states == ["cancelled" if bucket == own else "delayed" for own in (1, 2)]


def test_each_bucket_that_knows_no_message_is_looked_up_by_itself(site: ScriptedRedis) -> None:
    """An id may be in several, under several keys."""
    site.replies["cancel"] = [NOT_HERE, [CANCELLED, b"\0\0\0\7"], _cancelled]
    calls = [BUCKETS[number].cancel(b"call", "x") for number in (1, 2)]
    assert site.run(*calls) == [Answer.CANCELLED] * 2
    assert site.rows() == [("x", "cancelled", 0)]


def test_a_call_that_one_bucket_knows_a_message_for_takes_one_transaction(
    site: ScriptedRedis,
) -> None:
    before = site.works
    site.replies["cancel"] = [[CANCELLED, b"\0\0\0\1"], NOT_HERE]
    calls = [BUCKETS[number].cancel(b"call", "x") for number in (1, 2)]
    assert site.run(*calls) == [Answer.CANCELLED, Answer.UNKNOWN]
    assert site.works == before + 1


def test_the_same_call_twice_in_a_pipeline_has_one_answer(site: ScriptedRedis) -> None:
    site.replies["cancel"] = [NOT_HERE, NOT_HERE, _cancelled]
    assert site.run(*[BUCKET.cancel(b"call", "x")] * 2) == [Answer.CANCELLED] * 2
    assert len(cancels(site)) == 3


def test_calls_of_different_callers_are_withdrawn_each_for_itself(site: ScriptedRedis) -> None:
    site.run(site.schedule("y"))
    site.replies["cancel"] = [[CANCELLED, b"\0\0\0\2"], NOT_HERE, _cancelled]
    calls = [BUCKET.cancel(b"1111", "y"), BUCKET.cancel(b"2222", "x")]
    assert site.run(*calls) == [Answer.CANCELLED] * 2
    assert [state for _, state, _ in site.rows()] == ["cancelled"] * 2


def test_a_consumer_ends_nothing_that_redis_lacks(site: ScriptedRedis) -> None:
    command = BUCKET.cancel(b"call", "x")
    args = [*command.args]
    args[7] = "receipt"
    finish = type(command)(command.name, command.keys, args, command.parse)
    assert site.run(finish) == [Answer.UNKNOWN]
    assert site.rows() == [("x", "delayed", 1)]


@pytest.mark.parametrize("how", [{"source": "s", "offset": 7}, {"reach": "[]"}])
def test_calls_of_a_source_or_with_a_reach_are_left_to_redis(
    site: ScriptedRedis, how: dict[str, Any]
) -> None:
    assert site.run(BUCKET.cancel(b"call", "x", **how)) == [Answer.UNKNOWN]
    assert site.rows() == [("x", "delayed", 1)]


@pytest.mark.parametrize("verb", ["cancel", "reschedule"])
def test_a_cold_message_goes_into_redis_before_such_a_call(site: ScriptedRedis, verb: str) -> None:
    site.run(site.schedule("y", COLD))
    when = {"cancel": (), "reschedule": ("+5",)}[verb]
    site.run(getattr(BUCKET, verb)(b"call", "y", *when, reach="[]"))
    names = [each.name for each in site.asked]
    assert names.index("restore") < names.index(verb)


@pytest.mark.parametrize("verb", ["cancel", "reschedule"])
@pytest.mark.parametrize(
    ("healed", "brought"), [("", 1), ("?run:1", 1), ("old:1", 1), ("run:1", 0)]
)
def test_what_redis_may_have_lost_goes_into_it_before_such_a_call(
    site: ScriptedRedis, verb: str, healed: str, brought: int
) -> None:
    site.replies["HMGET"] = [Standing("", healed)]
    when = {"cancel": (), "reschedule": ("+5",)}[verb]
    site.run(getattr(BUCKET, verb)(b"call", "x", *when, source="s", offset=7))
    names = [each.name for each in site.asked]
    assert names.count("restore") == brought
    assert not brought or names.index("restore") < names.index(verb)


@pytest.mark.parametrize("verb", ["cancel", "reschedule"])
def test_without_the_ledger_such_a_call_is_not_made(site: ScriptedRedis, verb: str) -> None:
    site.fails_at = site.works + 1
    when = {"cancel": (), "reschedule": ("+5",)}[verb]
    (answer,) = site.run(getattr(BUCKET, verb)(b"call", "x", *when, reach="[]"))
    assert isinstance(answer, LedgerUnavailable)
    assert not site.sent(verb)


def test_while_the_ledger_is_silent_nothing_is_unknown(site: ScriptedRedis) -> None:
    site.fails_at = site.works + 1
    verbs = (
        BUCKET.cancel(b"1111", "x"),
        BUCKET.reschedule(b"2222", "x", "+5"),
        BUCKET.kick(b"3333", "x"),
    )
    for command in verbs:
        (answer,) = site.run(command)
        assert isinstance(answer, LedgerUnavailable), command.name


def test_of_several_calls_none_is_cancelled_after_an_error(site: ScriptedRedis) -> None:
    """Else the answer of the last one hides that an earlier one is to be delivered."""
    site.run(site.schedule("x"))
    site.replies["cancel"] = [NOT_HERE, StoreUnavailable("redis: away"), _cancelled]
    (answer,) = site.run(BUCKET.cancel(b"call", "x"))
    assert isinstance(answer, StoreUnavailable)
    assert [state for _, state, _ in site.rows()] == ["delayed", "delayed"]


def test_of_several_calls_each_is_cancelled_and_one_answer_counts(site: ScriptedRedis) -> None:
    site.run(site.schedule("x"))
    site.replies["cancel"] = [NOT_HERE, _cancelled, NOT_HERE]
    assert site.run(BUCKET.cancel(b"call", "x")) == [Answer.CANCELLED]
    assert cancels(site) == ["?", b"\0\0\0\1", b"\0\0\0\2"]
    site.replies["cancel"] = [NOT_HERE, NOT_HERE, _cancelled]
    site.ask("UPDATE message SET state = 'delayed', tier = 1")
    assert site.run(BUCKET.cancel(b"call", "x")) == [Answer.CANCELLED]
    assert [state for _, state, _ in site.rows()] == ["delayed", "cancelled"]


def test_of_cold_ones_only_the_accepted_one_is_cancelled(site: ScriptedRedis) -> None:
    site.ask("UPDATE message SET tier = 2")
    site.run(site.schedule("x", COLD))
    site.ask("UPDATE message SET tier = 2")
    site.replies["cancel"] = [NOT_HERE, _cancelled]
    assert site.run(BUCKET.cancel(b"call", "x")) == [Answer.CANCELLED]
    assert cancels(site) == ["?", b"\0\0\0\1"]
    assert [state for _, state, _ in site.rows()] == ["cancelled", "delayed"]


def test_a_message_that_leaves_before_the_commit_was_not_cancelled(site: ScriptedRedis) -> None:
    def leaves(command: Any) -> tuple[int, bytes]:
        site.ask("UPDATE message SET state = 'published', tier = 0")
        return _cancelled(command)

    site.replies["cancel"] = [NOT_HERE, leaves]
    assert site.run(BUCKET.cancel(b"call", "x")) == [Answer.UNKNOWN]
    assert site.rows() == [("x", "published", 0)]


# moved


@pytest.mark.parametrize("tier", [1, 2])
def test_what_redis_lacks_is_brought_and_then_rescheduled(site: ScriptedRedis, tier: int) -> None:
    site.ask(f"UPDATE message SET tier = {tier}")
    assert site.run(BUCKET.reschedule(b"call", "x", "+5")) == [Answer.RESCHEDULED]
    names = [each.name for each in site.asked if each.name in ("restore", "reschedule")]
    assert names == ["reschedule", "restore", "reschedule"]


@pytest.mark.parametrize(
    ("state", "answer"),
    [
        ("dead", Answer.KICKED),
        ("expired", Answer.KICKED),
        ("delayed", Answer.UNKNOWN),
        ("in_flight", Answer.UNKNOWN),
    ],
)
def test_only_a_dead_one_is_kicked(site: ScriptedRedis, state: str, answer: Answer) -> None:
    site.ask("UPDATE message SET state = :state", state=state)
    assert site.run(BUCKET.kick(b"call", "x")) == [answer]
    assert bool(site.sent("restore")) == (answer is Answer.KICKED)


@pytest.mark.parametrize("tier", [1, 2])
def test_many_are_brought_in_as_many_transactions_as_one(site: ScriptedRedis, tier: int) -> None:
    works = []
    for ids in (["x"], ["a", "b", "c", "d"]):
        for id in set(ids) - {"x"}:
            site.run(site.schedule(id))
        site.ask("UPDATE message SET tier = :tier", tier=tier)
        site.replies["reschedule"] = [*[UNKNOWN] * len(ids), RESCHEDULED]
        before = site.works
        found = site.run(*(BUCKET.reschedule(b"call", id, "+5") for id in ids))
        assert found == [Answer.RESCHEDULED] * len(ids)
        works.append(site.works - before)
    assert works[0] == works[1]


def test_a_bucket_that_cannot_be_restored_concerns_its_own_alone(site: ScriptedRedis) -> None:
    site.run(site.schedule("y", bucket=BUCKETS[2]))
    broken = StoreUnavailable("redis: away")
    site.replies["restore"] = [lambda call: broken if "ns:1}" in call.keys[0] else [0]]
    site.replies["reschedule"] = [UNKNOWN, UNKNOWN, RESCHEDULED]
    calls = [BUCKETS[number].reschedule(b"call", id, "+5") for number, id in ((1, "x"), (2, "y"))]
    assert site.run(*calls) == [broken, Answer.RESCHEDULED]


def test_what_has_left_is_unknown(site: ScriptedRedis) -> None:
    site.replies["restore"] = [[Presence.LEFT]]
    site.replies["reschedule"] = [UNKNOWN]
    assert site.run(BUCKET.reschedule(b"call", "x", "+5")) == [Answer.UNKNOWN]
    assert len(site.sent("restore")) == 1


def test_what_vanishes_each_time_that_it_is_brought_is_not_unknown(site: ScriptedRedis) -> None:
    site.replies["reschedule"] = [UNKNOWN]
    (answer,) = site.run(BUCKET.reschedule(b"call", "x", "+5"))
    assert isinstance(answer, LedgerUnavailable)
    assert len(site.sent("restore")) == 3


def test_what_cannot_be_brought_is_not_unknown(site: ScriptedRedis) -> None:
    site.replies["restore"] = [StoreUnavailable("redis: away")]
    (answer,) = site.run(BUCKET.reschedule(b"call", "x", "+5"))
    assert isinstance(answer, StoreUnavailable)
    assert (
        site.rows() == [("x", "delayed", 1)] and site.ask("SELECT due_ms FROM message")[0][0] == HOT
    )
