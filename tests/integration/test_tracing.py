"""Spans and contexts with OpenTelemetry's real SDK, from a producer to a plain consumer."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.trace import (
    NonRecordingSpan,
    SpanContext,
    SpanKind,
    StatusCode,
    TraceFlags,
    TraceState,
    set_span_in_context,
)

from delaybridge import Client, Message, MessageConflict, MessageError
from tests.rigs.flavours import Awaited, Maker
from tests.rigs.ingest import Entrance
from tests.rigs.ingest_kafka import Kafka
from tests.rigs.ingest_rabbitmq import Exchanges, reading
from tests.rigs.traces import Traces, configured_sdk, linked, traceparent

FOREIGN = f"00-{'a' * 32}-{'b' * 16}-01"
LATER = "1h"


@pytest.fixture
def traces() -> Iterator[Traces]:
    with configured_sdk() as traces:
        yield traces


class Site:
    """Brokers with a worker, and what plain consumers of them see."""

    def __init__(self, entrance: Entrance, rabbit: Exchanges, kafka: Kafka, name: str) -> None:
        self.entrance, self.rabbit, self.kafka, self.name = entrance, rabbit, kafka, name

    async def destination(self, kind: str) -> str:
        """A new destination of this kind."""
        if kind == "kafka":
            return f"kafka:{await self.kafka.topic(self.name)}"
        return f"rabbitmq:{await self.rabbit.target(self.name)}/close"

    async def contexts(self, kind: str, count: int) -> list[list[str]]:
        """The values of every traceparent header of this many messages."""
        if kind == "kafka":
            records = await self.kafka.take(self.name, count)
            return [
                [(v or b"").decode() for n, v in r.headers if n == "traceparent"] for r in records
            ]
        raw = await self.rabbit.take_raw(self.name, count)
        return [[v for n, v in each.headers.items() if n == "traceparent"] for each in raw]


@pytest.fixture
async def site(
    traces: Traces, redis_url: str, rabbitmq_url: str, real_kafka_url: str, namespace: str
) -> AsyncIterator[Site]:
    brokers = {"rabbitmq": rabbitmq_url, "kafka": real_kafka_url}
    rabbit, kafka = Exchanges(rabbitmq_url), Kafka(real_kafka_url)
    async with Entrance(redis_url, namespace, brokers) as entrance:
        yield Site(entrance, rabbit, kafka, namespace)


async def ended(site: Site, traces: Traces, name: str, messages: int) -> list[ReadableSpan]:
    """The spans of this operation, once they cover this many messages."""

    def covered() -> bool:
        return sum(_count(span) for span in traces.named(name)) >= messages

    await site.entrance.until(covered, f"{name} of {messages}")
    return traces.named(name)


def _count(span: ReadableSpan) -> int:
    return int((span.attributes or {}).get("messaging.batch.message_count", 1))  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", ["rabbitmq", "kafka"])
async def test_the_consumer_sees_the_context_of_the_producer(
    site: Site, traces: Traces, kind: str
) -> None:
    destination = await site.destination(kind)
    site.entrance.scan()
    with traces.tracer.start_as_current_span("caller") as caller:
        await site.entrance.client.schedule(
            destination, b"x", delay=0.2, id="one", headers={"a": "b"}
        )
    span = traces.one("schedule")
    assert await site.contexts(kind, 1) == [[traceparent(span)]]
    assert span.parent == caller.get_span_context()
    assert span.kind is SpanKind.PRODUCER
    (published,) = await ended(site, traces, "publish", 1)
    assert published.parent is None
    assert published.kind is SpanKind.CLIENT
    assert linked(published) == [traceparent(span)]
    assert published.name == f"publish {site.name}"
    attributes = dict(published.attributes or {})
    late_ms = attributes.pop("delaybridge.lateness_ms")
    due_ms, bucket = (span.attributes or {})["delaybridge.due_ms"], attributes["delaybridge.bucket"]
    assert published.end_time is not None and isinstance(due_ms, int)
    assert isinstance(late_ms, int) and 0 <= late_ms <= published.end_time / 1e6 - due_ms
    routed = {"messaging.rabbitmq.destination.routing_key": "close"} if kind == "rabbitmq" else {}
    name = f"{site.name}:close" if kind == "rabbitmq" else site.name
    assert attributes == {
        "messaging.system": kind,
        "messaging.operation.name": "publish",
        "messaging.operation.type": "send",
        "messaging.destination.name": name,
        "messaging.batch.message_count": 1,
        "messaging.message.id": "one",
        "messaging.client.id": attributes["delaybridge.worker"],
        "server.address": attributes["server.address"],
        "server.port": attributes["server.port"],
        "delaybridge.message.id": "one",
        "delaybridge.due_ms": due_ms,
        "delaybridge.attempt": 1,
        "delaybridge.bucket": bucket,
        "delaybridge.worker": attributes["delaybridge.worker"],
        **routed,
    }


@pytest.mark.parametrize("kind", ["rabbitmq", "kafka"])
async def test_every_message_of_a_large_batch_is_linked_once(
    site: Site, traces: Traces, kind: str
) -> None:
    destination = await site.destination(kind)
    own = [f"00-{n:032x}-{n:016x}-01" for n in range(1, 301)]
    messages = [
        Message(destination, b"x", delay=0.5, headers={"traceparent": each}) for each in own
    ]
    messages += [Message(destination, b"y", delay=0.5) for _ in range(50)]
    await site.entrance.client.schedule_many(messages)
    site.entrance.scan()
    created = traces.one("schedule")
    wanted = sorted([*own, *[traceparent(created)] * 50])
    assert sorted(c for (c,) in await site.contexts(kind, 350)) == wanted
    published = await ended(site, traces, "publish", 350)
    assert sorted(link for span in published for link in linked(span)) == wanted
    assert all(span.dropped_links == 0 and len(span.links) <= 128 for span in published)
    about = [dict(link.attributes or {}) for span in published for link in span.links]
    ids = {each["messaging.message.id"] for each in about}
    assert len(ids) == 350
    assert all({"delaybridge.due_ms", "delaybridge.attempt"} < each.keys() for each in about)


async def test_a_delivery_that_fails_is_an_error(site: Site, traces: Traces) -> None:
    await site.rabbit.do(lambda channel: channel.exchange_declare(site.name))
    await site.entrance.client.schedule(f"rabbitmq:{site.name}/k", b"x", delay=0.1)
    site.entrance.scan()
    span = (await ended(site, traces, "publish", 1))[0]
    assert span.status.status_code is StatusCode.ERROR
    assert (span.attributes or {})["error.type"] == "unroutable"
    assert (span.attributes or {})["delaybridge.failed_count"] == 1


# ingest


@pytest.mark.parametrize("kind", ["rabbitmq", "kafka"])
async def test_ingest_receives_and_settles_with_links_and_leaves_the_context(
    site: Site, traces: Traces, kind: str
) -> None:
    source = f"{site.name}.delay"
    if kind == "kafka":
        await site.destination(kind)
        await site.kafka.topic(source)
        settings: dict[str, Any] = {"topics": [source]}
    else:
        await site.destination(kind)
        settings = {"exchanges": [source]}
    site.entrance.settings = site.entrance.settings.model_copy(
        update={"ingest": site.entrance.settings.ingest.model_copy(update=settings)}
    )
    site.entrance.scan()
    site.entrance.ingest(kind)
    headers = {"traceparent": FOREIGN, "delaybridge-delay": "300ms"}
    if kind == "kafka":
        pairs = [(n, v.encode()) for n, v in headers.items()]
        await site.kafka.send(source, headers=pairs)
    else:
        await reading(site.entrance, source)
        await site.rabbit.publish(source, "close", headers=headers, message_id="m")
        await site.rabbit.publish(source, "close", headers={"traceparent": FOREIGN, "x-delay": 0})
    count = 1 if kind == "kafka" else 2
    assert await site.contexts(kind, count) == [[FOREIGN]] * count
    for operation in ("receive", "settle"):
        spans = await ended(site, traces, operation, count)
        for span in spans:
            assert (span.name, span.kind, span.parent) == (
                f"{operation} {source}", SpanKind.CLIENT, None,
            )  # fmt: skip
            assert set(linked(span)) == {FOREIGN}
            assert (span.attributes or {})["messaging.system"] == kind
    # It ends with the confirm, which may come after the message.
    published = await ended(site, traces, f"publish {site.name}", 1)
    assert [linked(span) for span in published] == [[FOREIGN]]
    assert traces.named("schedule") == []


# a client's calls


async def test_a_message_with_a_context_keeps_it(traces: Traces, client: Awaited) -> None:
    for number, headers in enumerate(
        (
            {"traceparent": FOREIGN},
            [("traceparent", FOREIGN.encode())],
            iter([("traceparent", FOREIGN)]),
        )
    ):
        await client.schedule("kafka:t", b"x", delay=LATER, id=str(number), headers=headers)
        stored = await client.get(str(number))
        assert list(stored.headers) == [("traceparent", FOREIGN.encode())]
    for span in traces.named("schedule"):
        assert span.kind is SpanKind.CLIENT
        assert linked(span) == [FOREIGN]


async def test_contexts_are_not_mixed(traces: Traces, client: Awaited) -> None:
    state = TraceState([("vendor", "callers")])
    remote = SpanContext(1, 2, is_remote=True, trace_flags=TraceFlags(1), trace_state=state)
    caller = set_span_in_context(NonRecordingSpan(remote))
    with traces.tracer.start_as_current_span("caller", caller):
        await client.schedule(
            "kafka:t", b"x", delay=LATER, id="own", headers={"traceparent": FOREIGN}
        )
        await client.schedule("kafka:t", b"x", delay=LATER, id="new")
        await client.schedule(
            "kafka:t", b"x", delay=LATER, id="baggage", headers={"baggage": "mine=1"}
        )
    own, new, baggage = [dict((await client.get(id)).headers) for id in ("own", "new", "baggage")]
    assert own == {"traceparent": FOREIGN.encode()}
    assert new.keys() == {"traceparent", "tracestate"}
    assert new["tracestate"] == b"vendor=callers"
    assert baggage.keys() == {"traceparent", "tracestate", "baggage"}
    assert baggage["baggage"] == b"mine=1"


@pytest.mark.parametrize("headers", [{}, {"a": "b"}, [("a", "b")]])
@pytest.mark.parametrize("form", [lambda headers: headers, iter], ids=["as given", "read once"])
async def test_a_message_without_a_context_gets_that_of_its_span(
    traces: Traces, redis_url: str, namespace: str, headers: Any, form: Any
) -> None:
    if form is iter:
        headers = list(dict(headers).items())
    with Client(redis_url, namespace=namespace) as client:
        receipt = client.schedule(
            "rabbitmq:x/k", b"x", delay=LATER, id="i", headers=form(headers),
            properties={"correlation_id": "talk"},
        )  # fmt: skip
        stored = client.get("i")
    span = traces.one("schedule")
    assert stored is not None
    assert dict(stored.headers) == {**dict(headers), "traceparent": traceparent(span)}
    attributes = dict(span.attributes or {})
    assert span.name == "schedule rabbitmq:x"
    assert attributes == {
        "messaging.system": "delaybridge",
        "messaging.operation.name": "schedule",
        "messaging.operation.type": "send",
        "messaging.destination.name": "rabbitmq:x/k",
        "messaging.rabbitmq.destination.routing_key": "k",
        "messaging.message.id": "i",
        "messaging.message.conversation_id": "talk",
        "delaybridge.message.id": "i",
        "delaybridge.answer": "created",
        "delaybridge.due_ms": receipt.due_ms,
        "delaybridge.delay_ms": 3_600_000,
        "delaybridge.bucket": receipt.bucket,
    }


async def test_a_call_repeated_in_another_trace_is_a_duplicate(
    traces: Traces, client: Awaited
) -> None:
    for answer in ("created", "duplicate"):
        receipt = await client.schedule("rabbitmq:x/k", b"x", delay=LATER, id="i")
        assert receipt == answer
    with pytest.raises(MessageConflict):
        await client.schedule("rabbitmq:x/k", b"other", delay=LATER, id="i")
    spans = traces.named("schedule")
    assert [(s.attributes or {})["delaybridge.answer"] for s in spans] == [
        "created", "duplicate", "conflict",
    ]  # fmt: skip
    assert [s.status.is_ok for s in spans] == [True, True, False]
    assert (spans[-1].attributes or {})["error.type"] == "conflict"


async def test_changes_are_children_of_the_caller(traces: Traces, client: Awaited) -> None:
    await client.schedule("kafka:t", b"x", delay=LATER, id="i")
    with traces.tracer.start_as_current_span("caller") as caller:
        await client.reschedule("i", delay="2h")
        await client.cancel("i")
        await client.cancel("i")
        await client.cancel_many(["i", "j"])
    changes = [*traces.named("reschedule"), *traces.named("cancel_scheduled")]
    assert [(s.attributes or {}).get("delaybridge.answer") for s in changes] == [
        "rescheduled", "cancelled", "unknown", None,
    ]  # fmt: skip
    assert [s.parent for s in changes] == [caller.get_span_context()] * 4
    assert {s.kind for s in changes} == {SpanKind.CLIENT}
    assert (changes[0].attributes or {})["messaging.message.id"] == "i"
    assert (changes[0].attributes or {})["delaybridge.delay_ms"] == 7_200_000
    assert _count(changes[-1]) == 2


async def test_refused_messages_and_silent_stores_are_errors(
    traces: Traces, client: Awaited, make: Maker
) -> None:
    with pytest.raises(MessageError):
        await client.schedule("rabbitmq:x/k", None, delay=LATER)
    with pytest.raises(MessageError):
        await client.schedule("nowhere:x", b"", delay=LATER)
    with pytest.raises(MessageError):
        await client.schedule("kafka:x", b"", delay=LATER, headers=5)
    silent = make("redis://127.0.0.1:1", timeout_s=0.2)
    with pytest.raises(Exception, match="redis"):
        await silent.schedule("kafka:x", b"", delay=LATER)
    spans = traces.named("schedule")
    types = [(s.attributes or {})["error.type"] for s in spans]
    assert types == ["null_body", "unknown_destination", "bad_header", "StoreUnavailable"]
    assert not any(span.status.is_ok for span in spans)


async def test_a_context_never_gets_a_message_refused(traces: Traces, client: Awaited) -> None:
    headers = {f"h{n}": "v" for n in range(64)}  # as many as there may be
    await client.schedule("rabbitmq:x/k", b"x", delay=LATER, id="i", headers=headers)
    assert len((await client.get("i")).headers) == 64
    with pytest.raises(MessageError, match="limit is 64"):
        await client.schedule("rabbitmq:x/k", b"x", delay=LATER, headers={**headers, "more": ""})
