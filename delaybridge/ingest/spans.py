"""Spans of what ingest reads from a delay exchange or topic, and settles there."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Literal, TypeVar

from delaybridge.ingest.routes import Route
from delaybridge.tracing import Headers, active, carried, error_type, parts

T = TypeVar("T")


@contextmanager
def spans(
    operation: Literal["receive", "settle"],
    route: Route,
    messages: Sequence[T],
    headers_of: Callable[[T], Headers],
) -> Iterator[None]:
    """Spans around an operation on these messages, each linked to the contexts of its part.

    None if the process does not trace, or there is no message. headers_of: in which the context of
    a message is looked for.
    """
    tracing = active()
    if tracing is None or not messages:
        yield
        return
    fields, opened = tracing.fields, []
    for part in parts(messages):
        found = [carried(headers_of(message), fields) for message in part]
        links = [link for carrier in found if carrier and (link := tracing.link(carrier, {}))]
        attributes = {
            "messaging.system": route.kind,
            "messaging.operation.type": operation,
            "messaging.destination.name": route.source,
            "messaging.batch.message_count": len(part),
        }
        opened.append(
            tracing.start(operation, route.source, "CLIENT", attributes, links=links, is_root=True)
        )
    try:
        yield
    except BaseException as exc:
        for span in opened:
            tracing.failed(span, error_type(exc), str(exc))
        raise
    finally:
        for span in opened:
            span.end()
