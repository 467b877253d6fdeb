"""The waits of a message's retries and of a destination's circuit."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from delaybridge.scan.lanes.flow import Circuit, CircuitState
from delaybridge.scan.lanes.retry import RetryPolicy

NOW_MS = 1_750_000_000_000


def middle() -> float:
    """A random draw without effect: no jitter."""
    return 0.5


def lowest() -> float:
    return 0.0


def highest() -> float:
    return 1.0


def opened(*, failed_probes: int = 0) -> Circuit:
    """A circuit without jitter that opened at NOW_MS and whose probes all failed at once."""
    circuit = Circuit(middle)
    circuit.fail(NOW_MS, "refused")
    for _ in range(failed_probes):
        now_ms = circuit.probe_at_ms or 0
        circuit.probe(now_ms)
        circuit.fail(now_ms, "refused")
    return circuit


POLICIES = st.builds(
    lambda base_ms, more_ms, **fields: RetryPolicy(
        base_ms=base_ms, max_ms=min(base_ms + more_ms, 86_400_000), **fields
    ),
    base_ms=st.integers(1, 86_400_000),
    more_ms=st.integers(0, 86_400_000),
    max_attempts=st.integers(1, 1000),
    factor=st.floats(1, 100, exclude_min=True),
    jitter=st.floats(0, 1),
)


def test_the_default_waits_double_from_a_second_to_five_minutes_and_end_after_16() -> None:
    policy = RetryPolicy()
    waits_s = [(policy.delay_ms(attempts, middle) or 0) / 1000 for attempts in range(1, 16)]
    assert waits_s == [1, 2, 4, 8, 16, 32, 64, 128, 256] + [300] * 6
    assert policy.delay_ms(16, middle) is None
    assert policy.delay_ms(17, middle) is None


def test_the_jitter_is_a_share_of_the_wait_also_at_the_limit() -> None:
    policy = RetryPolicy(jitter=0.2)
    assert policy.delay_ms(1, lowest) == 800
    assert policy.delay_ms(1, highest) == 1200
    assert policy.delay_ms(15, lowest) == 240_000
    assert policy.delay_ms(15, highest) == 360_000


def test_there_is_no_wait_before_the_first_failure() -> None:
    with pytest.raises(ValueError, match="first failure"):
        RetryPolicy().delay_ms(0, middle)


@given(policy=POLICIES, attempts=st.integers(1, 1001), seed=st.integers())
def test_every_wait_is_within_the_jitter_of_base_and_max(
    policy: RetryPolicy, attempts: int, seed: int
) -> None:
    delay_ms = policy.delay_ms(attempts, random.Random(seed).random)
    if attempts >= policy.max_attempts:
        assert delay_ms is None
        return
    assert delay_ms is not None
    assert delay_ms >= round(policy.base_ms * (1 - policy.jitter))
    assert delay_ms <= round(policy.max_ms * (1 + policy.jitter))


@given(policy=POLICIES)
def test_without_jitter_no_wait_is_shorter_than_the_one_before(policy: RetryPolicy) -> None:
    delays_ms = [
        delay_ms
        for attempts in range(1, policy.max_attempts)
        if (delay_ms := policy.delay_ms(attempts, middle)) is not None
    ]
    assert len(delays_ms) == policy.max_attempts - 1
    assert delays_ms == sorted(delays_ms)
    assert delays_ms[:1] in ([], [policy.base_ms])


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"max_attempts": 0}, "max_attempts must be 1 to 1000, not 0"),
        ({"max_attempts": -1}, "max_attempts must be 1 to 1000, not -1"),
        ({"max_attempts": 10**9}, "max_attempts must be 1 to 1000, not 1000000000"),
        ({"base_ms": 0}, "base_ms must be 1 to 300000 (max_ms), not 0"),
        ({"base_ms": 300_001}, "base_ms must be 1 to 300000 (max_ms), not 300001"),
        ({"max_ms": 0}, "max_ms must be 1 to 86400000, not 0"),
        ({"max_ms": 86_400_001}, "max_ms must be 1 to 86400000, not 86400001"),
        ({"factor": 1}, "factor must be above 1, at most 100.0, not 1"),
        ({"factor": 101.0}, "factor must be above 1, at most 100.0, not 101.0"),
        ({"factor": float("nan")}, "factor must be above 1, at most 100.0, not nan"),
        ({"jitter": -0.1}, "jitter must be 0 to 1, not -0.1"),
        ({"jitter": 1.1}, "jitter must be 0 to 1, not 1.1"),
        ({"jitter": float("nan")}, "jitter must be 0 to 1, not nan"),
    ],
)
def test_a_policy_out_of_range_is_refused(fields: dict[str, float], message: str) -> None:
    with pytest.raises(ValueError) as refused:
        RetryPolicy(**fields)  # type: ignore[arg-type]
    assert str(refused.value) == message


def test_a_circuit_out_of_range_is_refused() -> None:
    with pytest.raises(ValueError, match="base_ms"):
        Circuit(middle, base_ms=31_000)


def test_a_circuit_starts_closed_and_has_nothing_to_probe() -> None:
    circuit = Circuit(middle)
    assert circuit.state is CircuitState.CLOSED
    assert not circuit.is_open
    assert circuit.probe_at_ms is None
    assert not circuit.probe(NOW_MS)
    assert not circuit.succeed()


def test_the_first_failure_opens_for_a_second() -> None:
    circuit = Circuit(middle)
    assert circuit.fail(NOW_MS, "no exchange 'orders'")
    assert circuit.state is CircuitState.OPEN
    assert circuit.is_open
    assert circuit.reason == "no exchange 'orders'"
    assert circuit.probe_at_ms == NOW_MS + 1000


def test_failures_of_messages_on_their_way_count_as_one() -> None:
    circuit = opened()
    assert not circuit.fail(NOW_MS + 999, "connection lost")
    assert circuit.probe_at_ms == NOW_MS + 1000
    assert circuit.reason == "refused"


def test_a_probe_passes_once_when_it_is_time() -> None:
    circuit = opened()
    assert not circuit.probe(NOW_MS + 999)
    assert circuit.probe(NOW_MS + 1000)
    assert circuit.state is CircuitState.PROBING
    assert circuit.is_open
    assert not circuit.probe(NOW_MS + 1000)


def test_a_failed_probe_doubles_the_wait_up_to_30_seconds() -> None:
    circuit = opened()
    waits_ms = []
    for _ in range(7):
        now_ms = circuit.probe_at_ms or 0
        assert circuit.probe(now_ms)
        assert circuit.fail(now_ms, "refused")
        waits_ms.append((circuit.probe_at_ms or 0) - now_ms)
    assert waits_ms == [2000, 4000, 8000, 16_000, 30_000, 30_000, 30_000]


def test_a_success_closes_and_the_next_outage_starts_from_a_second() -> None:
    circuit = opened(failed_probes=3)
    assert circuit.probe(NOW_MS + 60_000)
    assert circuit.succeed()
    assert circuit.state is CircuitState.CLOSED
    assert circuit.reason is None
    assert circuit.probe_at_ms is None
    assert not circuit.succeed()
    circuit.fail(NOW_MS + 70_000, "again")
    assert circuit.probe_at_ms == NOW_MS + 71_000


def test_a_late_confirm_closes_an_open_circuit() -> None:
    assert opened().succeed()


def test_a_probe_without_an_outcome_is_given_up_after_one_more_wait() -> None:
    circuit = opened(failed_probes=1)
    start_ms = circuit.probe_at_ms or 0
    assert circuit.probe(start_ms)
    assert not circuit.probe(start_ms + 1999)
    assert circuit.probe(start_ms + 2000)
    assert circuit.state is CircuitState.PROBING


@given(
    seed=st.integers(),
    calls=st.lists(
        st.tuples(st.sampled_from(["fail", "probe", "succeed"]), st.integers(0, 40_000))
    ),
)
def test_any_history_parks_for_a_bounded_time_and_probes_again(
    seed: int, calls: list[tuple[str, int]]
) -> None:
    circuit = Circuit(random.Random(seed).random)
    now_ms = NOW_MS
    for call, step_ms in calls:
        now_ms += step_ms
        before_ms = circuit.probe_at_ms
        if call == "fail":
            circuit.fail(now_ms, "refused")
            assert circuit.is_open
        elif call == "probe":
            assert circuit.probe(now_ms) == (before_ms is not None and before_ms <= now_ms)
        else:
            circuit.succeed()
            assert not circuit.is_open
        assert circuit.is_open == (circuit.probe_at_ms is not None) == (circuit.reason is not None)
        if circuit.probe_at_ms is not None and circuit.probe_at_ms != before_ms:
            assert 800 <= circuit.probe_at_ms - now_ms <= 36_000
