"""OpenTelemetry tracing: the program's tracer, and the trace context in a message's headers.

Only the API is used, and only once the program has configured an SDK. Until then nothing of
OpenTelemetry is imported here, and `active` costs one look into a dictionary.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property, lru_cache
from importlib.metadata import entry_points, version
from types import ModuleType
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from delaybridge.errors import MessageError

if TYPE_CHECKING:
    from opentelemetry.trace import Link, Span, SpanContext

T = TypeVar("T")
MOST_LINKS = 128
"""As many links of a span an SDK keeps by default: a span covers no more messages than that."""
_BAGGAGE = "baggage"
_NAME = "delaybridge"
API, PROVIDER = "opentelemetry.trace", "_TRACER_PROVIDER"
_modules: Mapping[str, Any] = sys.modules
IS_NAMED = "OTEL_PYTHON_TRACER_PROVIDER" in os.environ  # the API loads it when it is asked
_SUPPRESS = "suppress_instrumentation"  # the key that every instrumentation looks up

Carrier = dict[str, str]
Headers = bytes | Iterable[tuple[str, Any]]  # an encoded AMQP table, or pairs


class Tracing:
    """The tracer of a program that has configured an SDK."""

    def __init__(self, api: Any) -> None:
        self._api = api
        self._tracer = api.get_tracer(_NAME, version(_NAME))

    @cached_property
    def _context(self) -> ModuleType:
        from opentelemetry import context

        return context

    @cached_property
    def _propagate(self) -> ModuleType:
        from opentelemetry import propagate

        return propagate

    def start(
        self,
        operation: str,
        destination: str,
        kind: Literal["PRODUCER", "CLIENT"],
        attributes: Mapping[str, Any],
        *,
        links: Sequence[Link] = (),
        is_root: bool = False,
    ) -> Span:
        """Start the span of an operation. is_root: it begins a trace; else the caller's goes on."""
        span: Span = self._tracer.start_span(
            f"{operation} {destination}".rstrip(),
            self._context.Context() if is_root else None,
            self._api.SpanKind[kind],
            {"messaging.operation.name": operation, **attributes},
            links,
        )
        return span

    def failed(self, span: Span, error_type: str, reason: str) -> None:
        """Mark a span as failed."""
        span.set_attribute("error.type", error_type)
        span.set_status(self._api.StatusCode.ERROR, reason)

    def inject(self, span: Span) -> Carrier:
        """The headers that carry the span's context, as the program's propagator writes them."""
        carrier: Carrier = {}
        self._propagate.inject(carrier, self._api.set_span_in_context(span))
        return carrier

    @property
    def fields(self) -> frozenset[str]:
        """The headers that the propagator reads a context from."""
        return frozenset(self._propagate.get_global_textmap().fields) - {_BAGGAGE}

    def link(self, carrier: Carrier, attributes: Mapping[str, Any]) -> Link | None:
        """A link to the context that these headers carry; None if they carry none."""
        found = self._propagate.extract(carrier, self._context.Context())
        context: SpanContext = self._api.get_current_span(found).get_span_context()
        return self._api.Link(context, attributes) if context.is_valid else None

    @contextmanager
    def suppressed(self) -> Iterator[None]:
        """Keep instrumented libraries from adding a context of their own to what is sent."""
        token = self._context.attach(self._context.set_value(_SUPPRESS, True))
        try:
            yield
        finally:
            self._context.detach(token)


class Found:
    """tracing: the program's, once it is found. is_off: it is not looked for any more."""

    tracing: Tracing | None = None
    is_off = _NAME in os.environ.get("OTEL_PYTHON_DISABLED_INSTRUMENTATIONS", "").split(",")


def active() -> Tracing | None:
    """The program's tracing; None if it has configured no OpenTelemetry SDK."""
    # For each call of a client. Asking the API would take a microsecond, and redis-py imports it
    # wherever an SDK is installed; an API that keeps its provider elsewhere is asked.
    api = _modules.get(API)
    if api is None or (getattr(api, PROVIDER, api) is None and not IS_NAMED):
        return None
    return Found.tracing or _find(api)


def _find(api: Any) -> Tracing | None:
    if Found.is_off:
        return None
    try:
        provider = api.get_tracer_provider()
        if not isinstance(provider, api.ProxyTracerProvider | api.NoOpTracerProvider):
            Found.tracing = Tracing(api)
    except AttributeError:
        pass  # another thread is importing it
    except Exception:  # OTEL_PYTHON_TRACER_PROVIDER names none that works; the API has logged it
        Found.is_off = True
    return Found.tracing


def configure() -> str | None:
    """Set an SDK up in this process if OTEL_TRACES_EXPORTER asks for it; why it failed, if it did.

    Exporters, sampler and limits are those of the other OTEL_* variables. Does nothing if the
    program has an SDK already, for example by `opentelemetry-instrument`.
    """
    names = [name.strip() for name in os.environ.get("OTEL_TRACES_EXPORTER", "").split(",")]
    wanted = [name for name in names if name not in ("", "none")]
    if not wanted or Found.is_off or active() is not None:
        return None
    if "service.name=" not in os.environ.get("OTEL_RESOURCE_ATTRIBUTES", ""):
        os.environ.setdefault("OTEL_SERVICE_NAME", _NAME)
    try:
        from opentelemetry import trace
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor

        provider = TracerProvider()
        for name in wanted:
            provider.add_span_processor(BatchSpanProcessor(_exporter(name)()))
        trace.set_tracer_provider(provider)
    except ImportError:
        return f'tracing needs: pip install "{_NAME}[otel]" opentelemetry-sdk'
    except Exception as exc:
        return f"{type(exc).__name__}: {exc}"
    return None


def _exporter(name: str) -> Any:
    """The class of an exporter, as the SDK's own configuration names them."""
    if name == "otlp":
        protocol = os.environ.get("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc")
        protocol = os.environ.get("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", protocol)
        name = "otlp_proto_grpc" if protocol == "grpc" else "otlp_proto_http"
    for entry in entry_points(group="opentelemetry_traces_exporter", name=name):
        return entry.load()
    package = f"opentelemetry-exporter-{name.replace('_', '-')}"
    raise LookupError(f"no exporter {name!r} is installed; pip install {package}")


def carried(headers: Headers, fields: Iterable[str]) -> Carrier:
    """Those of these fields that the headers have; the first of each name."""
    if not isinstance(headers, bytes):
        found: Carrier = {}
        for name, value in headers:
            if name in fields and isinstance(value, str | bytes):
                found.setdefault(name, value if isinstance(value, str) else value.decode("latin-1"))
        return found
    found = {}
    for name in fields:
        entry = _entry(name)
        if (at := headers.find(entry)) >= 0:
            start = at + len(entry) + 4
            end = start + int.from_bytes(headers[start - 4 : start])
            found[name] = headers[start:end].decode("latin-1")
    return found


@lru_cache(100)
def _entry(name: str) -> bytes:
    """How a text of this name begins in an AMQP table."""
    return bytes([len(name)]) + name.encode() + b"S"


def error_type(error: BaseException) -> str:
    """What kind of error it is: our code, or its class."""
    return error.code if isinstance(error, MessageError) else type(error).__name__


def parts(items: Sequence[T]) -> Iterator[Sequence[T]]:
    """The items in turns that one span can link to."""
    for first in range(0, len(items), MOST_LINKS):
        yield items[first : first + MOST_LINKS]
