"""Any document to `definitions import`: refused as a whole, or done; never a traceback."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from delaybridge import Client
from delaybridge.errors import MessageError
from delaybridge.operate.views import transfer
from delaybridge.recurring.definition import Definition
from delaybridge.store.namespace.rules import Rule
from tests.rigs.hostile import HARD

calm = settings(deadline=None, suppress_health_check=[*HealthCheck])
SCALARS = (
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=30)
    | st.sampled_from(["kafka:t", "rabbitmq", "eu:x/y", "0 3 * * *", "Europe/Berlin", "\x1b[2J"])
)  # fmt: skip
VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=9), inner)
)
PLANS = st.dictionaries(st.sampled_from(["max_attempts", "base_ms", "factor", "max_ms"]), SCALARS)
RULES = st.dictionaries(
    st.sampled_from(["kafka", "kafka:t", "rabbitmq:a/b", "nowhere", "", ":", "kafka:\x00"]),
    st.dictionaries(st.sampled_from([*Rule.__struct_fields__]), SCALARS | PLANS) | VALUES,
    max_size=4,
)
DEFINITIONS = st.lists(
    st.fixed_dictionaries(
        {"name": st.sampled_from(["a", "b", "../c", ""]), "destination": st.just("kafka:t")},
        optional=dict.fromkeys(
            {*Definition.__struct_fields__} - {"name", "destination"}, SCALARS | VALUES
        )
        | {"cron": st.just("0 3 * * *"), "every_ms": st.integers(-1, 10**13)},
    )
    | VALUES,
    max_size=3,
)
DOCUMENTS = VALUES | st.fixed_dictionaries(
    {"delaybridge": st.sampled_from([1, 1, 1, 1, 2, "1"])},
    optional={"destinations": RULES | VALUES, "recurring": DEFINITIONS | VALUES, "more": VALUES},
)


@pytest.fixture(scope="module")
def client(redis_url: str) -> Iterator[Client]:
    with Client(redis_url, namespace="fuzz-definitions") as client:
        yield client


@calm
@example({"delaybridge": 1, "destinations": {"kafka": {"paused": None, "rate": 5}}})
@given(DOCUMENTS)
def test_a_document_is_refused_or_exported_as_it_was_imported(
    client: Client, document: Any
) -> None:
    try:
        wanted, faults = client.run(lambda calls: transfer.checked(calls, document))
        for fault in faults:
            raise fault
    except MessageError as exc:
        assert str(exc).isprintable()
        assert len(str(exc)) <= 500
        return
    here = client.run(transfer.contents)
    for one in transfer.differences(here, wanted, prune=True):
        if one.word != "unchanged":
            client.run(lambda calls, one=one: transfer.write(calls, wanted, one))  # type: ignore[misc]
    now = client.run(transfer.contents)
    assert json.dumps(now.document()) == json.dumps(wanted.document())
    words = {one.word for one in transfer.differences(now, wanted, prune=True)}
    assert words <= {"unchanged"}


@pytest.mark.parametrize("name", HARD)
def test_hard_values_are_refused_or_taken_by_the_calls_that_steer(
    client: Client, name: str
) -> None:
    value = HARD[name]
    places = client.destinations
    for call, args in (
        (places.pause, (value,)), (places.resume, (value,)), (places, (value,)),
        (places.limit, ("kafka:t", value)), (places.spread, ("kafka:t", value)),
        (places.retry_plan, ("kafka:t", value)),
        (places.retry_plan, ("kafka:t", {"base_ms": value})),
    ):  # fmt: skip
        try:
            call(*args)  # type: ignore[operator]
        except MessageError as exc:
            assert str(exc).isprintable()
