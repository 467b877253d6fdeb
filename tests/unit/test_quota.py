"""The messages that a quota refuses, judged by a sample of each bucket; time is passed in."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import pytest

from delaybridge.errors import StoreFull
from delaybridge.message import Limits, Record, destination_text
from delaybridge.settings.urls import DEFAULT_KINDS
from delaybridge.store.quota import Quota
from delaybridge.store.replies import Sample
from delaybridge.store.verbs import Bucket

BUCKETS = [Bucket("ns", number, "birth") for number in range(2)]


def payload(destination: str) -> bytes:
    return msgspec.msgpack.encode(Record(destination, b"x" * 100))


def sample(messages: int, *destinations: str, size: int = 200) -> Sample:
    return Sample(messages, [(payload(text)[:1100], size, None) for text in destinations])


class Clock:
    now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def look(quota: Quota, *samples: Any) -> bool | None:
    """Whether there are limits; None if it asks the store although no answer was given."""
    steps = quota.look(BUCKETS)
    try:
        asked: Sequence[Any] = next(steps)
        assert [command.name for command in asked] == ["sample", "sample"]
        if not samples:
            return None
        steps.send(list(samples))
    except StopIteration as done:
        return bool(done.value)
    raise AssertionError("asked twice")


def refused(quota: Quota, destination: str) -> str | None:
    error = quota.refusal(payload(destination))
    assert error is None or isinstance(error, StoreFull)
    return None if error is None else str(error)


def test_without_a_limit_redis_is_not_asked() -> None:
    assert look(Quota(Limits(), DEFAULT_KINDS)) is False


@pytest.mark.parametrize(
    ("limit", "name"), [({"pending_messages": 30}, "messages"), ({"pending_bytes": 6000}, "bytes")]
)
def test_a_full_namespace_refuses_messages_and_names_the_limit(
    limit: dict[str, int], name: str
) -> None:
    quota = Quota(Limits(**limit), DEFAULT_KINDS, Clock())
    assert look(quota, sample(20, "kafka:a"), sample(10, "kafka:b")) is True
    assert str(refused(quota, "kafka:c")).startswith(f"limits.pending_{name}: ")


@pytest.mark.parametrize("limit", [{"destination_messages": 10}, {"destination_bytes": 2000}])
def test_a_full_destination_refuses_messages_and_others_do_not(limit: dict[str, int]) -> None:
    quota = Quota(Limits(**limit), DEFAULT_KINDS, Clock())
    some = sample(12, "rabbitmq:x/a", "rabbitmq:x/b", "kafka:b")
    assert look(quota, some, sample(3, "rabbitmq:x/c")) is True
    assert str(refused(quota, "rabbitmq:x/another")).startswith("rabbitmq:x: limits.destination_")
    assert refused(quota, "kafka:b") is None
    assert refused(quota, "kafka:unknown") is None


def test_it_looks_once_a_second_and_accepts_again_when_there_is_room() -> None:
    clock = Clock()
    quota = Quota(Limits(pending_messages=10), DEFAULT_KINDS, clock)
    assert look(quota, sample(10, "kafka:a"), Sample(0, [])) is True
    clock.now_s += 0.9
    assert look(quota) is True, "as before, without asking"
    clock.now_s += 0.2
    assert look(quota, sample(9, "kafka:a"), Sample(0, [])) is True
    assert refused(quota, "kafka:a") is None


def test_messages_scheduled_between_two_looks_count_and_a_refusal_makes_it_look_again() -> None:
    quota = Quota(Limits(pending_messages=5, destination_bytes=1000), DEFAULT_KINDS, Clock())
    assert look(quota, sample(2, "kafka:a"), Sample(0, [])) is True
    large = msgspec.msgpack.encode(Record("kafka:b", b"x" * 1000))
    quota.count(large)
    assert "limits.destination_bytes" in str(quota.refusal(large))
    assert look(quota, sample(2, "kafka:a"), sample(1, "kafka:b")) is True, "it asks at once"
    for _ in range(2):
        assert refused(quota, "kafka:a") is None
        quota.count(payload("kafka:a"))
    assert str(refused(quota, "kafka:c")).startswith("limits.pending_messages: 5 are pending")
    assert look(quota, sample(5, "kafka:a"), Sample(0, [])) is True
    assert refused(quota, "kafka:a")
    assert look(quota) is True, "full as it was: it does not ask with every call"


def test_a_bucket_that_cannot_be_read_counts_as_empty() -> None:
    from delaybridge.errors import StoreError

    quota = Quota(Limits(pending_messages=10), DEFAULT_KINDS, Clock())
    assert look(quota, StoreError("WRONGTYPE"), sample(9, "kafka:a")) is True
    assert refused(quota, "kafka:a") is None


@pytest.mark.parametrize("text", ["kafka:a", "rabbitmq:" + "x" * 200 + "/k", "kafka:" + "é" * 200])
def test_the_destination_is_read_from_the_beginning_of_a_record(text: str) -> None:
    assert destination_text(payload(text)) == text
    assert destination_text(payload(text)[:1100]) == text


@pytest.mark.parametrize(
    "damaged", [b"", b"\x00", b"\x98", b"\x98\xd9", b"\xdc\x00", b"\xff\xff\xff"]
)
def test_a_record_that_cannot_be_read_has_no_destination(damaged: bytes) -> None:
    assert destination_text(damaged) == ""
