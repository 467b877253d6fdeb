"""Rules of destinations: read leniently, changed strictly, and two changes at once both win."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from delaybridge.backoff import RetryPlan
from delaybridge.errors import MessageError, StoreError
from delaybridge.store.namespace import rules
from delaybridge.store.namespace.rules import Rule, Rules
from delaybridge.store.protocol.verbs import Steps

KINDS = {"rabbitmq": "rabbitmq", "kafka": "kafka"}
PLACE = "rabbitmq:orders"


def understood(value: object, known: Rules = rules.NO_RULES) -> Rules:
    raw = value if isinstance(value, bytes) else json.dumps(value).encode()
    return rules.understood({PLACE.encode(): raw}, known)


class Hash:
    """The hash in Redis, for `rules.change`. between: runs before each change arrives there."""

    def __init__(self, **stored: Any) -> None:
        self.stored: dict[str, bytes] = {p: json.dumps(v).encode() for p, v in stored.items()}
        self.between: Iterator[Mapping[str, Any]] = iter(())

    def run(self, steps: Steps[Any]) -> Any:
        try:
            (asked,) = next(steps)
            while True:
                (asked,) = steps.send([self._answer(asked.name, asked.args)])
        except StopIteration as done:
            return done.value

    def _answer(self, name: str, args: Any) -> Any:
        if name == "HGET":
            return self.stored.get(args[1])
        for other in self.between:
            self.run(rules.change("ns", args[0], other))
            break
        place, before, after = args[:3]
        if self.stored.get(place, b"") != before:
            return 0
        self.stored[place] = after
        return 1


def test_a_rule_is_read_as_it_is_written() -> None:
    rule = {
        "paused": True, "rate": 500, "spread_ms": 600_000, "dead_letter": "rabbitmq:/dead",
        "retry": {"max_attempts": 3, "base_ms": 10, "factor": 1.5, "max_ms": 50, "jitter": 0},
    }  # fmt: skip
    found = understood(rule)
    plan = RetryPlan(max_attempts=3, base_ms=10, factor=1.5, max_ms=50, jitter=0.0)
    assert found.by_place == {PLACE: Rule(True, 500.0, 600_000, plan, "rabbitmq:/dead")}
    assert not found.odd


@pytest.mark.parametrize(
    ("field", "value"),
    [
        *(("paused", v) for v in ("yes", 2, [], {})),
        *(("rate", v) for v in (0, -1, "5", 1e7, True)),
        *(("spread_ms", v) for v in (-1, 1.5, 10**12, "10m")),
        *(("retry", v) for v in (5, [], "x")),
        ("dead_letter", 5),
    ],
)
def test_a_field_that_makes_no_sense_is_ignored_and_named(field: str, value: object) -> None:
    found = understood({field: value, "rate" if field != "rate" else "spread_ms": 7})
    assert found.by_place == {PLACE: Rule(spread_ms=7) if field == "rate" else Rule(rate=7.0)}
    assert found.odd[PLACE].startswith(f"{field}: ")


def test_the_other_fields_of_a_retry_plan_stay() -> None:
    found = understood({"retry": {"max_attempts": 0, "base_ms": 5, "unheard": 1}})
    assert found.by_place[PLACE].retry == RetryPlan(base_ms=5)
    assert found.odd[PLACE].startswith("retry.max_attempts: ")


@pytest.mark.parametrize("raw", [b"", b"{", b"[]", b"\xff", b"null", b"[" * 3000, b" " * 5000])
def test_nothing_paused_goes_on_because_its_rule_cannot_be_read(raw: bytes) -> None:
    paused = understood({"paused": True, "rate": 5})
    found = understood(raw, paused)
    assert found.by_place == paused.by_place and found.odd
    assert understood({"paused": "no", "spread_ms": 1}, paused).by_place[PLACE].paused
    assert not understood(raw).by_place


@given(st.dictionaries(st.binary(max_size=20), st.binary(max_size=60), max_size=5))
def test_any_bytes_are_read(stored: Mapping[bytes, bytes]) -> None:
    found = rules.understood(stored)
    assert len(found.by_place) <= len(stored)
    rules.damage("ns", stored)


def test_too_many_rules_are_cut_and_named() -> None:
    stored = {b"kafka:%d" % n: b'{"paused":true}' for n in range(rules.RULES_LIMIT + 5)}
    found = rules.understood(stored)
    assert len(found.by_place) == rules.RULES_LIMIT
    assert str(rules.RULES_LIMIT + 5) in found.odd["*"]


def test_damage_names_the_key_and_what_to_do() -> None:
    stored = {b"kafka:%d" % n: b"x" for n in range(9)}
    assert [d.what for d in rules.damage("ns", stored)][-1].startswith("has 6 more")
    (one,) = rules.damage("ns", StoreError("WRONGTYPE"))
    assert "{ns}:destinations" in one.remedy and "hash" in one.what
    assert not rules.damage("ns", {b"kafka:t": b'{"paused":true}'})


def test_levels_go_from_the_broker_to_the_destination() -> None:
    some = Rules({place: Rule(rate=1.0) for place in ("kafka", "kafka:t", PLACE, PLACE + "/a")})
    assert [p for p, _ in some.levels("kafka", "kafka:t", "kafka:t")] == ["kafka", "kafka:t"]
    found = [p for p, _ in some.levels("rabbitmq", PLACE, PLACE + "/a")]
    assert found == [PLACE, PLACE + "/a"]
    assert not some.levels("redis", "redis:x", "redis:x")


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("rabbitmq", "rabbitmq"), (PLACE, PLACE), (PLACE + "/", PLACE + "/"),
        (PLACE + "/a.b", PLACE + "/a.b"), ("rabbitmq:/queue", "rabbitmq:/queue"),
        (PLACE + "/*", PLACE), ("rabbitmq:%6Frders/*", PLACE), ("pull:t", "pull:t"),
        ("rabbitmq:a%2Fb", "rabbitmq:a%2Fb"), ("kafka:t", "kafka:t"), ("unheard:x", "unheard:x"),
        ("unheard:x/*", "unheard:x"), ("unheard:/*", "unheard:/*"),
        ("rabbitmq:%2A", "rabbitmq:%2A"),
    ],
)  # fmt: skip
def test_a_place_has_one_spelling(text: str, place: str) -> None:
    assert rules.place_of(text, KINDS) == place


@pytest.mark.parametrize("text", ["", ":", "kafka:", ":x", "kafka:a b", "x" * 2000, "rabbitmq:é\0"])
def test_a_place_that_cannot_be_one_is_refused(text: str) -> None:
    with pytest.raises(MessageError, match="destination"):
        rules.place_of(text, KINDS)


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("rabbitmq/orders", "rabbitmq:orders"), ("rabbitmq:", "rabbitmq"),
        ("kafka:orders/x", "kafka:orders"), ("kafka:t/*", "kafka:t"), ("kafka/t:x", "kafka:t"),
        ("rabbitmq:*", "rabbitmq"), ("rabbitmq:orders*", "rabbitmq"), ("rabbitmq:*/*", "rabbitmq"),
    ],
)  # fmt: skip
def test_a_refused_place_says_what_may_be_meant(text: str, meant: str) -> None:
    with pytest.raises(MessageError) as refused:
        rules.place_of(text, KINDS)
    assert refused.value.detail.endswith(f"did you mean {meant!r}?")
    assert rules.place_of(meant, KINDS) == meant


def test_a_change_keeps_all_other_fields_also_unknown_ones() -> None:
    redis = Hash(**{PLACE: {"rate": 5, "unheard": [1], "retry": {"base_ms": 5, "max_ms": 9}}})
    rule = redis.run(rules.change("ns", PLACE, {"paused": True, "retry": {"base_ms": None}}))
    assert rule == Rule(paused=True, rate=5.0, retry=RetryPlan(max_ms=9))
    assert json.loads(redis.stored[PLACE])["unheard"] == [1]


def test_two_changes_at_once_both_win() -> None:
    redis = Hash()
    redis.between = iter([{"rate": 5.0}, {"spread_ms": 7}])
    rule = redis.run(rules.change("ns", PLACE, {"paused": True}))
    assert rule == Rule(paused=True, rate=5.0, spread_ms=7)


def test_a_rule_without_fields_is_removed() -> None:
    redis = Hash(**{PLACE: {"paused": True}})
    assert redis.run(rules.change("ns", PLACE, {"paused": False})) == Rule()
    assert redis.stored[PLACE] == b""


def test_an_odd_field_that_stays_does_not_hinder_a_change() -> None:
    redis = Hash(**{PLACE: {"retry": {"base_ms": "5"}}})
    rule = redis.run(rules.change("ns", PLACE, {"retry": {"max_ms": 9}}))
    assert rule.retry == RetryPlan(max_ms=9)
    assert json.loads(redis.stored[PLACE]) == {"retry": {"base_ms": "5", "max_ms": 9}}


def test_a_damaged_rule_is_replaced_by_a_change() -> None:
    redis = Hash()
    redis.stored[PLACE] = b"nonsense"
    assert redis.run(rules.change("ns", PLACE, {"paused": True})) == Rule(paused=True)


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"rate": 0}, "rate"), ({"rate": float("nan")}, "rate"), ({"spread_ms": -1}, "spread_ms"),
        ({"paused": "yes"}, "paused"), ({"unheard": 1}, "unheard"), ({"retry": 5}, "retry"),
        ({"retry": {"max_attempts": 0}}, "retry.max_attempts"), ({"rate": {}}, "rate"),
        ({"retry": {"unheard": 1}}, "retry.unheard"), ({"dead_letter": 5}, "dead_letter"),
        ({"retry": {"base_ms": 9, "max_ms": 5}}, "retry.base_ms"),
    ],
)  # fmt: skip
def test_a_wrong_value_is_refused_and_the_field_named(change: dict[str, Any], field: str) -> None:
    redis = Hash()
    with pytest.raises(MessageError) as caught:
        redis.run(rules.change("ns", PLACE, change))
    assert caught.value.field == field and not redis.stored
