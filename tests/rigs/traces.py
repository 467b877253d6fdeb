"""OpenTelemetry's real SDK in this process, with its exporter in memory."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from delaybridge import tracing


class Traces:
    """The spans that ended in this process."""

    def __init__(self, provider: TracerProvider) -> None:
        self._exporter = InMemorySpanExporter()
        provider.add_span_processor(SimpleSpanProcessor(self._exporter))
        self.tracer = provider.get_tracer("test")

    def named(self, name: str) -> list[ReadableSpan]:
        """Those of this name, or whose name begins with it and a space; in the order they ended."""
        spans = self._exporter.get_finished_spans()
        return [span for span in spans if f"{span.name} ".startswith(f"{name} ")]

    def one(self, name: str) -> ReadableSpan:
        (span,) = self.named(name)
        return span

    @property
    def names(self) -> list[str]:
        return [span.name for span in self._exporter.get_finished_spans()]


@contextmanager
def configured_sdk(**options: Any) -> Iterator[Traces]:
    """The program has configured an SDK; options: of its TracerProvider."""
    provider = TracerProvider(**options)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(trace, "_TRACER_PROVIDER", provider)
        patch.setattr(tracing.Found, "tracing", None)
        yield Traces(provider)
    provider.shutdown()


def traceparent(span: ReadableSpan) -> str:
    """The header that carries the span's context."""
    context = span.context
    return f"00-{context.trace_id:032x}-{context.span_id:016x}-{context.trace_flags:02x}"


def linked(span: ReadableSpan) -> list[str]:
    """The contexts that the span links to, as headers."""
    return [
        f"00-{c.trace_id:032x}-{c.span_id:016x}-{c.trace_flags:02x}"
        for c in (link.context for link in span.links)
    ]
