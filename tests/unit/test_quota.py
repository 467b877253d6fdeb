"""The messages that a quota refuses, judged by a sample of each bucket; time is passed in."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import pytest

from delaybridge.errors import StoreFull
from delaybridge.message import Limits, Record, destination_text, encode_record, planned
from delaybridge.settings.urls import DEFAULT_KINDS
from delaybridge.store.namespace.quota import Quota, _Pending
from delaybridge.store.protocol.bucket import Bucket
from delaybridge.store.protocol.replies import Sample

BUCKETS = [Bucket("ns", number, "birth") for number in range(2)]


def payload(destination: str, tenant: str = "") -> bytes:
    return encode_record(planned(Record(destination, b"x" * 100), None, tenant))


def sample(messages: int, *destinations: str, size: int = 200) -> Sample:
    return sampled(messages, *((text, "") for text in destinations), size=size)


def sampled(messages: int, *read: tuple[str, str], size: int = 200) -> Sample:
    """read: of the messages drawn, destination and tenant."""
    records = [payload(*each) for each in read]
    return Sample(messages, [(one[:1100], size, None, one[-32:]) for one in records])


class Clock:
    now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def look(quota: Quota, *samples: Any) -> bool | None:
    """Whether there are limits; None if it asks the store although no answer was given."""
    steps = quota.read_counts(BUCKETS)
    try:
        asked: Sequence[Any] = next(steps)
        assert [command.name for command in asked] == ["sample", "sample"]
        if not samples:
            return None
        steps.send(list(samples))
    except StopIteration as done:
        return bool(done.value)
    raise AssertionError("asked twice")


def refused(quota: Quota, destination: str, tenant: str = "") -> str | None:
    error = quota.refusal(payload(destination, tenant))
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


@pytest.mark.parametrize(
    ("limits", "named"),
    [
        ({"tenant_messages": 4}, "tenant_messages"),
        ({"tenant_bytes": 800}, "tenant_bytes"),
        ({"tenants": {"acme": (4, 0)}}, "tenants"),
        ({"tenants": {"acme": (0, 800)}}, "tenants"),
        ({"tenant_messages": 9, "tenants": {"acme": (4, 0)}}, "tenants"),
    ],
)
def test_a_tenant_over_its_quota_is_refused_and_nobody_else(
    limits: dict[str, Any], named: str
) -> None:
    quota = Quota(Limits(**limits), DEFAULT_KINDS, Clock())
    acme, beta, nobody = ("kafka:a", "acme"), ("kafka:a", "beta"), ("kafka:a", "")
    assert look(quota, sampled(9, *[acme] * 3, beta, *[nobody] * 5), sampled(1, acme)) is True
    assert str(refused(quota, *acme)).startswith(f"acme: limits.{named}: ")
    assert refused(quota, *beta) is refused(quota, *nobody) is None
    full = quota.refusal(payload(*acme))
    assert full is not None and full.limit == f"acme: limits.{named}"


def test_a_tenant_with_numbers_of_its_own_may_have_no_limit() -> None:
    limits = Limits(tenant_messages=1, tenants={"acme": (0, 0)})
    quota = Quota(limits, DEFAULT_KINDS, Clock())
    look(quota, sampled(2, ("kafka:a", "acme"), ("kafka:a", "beta")), Sample(0, []))
    assert refused(quota, "kafka:a", "acme") is None
    assert refused(quota, "kafka:a", "beta")


def test_a_tenant_is_not_refused_because_its_messages_stand_for_those_of_others() -> None:
    quota = Quota(Limits(tenant_messages=1000), DEFAULT_KINDS, Clock())
    others = [("kafka:a", "beta")] * 62
    some = sampled(100_000, *others, *[("kafka:a", "acme")] * 2)  # they stand for 3,125
    assert look(quota, some, sampled(3, *[("kafka:a", "acme")] * 3)) is True
    assert refused(quota, "kafka:a", "acme") is None
    assert refused(quota, "kafka:a", "beta")
    for _ in range(3):  # what it schedules itself is counted
        for _ in range(1000):
            quota.count(payload("kafka:a", "acme"))
    assert refused(quota, "kafka:a", "acme") is None
    for _ in range(6000):
        quota.count(payload("kafka:a", "acme"))
    assert refused(quota, "kafka:a", "acme")


def test_a_message_from_a_large_bucket_stands_for_no_more_because_others_are_small() -> None:
    quota = Quota(Limits(tenant_messages=1000), DEFAULT_KINDS, Clock())
    of_none = ("kafka:a", "")
    small = [sampled(100, *[of_none] * 64)] * 15
    look(quota, sampled(1_000_000, ("kafka:a", "acme"), *[of_none] * 63), *small)
    assert refused(quota, "kafka:a", "acme") is None


def test_a_look_costs_in_proportion_to_what_was_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where each message has a destination of its own."""
    ended = []
    end = _Pending.end

    def count(self: _Pending, messages: int, drawn: int) -> None:
        ended.append(1)
        end(self, messages, drawn)

    monkeypatch.setattr(_Pending, "end", count)
    quota = Quota(Limits(destination_messages=10), DEFAULT_KINDS, Clock())
    look(quota, *(sample(100, *(f"kafka:{n}-{m}" for m in range(64))) for n in range(20)))
    assert len(ended) == 20 * (64 + 1)


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


def test_messages_that_are_sent_while_it_looks_count_too() -> None:
    clock = Clock()
    quota = Quota(Limits(pending_messages=3), DEFAULT_KINDS, clock)
    assert look(quota, sample(1, "kafka:a"), Sample(0, [])) is True
    clock.now_s += 1
    first = quota.read_counts(BUCKETS)
    next(first)
    assert look(quota) is True, "one look is enough"
    quota.count(payload("kafka:a"))
    with pytest.raises(StopIteration):
        first.send([sample(1, "kafka:a"), Sample(0, [])])  # read before that message was written
    quota.count(payload("kafka:a"))
    assert str(refused(quota, "kafka:a")).startswith("limits.pending_messages: 3 are pending")
    assert look(quota, sample(2, "kafka:a"), Sample(0, [])) is True
    assert refused(quota, "kafka:a") is None, "what was counted before a look is not added to it"


def test_a_look_counts_also_what_was_on_its_way_when_it_began() -> None:
    quota = Quota(Limits(pending_messages=3), DEFAULT_KINDS, Clock())
    assert look(quota, sample(1, "kafka:a"), Sample(0, [])) is True
    for is_answered in (False, True):
        with quota.under_way():
            quota.count(payload("kafka:a"), 2)
            assert refused(quota, "kafka:a")  # so the next call looks
            if not is_answered:
                assert look(quota, sample(1, "kafka:a"), Sample(0, [])) is True
                assert refused(quota, "kafka:a"), "those may come behind that sample"
        assert look(quota, sample(1, "kafka:a"), Sample(0, [])) is True
        assert refused(quota, "kafka:a") is None, "answered: a sample has them, if they are there"
    with quota.under_way():
        with quota.under_way():
            quota.count(payload("kafka:a"))
        quota.count(payload("kafka:a"))
        assert quota._meanwhile, "the older call is under way"
    assert quota._meanwhile == []
    with quota.under_way():
        quota.count(payload("kafka:a"))
        with quota.under_way():
            first = quota.under_way()
            first.__enter__()
    quota.count(payload("kafka:a"))
    assert len(quota._meanwhile) == 1, "only what was counted since the oldest that is left"
    first.__exit__(None, None, None)


def test_a_look_keeps_what_was_on_its_way_though_it_is_answered_meanwhile() -> None:
    clock = Clock()
    quota = Quota(Limits(pending_messages=9), DEFAULT_KINDS, clock)
    assert look(quota, Sample(0, []), Sample(0, [])) is True
    older, clock.now_s = quota.under_way(), clock.now_s + 1
    with older:
        for _ in range(3):
            quota.count(payload("kafka:a"))
        looking = quota.read_counts(BUCKETS)
        next(looking)
    with quota.under_way():
        for _ in range(6):
            quota.count(payload("kafka:a"))
        with pytest.raises(StopIteration):
            looking.send([Sample(0, []), Sample(0, [])])
        assert refused(quota, "kafka:a"), "nine may come behind these samples"
    assert quota._meanwhile == []


def test_a_slow_look_is_not_joined_by_more() -> None:
    """Else there might always be one under way, and what is counted meanwhile be kept for ever."""
    clock = Clock()
    quota = Quota(Limits(pending_messages=3), DEFAULT_KINDS, clock)
    assert look(quota, sample(1, "kafka:a"), Sample(0, [])) is True
    clock.now_s += 1
    slow = quota.read_counts(BUCKETS)
    next(slow)
    clock.now_s += 5
    quota.count(payload("kafka:a"), 2)
    assert look(quota) is True
    assert refused(quota, "kafka:a")
    assert look(quota) is True
    slow.close()  # it failed
    assert look(quota) is None, "the next one looks"


def test_before_the_first_look_has_ended_all_look() -> None:
    quota = Quota(Limits(pending_messages=1), DEFAULT_KINDS, Clock())
    first = quota.read_counts(BUCKETS)
    next(first)
    assert look(quota, sample(1, "kafka:a"), Sample(0, [])) is True
    assert refused(quota, "kafka:a")


def test_a_tenant_that_is_refused_makes_nobody_look_again_though_others_schedule() -> None:
    """Each look reads many records: who is refused could keep Redis busy with small requests."""
    clock = Clock()
    quota = Quota(Limits(tenant_messages=1, destination_messages=9), DEFAULT_KINDS, clock)
    assert look(quota, sampled(1, ("kafka:a", "acme")), Sample(0, [])) is True
    quota.count(payload("kafka:a", "beta"))
    assert refused(quota, "kafka:a", "acme")
    assert look(quota) is True, "it does not ask"
    assert refused(quota, "kafka:a", "beta")
    assert look(quota, sampled(1, ("kafka:a", "acme")), Sample(0, [])) is True, "that one counted"


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
