"""Spans of a client's calls, and the context that each new message gets from its producer."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Self, TypeVar

from msgspec.structs import replace

from delaybridge import times
from delaybridge.amqp.encoding import encode_table
from delaybridge.errors import MessageError
from delaybridge.gathering import Gathering
from delaybridge.message import Answer, ContentHeader, Message
from delaybridge.store.messages.scheduling import Receipt
from delaybridge.store.protocol.verbs import Steps
from delaybridge.tracing import MOST_LINKS, Carrier, Headers, Tracing, carried, error_type

T = TypeVar("T")
_READ_AGAIN = list, tuple  # an iterator can be read once
_SYSTEM = {"messaging.system": "delaybridge"}


class CallSpan:
    """The span of one call, as a context manager: leaving it ends the span, with the error raised.

    Entered and left once.
    """

    def __init__(self, tracing: Tracing, span: Any) -> None:
        self._tracing, self._span = tracing, span

    def __enter__(self) -> Self:
        return self

    def __exit__(self, _: object, error: BaseException | None, *rest: object) -> None:
        if error is not None:
            self._tracing.failed(self._span, error_type(error), str(error))
        self._span.end()

    def around(self, steps: Steps[T]) -> Steps[T]:
        """The same call; when it ends, so does the span."""
        with self:
            answer = yield from steps
            self.answered(answer)
            return answer

    def answered(self, answer: object) -> None:
        """Note the answer to a call about one message."""
        if isinstance(answer, Exception):
            self._tracing.failed(self._span, error_type(answer), str(answer))
        elif isinstance(answer, Receipt):
            self._note(answer)
        elif isinstance(answer, Answer):
            self._span.set_attribute("delaybridge.answer", answer.value)

    def _note(self, receipt: Receipt) -> None:
        self._span.set_attributes(
            {
                "messaging.message.id": receipt.id,
                "delaybridge.message.id": receipt.id,
                "delaybridge.answer": receipt.answer.value,
                "delaybridge.due_ms": receipt.due_ms,
                "delaybridge.bucket": receipt.bucket,
            }
        )
        if receipt.answer is Answer.CONFLICT:
            self._tracing.failed(self._span, "conflict", "pending with other content")


class ScheduleSpan(CallSpan):
    """The span that creates messages: those without a context get its own.

    It is a PRODUCER if any message does; it links to the contexts that the others have.
    """

    def __init__(self, tracing: Tracing, messages: Iterable[Message]) -> None:
        self.messages = [_readable(message) for message in messages]
        fields, links = tracing.fields, list[Any]()
        self._have_context = []
        for message in self.messages:
            carrier = carried(_headers_of(message), fields)
            self._have_context.append(bool(carrier))
            if carrier and len(links) < MOST_LINKS and (link := tracing.link(carrier, {})):
                links.append(link)
        kind: Any = "CLIENT" if self.messages and all(self._have_context) else "PRODUCER"
        destination, attributes = _described(self.messages)
        span = tracing.start("schedule", destination, kind, attributes, links=links)
        self._carrier = tracing.inject(span)
        super().__init__(tracing, span)

    def checked(self, check: Callable[[Message], T]) -> list[T]:
        """Each message with its context, checked; raises what `check` raises."""
        found = []
        for message, has_context in zip(self.messages, self._have_context, strict=True):
            if not has_context and self._carrier:
                try:
                    found.append(check(_with(message, self._carrier)))
                    continue
                except MessageError:
                    pass  # at fault itself, or at a limit: its context must not get it refused
            found.append(check(message))
        return found


def changing(
    tracing: Tracing, operation: str, ids: Sequence[object], steps: Steps[T], due: str
) -> Steps[T]:
    """A call that changes pending messages of these ids, with its span; see `traced`."""
    attributes: dict[str, Any] = dict(_SYSTEM)
    if due:
        attributes[f"delaybridge.{'delay' if due[0] == '+' else 'due'}_ms"] = int(due)
    if len(ids) == 1:
        named = str(getattr(ids[0], "id", ids[0]))
        attributes |= {"messaging.message.id": named, "delaybridge.message.id": named}
    else:
        attributes["messaging.batch.message_count"] = len(ids)
    return CallSpan(tracing, tracing.start(operation, "", "CLIENT", attributes)).around(steps)


def _readable(message: Message) -> Message:
    """The message with headers that can be read more than once."""
    headers = getattr(message, "headers", None)
    if not isinstance(headers, (Mapping, *_READ_AGAIN)) and isinstance(headers, Iterable):
        return replace(message, headers=list(headers))
    return message


def _headers_of(message: Message) -> Headers:
    """Its headers to look a context up in; malformed ones are left out, and refused later."""
    if isinstance(getattr(message, "properties", None), ContentHeader):
        return message.properties.table  # type: ignore[union-attr]
    headers = getattr(message, "headers", ())
    pairs = headers.items() if isinstance(headers, Mapping) else headers
    if not isinstance(pairs, Iterable):
        return ()
    return [(p[0], p[1]) for p in pairs if isinstance(p, tuple | list) and len(p) == 2]


def _with(message: Message, carrier: Carrier) -> Message:
    """The message with these headers, except those that it has itself."""
    own = _headers_of(message)
    if isinstance(own, bytes):
        added = carrier.keys() - carried(own, carrier).keys()
        table = own + encode_table((name, carrier[name]) for name in carrier if name in added)
        return replace(message, properties=message.properties._replace(table=table))  # type: ignore[union-attr]
    names = {name for name, _ in own}
    more = [(name, value) for name, value in carrier.items() if name not in names]
    headers = message.headers
    if isinstance(headers, Mapping):
        return replace(message, headers=[*headers.items(), *more])
    return (
        replace(message, headers=[*headers, *more]) if isinstance(headers, _READ_AGAIN) else message
    )


def _described(messages: Sequence[Message]) -> tuple[str, dict[str, Any]]:
    """The destination for the span's name, and the attributes."""
    attributes: dict[str, Any] = {**_SYSTEM, "messaging.operation.type": "send"}
    if len(messages) != 1:
        attributes["messaging.batch.message_count"] = len(messages)
    texts = {str(getattr(message, "destination", "")) for message in messages}
    if len(texts) != 1:
        return "", attributes
    (text,) = texts
    attributes["messaging.destination.name"] = text
    name, slash, routing_key = text.partition("/")
    if slash and routing_key:
        attributes["messaging.rabbitmq.destination.routing_key"] = routing_key
    if len(messages) == 1:
        attributes |= _of_one(messages[0], is_routed=bool(slash))
    return name if not name.endswith(":") else text, attributes


def _of_one(message: Message, *, is_routed: bool) -> dict[str, Any]:
    """The attributes of a span that creates one message."""
    found: dict[str, Any] = {}
    properties = message.properties if isinstance(message.properties, Mapping) else {}
    with suppress(MessageError):  # a wrong time is refused later
        if isinstance(message.delay, Gathering):
            pass  # the answer says when it is due
        elif message.delay is not None:
            found["delaybridge.delay_ms"] = times.delay_ms(message.delay)
        elif message.at is not None:
            now_ms = time.time_ns() // 1_000_000
            found["delaybridge.delay_ms"] = max(0, times.at_ms(message.at) - now_ms)
    if isinstance(conversation := properties.get("correlation_id"), str):
        found["messaging.message.conversation_id"] = conversation
    if isinstance(partition := properties.get("partition"), int):
        found["messaging.destination.partition.id"] = str(partition)
    if isinstance(key := message.key, bytes | str) and not is_routed:
        text = key if isinstance(key, str) else key.decode(errors="backslashreplace")
        found["messaging.kafka.message.key"] = text
    return found
