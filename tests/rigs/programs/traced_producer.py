"""An application that OpenTelemetry instruments by itself, with delays and without.

Usage: traced_producer.py RABBITMQ-URL KAFKA-SERVERS NAME. Prints the contexts of its spans, as
`{"trace": [span, kind, name]...}`, one JSON object.
"""

from __future__ import annotations

import json
import sys

import confluent_kafka
import pika
from opentelemetry import trace
from opentelemetry.instrumentation.confluent_kafka import ConfluentKafkaInstrumentor
from opentelemetry.instrumentation.pika import PikaInstrumentor
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

exporter = InMemorySpanExporter()
provider = TracerProvider()
provider.add_span_processor(SimpleSpanProcessor(exporter))
trace.set_tracer_provider(provider)
ConfluentKafkaInstrumentor().instrument()
PikaInstrumentor().instrument()

from delaybridge.intercept.confluent_kafka import Producer  # noqa: E402 - after they are instrumented
from delaybridge.intercept.pika import BlockingConnection, delaying  # noqa: E402

url, servers, name = sys.argv[1:]
delayed = pika.BasicProperties(headers={"x-delay": 300})


def send_to_rabbitmq() -> None:
    """Four messages: direct, to the delay exchange, by the drop-in in two ways."""
    with BlockingConnection(pika.URLParameters(url)) as connection:
        channel = connection.channel()
        channel.basic_publish(name, "k", b"direct")
        channel.basic_publish(name, "k", b"drop-in", delay="300ms")
    with pika.BlockingConnection(pika.URLParameters(url)) as connection:
        plain = connection.channel()
        plain.basic_publish(f"{name}.delay", "k", b"ingested", delayed)
        delaying(plain).basic_publish(name, "k", b"wrapped", delay="300ms")


def send_to_kafka() -> None:
    """Four records: direct, to the delay topic, by the drop-in, by the drop-in instrumented."""
    settings = {"bootstrap.servers": servers}
    plain = confluent_kafka.Producer(settings)
    plain.produce(name, b"direct")
    plain.produce(f"{name}.delay", b"ingested", headers=[("delaybridge-delay", b"300ms")])
    producer = Producer(settings)
    producer.produce(name, b"drop-in", delay="300ms")
    wrapped = ConfluentKafkaInstrumentor.instrument_producer(producer)
    wrapped.produce(name, b"wrapped", headers=[("delaybridge-delay", b"300ms")])
    for each in (plain, producer):
        each.flush(20)


send_to_rabbitmq()
send_to_kafka()
spans = exporter.get_finished_spans()
print(
    json.dumps(
        {
            f"00-{c.trace_id:032x}-{c.span_id:016x}-{c.trace_flags:02x}": (s.name, s.kind.name)
            for s in spans
            if (c := s.context)
        }
    )
)
