"""Destinations and retry plans, checked.

A destination is written as `rabbitmq:EXCHANGE/ROUTING.KEY`, `kafka:TOPIC` and so on.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any
from urllib.parse import unquote

from delaybridge import late
from delaybridge.backoff import ATTEMPTS_LIMIT, FACTOR_LIMIT, WAIT_LIMIT_MS
from delaybridge.errors import MessageError, nearest, quoted
from delaybridge.message import (
    PULL,
    TENANT,
    TENANT_CHARS,
    Destination,
    Message,
    MessagePlan,
    Retry,
    id_in_store,
    is_tenant,
)

_TOPIC = r"(?!\.\.?\Z)[a-zA-Z0-9._-]{1,249}"
_TOPICS = {
    "kafka": late.pattern(_TOPIC),
    PULL: late.pattern(rf"(?:{TENANT}/)?{_TOPIC}"),  # tenants have their own
}
_PATH_CHAR = r"(?:[A-Za-z0-9._~!$&'()*+,;=:@/-]|%[0-9A-Fa-f]{2})"
_PATH = late.pattern(rf"{_PATH_CHAR}+(?:\?(?:{_PATH_CHAR}|\?)*)?")
_ODD = late.pattern(r"[\x00-\x1f\x7f%\\]")  # in a path that was decoded once
_NO_NAMES = frozenset({"", ".", ".."})


def parse_destination(text: object, kinds: Mapping[str, str]) -> Destination:
    """Parse `rabbitmq:EXCHANGE/ROUTING.KEY`, `kafka:TOPIC`, ...; MessageError for anything else.

    The part before the colon is the name of a configured broker, or `pull`. In the
    name of an exchange, write a slash as `%2F` and a per cent sign as `%25`.
    """
    if not isinstance(text, str) or not text:
        raise _bad(f"got {quoted(text)}; write BROKER:ADDRESS")
    broker, colon, address = text.partition(":")
    if not colon:
        raise _bad(f"{quoted(text)} has no colon: BROKER:ADDRESS")
    kind = PULL if broker == PULL else kinds.get(broker)
    if kind is None or address.startswith("//"):
        raise MessageError("unknown_destination", "destination", unknown_broker(text, kinds))
    destination = (
        _rabbitmq(broker, address) if kind == "rabbitmq" else Destination(broker, kind, address)
    )
    _check_address(destination)
    return destination


def _rabbitmq(broker: str, address: str) -> Destination:
    exchange, slash, routing_key = address.partition("/")
    if not slash:
        raise _bad(
            f"{quoted(address)} has no slash: {broker}:EXCHANGE/ROUTING.KEY, or {broker}:/QUEUE"
        )
    try:
        exchange = unquote(exchange, errors="strict")
    except UnicodeDecodeError:
        raise _bad("the exchange is not UTF-8") from None
    return Destination(broker, "rabbitmq", exchange, routing_key)


def _check_address(destination: Destination) -> None:
    address, routing_key = destination.address, destination.routing_key
    if destination.kind == "rabbitmq":
        for part, what in ((address, "exchange"), (routing_key, "routing key")):
            _short_text(part, what)
        if not address and not routing_key:
            raise _bad("the queue's name is missing")
    elif (topic := _TOPICS.get(destination.kind)) is not None:
        if not topic.fullmatch(address):
            raise _bad(f"{quoted(address)} is not a topic name; use 1 to 249 of a-z A-Z 0-9 . _ -")
    else:
        _check_text(address, destination.kind)


def _check_text(address: str, kind: str) -> None:
    _short_text(address, "address")
    if kind == "http":
        check_path(address)
    if not address:
        raise _bad("the address is empty")
    if kind in ("redis", "kombu") and address.startswith("{"):
        # Its Redis may be the one that messages wait in.
        raise _bad(f"{quoted(address)} begins with '{{', as keys of delaybridge do")


def check_path(path: str) -> None:
    """MessageError unless it is a path below the broker's own, however the host reads it.

    Some hosts take `..;` for `..` and a backslash for a slash, decode twice, or stop at NUL.
    """
    place = _decoded(path.partition("?")[0])
    names = {segment.partition(";")[0] for segment in place.split("/")}
    if not _PATH.fullmatch(path) or "%00" in path or _ODD.search(place) or names & _NO_NAMES:
        what = "write PATH or PATH?QUERY, percent-encoded, without . or .. or an empty part"
        raise _bad(f"{quoted(path)} is not a path; {what}, backslash, %25, %00")


def _decoded(path: str) -> str:
    try:
        return unquote(path, errors="strict")
    except UnicodeDecodeError:  # also what decodes to dots with too many bytes
        raise _bad(f"{quoted(path)} is not UTF-8") from None


def _short_text(text: str, what: str) -> None:
    try:
        size = len(text.encode())
    except UnicodeEncodeError:
        raise _bad(f"the {what} is not UTF-8") from None
    if size > 255 or "\0" in text:
        raise _bad(f"the {what} has {size} bytes; at most 255, no NUL")


def unknown_broker(text: str, kinds: Iterable[str], meant: str | None = None) -> str:
    """What is wrong with an address whose broker none of `kinds` is. meant: a better one."""
    if "//" in text:
        return "a URL is not a destination; configure the broker and name it: BROKER:ADDRESS"
    broker, colon, address = text.partition(":")
    known = sorted(kinds)
    near = nearest(broker, known, 3)
    configured = ", ".join(near or known[:5]) or "none"
    what = f"no broker is named {quoted(broker)}; configured: {configured}"
    if meant is None and near:
        meant = f"{near[0]}{colon}{address}"
    return what if meant is None else f"{what}; did you mean {quoted(meant)}?"


def _bad(detail: str) -> MessageError:
    return MessageError("bad_destination", "destination", detail)


_FIELDS = MessagePlan.__struct_fields__
_WHOLE = {"max_attempts": ATTEMPTS_LIMIT, "base_ms": WAIT_LIMIT_MS, "max_ms": WAIT_LIMIT_MS}


def check_plan(
    plan: Retry,
    kinds: Mapping[str, str],
    destination: Destination | None = None,
    *,
    to_dead_set: bool = False,
) -> MessagePlan | None:
    """The plan with valid fields only; None if it sets none.

    kinds: name of each configured broker -> its kind. destination: that of the messages. The
    dead-letter destination must be another one, at a broker of the same kind. to_dead_set: it may
    be empty, which means the dead set. MessageError `bad_retry` names the field at fault, as
    `retry.max_attempts`.
    """
    if plan is None:
        return None
    given = {name: value for name, value in _fields_given(plan) if value is not None}
    checked = {name: _checked_field(name, value) for name, value in given.items()}
    base_ms, max_ms = checked.get("base_ms", 1), checked.get("max_ms", WAIT_LIMIT_MS)
    if base_ms > max_ms:
        raise _bad_retry("base_ms", f"{base_ms} ms is above max_ms, {max_ms} ms")
    if "dead_letter" in checked and not (to_dead_set and checked["dead_letter"] == ""):
        checked["dead_letter"] = _dead_letter(checked["dead_letter"], kinds, destination)
    return MessagePlan(**checked) if checked else None


def _fields_given(plan: object) -> list[tuple[str, Any]]:
    if isinstance(plan, MessagePlan):
        return [(name, getattr(plan, name)) for name in _FIELDS]
    if not isinstance(plan, Mapping):
        what = f"got {quoted(plan)}; give a MessagePlan or a mapping, as {{'max_attempts': 3}}"
        raise MessageError("bad_retry", "retry", what)
    for name in plan:
        if name not in _FIELDS:
            near = nearest(name, _FIELDS)
            hint = f"did you mean {near[0]}?" if near else f"known: {', '.join(_FIELDS)}"
            raise MessageError("bad_retry", "retry", f"{quoted(name)} is unknown; {hint}")
    return list(plan.items())


def _checked_field(name: str, value: Any) -> Any:
    """The value of a field by itself."""
    if name == "dead_letter":
        return value
    if name in _WHOLE:
        if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= _WHOLE[name]:
            what = "whole milliseconds" if name.endswith("_ms") else "a whole number"
            raise _bad_retry(name, f"got {quoted(value)}; give {what} from 1 to {_WHOLE[name]}")
        return int(value)
    number = value if isinstance(value, int | float) and not isinstance(value, bool) else -1
    if name == "factor" and not 1 < number <= FACTOR_LIMIT:
        raise _bad_retry(
            name, f"got {quoted(value)}; give a number above 1, at most {FACTOR_LIMIT:.0f}"
        )
    if name == "jitter" and not 0 <= number <= 1:
        raise _bad_retry(name, f"got {quoted(value)}; give a share from 0 to 1")
    return float(number)


def _dead_letter(text: object, kinds: Mapping[str, str], source: Destination | None) -> str:
    try:
        to = parse_destination(text, kinds)
    except MessageError as exc:
        raise _bad_retry("dead_letter", exc.detail) from None
    if to.kind == PULL:
        raise _bad_retry("dead_letter", "a pull topic takes none; name a broker's destination")
    if source is not None and to == source:
        raise _bad_retry("dead_letter", "it is the destination itself; give another one")
    if source is not None and to.kind != source.kind:
        what = f"broker {to.broker!r} is of kind {to.kind}; give one of kind {source.kind}"
        raise _bad_retry("dead_letter", what)
    return str(to)


def _bad_retry(name: str, what: str) -> MessageError:
    return MessageError("bad_retry", f"retry.{name}", what)


def plan_of(
    message: Message, kinds: Mapping[str, str], destination: Destination
) -> MessagePlan | None:
    """The retry plan of a message; MessageError `bad_retry`."""
    plan = check_plan(message.retry, kinds, destination)
    if plan is not None and message.at_most_once:
        what = "an at_most_once message is never tried again; give one of them"
        raise MessageError("bad_retry", "retry", what)
    return plan


def of_tenant(destination: str, tenant: str) -> str:
    """A destination as a message of a tenant has it: of pull topics each tenant has its own."""
    own = f"{PULL}:{id_in_store('', tenant)}"
    if not tenant or not destination.startswith(f"{PULL}:") or destination.startswith(own):
        return destination
    return own + destination.removeprefix(f"{PULL}:")


def tenant_of_topic(destination: Destination) -> str:
    """Whose pull topic it is; empty if it is another destination, or a topic of all."""
    if destination.kind != PULL:
        return ""
    return destination.address.rpartition("/")[0]


def check_tenant(name: object) -> str:
    """The name of a tenant; MessageError `bad_tenant`."""
    if not is_tenant(name):
        what = f"got {quoted(name)}; give 1 to {TENANT_CHARS} of a-z A-Z 0-9 . _ -, no sign first"
        raise MessageError("bad_tenant", "tenant", what)
    return str(name)
