"""The validation that every entrance uses, before anything is written.

It needs neither broker nor store. Each refusal is a `MessageError` with a code, the field and the
remedy.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from datetime import datetime, timedelta

import msgspec

from delaybridge import times
from delaybridge.accept.destination import DestinationCache
from delaybridge.accept.headers import encode_headers, partition_of
from delaybridge.accept.plan import check_plan
from delaybridge.errors import DelayOutOfRange, MessageError, shown
from delaybridge.message import (
    PULL,
    TENANT_CHARS,
    Destination,
    Limits,
    Message,
    Record,
    encode_record,
    id_as_given,
    id_in_store,
    is_tenant,
    new_id,
    planned,
    rank_of,
)


class Accepted(msgspec.Struct, frozen=True, gc=False):
    """A checked message, ready for `schedule`. `when`: epoch ms, or `+` and a delay in ms."""

    id: str
    shard_key: bytes
    when: str
    rank: int
    payload: bytes


def accept(
    message: Message,
    kinds: Mapping[str, str],
    limits: Limits,
    cache: DestinationCache | None = None,
    draw: Callable[[], str] = new_id,
) -> Accepted:
    """Check everything that can be checked without a broker; MessageError names the first fault.

    kinds: name of each configured broker -> its kind. cache: of the same kinds. draw: makes
    the id of a message that has none.
    """
    tenant = message.tenant and check_tenant(message.tenant)
    id = check_id(draw() if message.id is None else message.id, limits, tenant)
    cache = DestinationCache() if cache is None else cache
    destination, canonical = cache.parse(message.destination, kinds)
    if tenant and destination.kind == PULL:
        destination, canonical = cache.parse(of_tenant(canonical, tenant), kinds)
    elif owner := tenant_of_topic(destination):  # nobody else could finish it there
        id, tenant = check_id(id_as_given(id, owner), limits, owner), owner
    key = _short_key(message.key, limits)
    record = Record(
        canonical,
        _body_bytes(message.body, destination, limits),
        *encode_headers(message, destination, limits),
        key,
        partition_of(message.properties, destination),
        None if message.ttl is None else times.delay_ms(message.ttl, field="ttl"),
        _flag(message.at_most_once, "at_most_once"),
    )
    if destination.kind == PULL and message.at_most_once:
        what = "a pull topic has none: finish each message as soon as it is received"
        raise MessageError("bad_destination", "at_most_once", what)
    plan = check_plan(message.retry, kinds, destination)
    if plan is not None and message.at_most_once:
        what = "an at_most_once message is never tried again; give one of them"
        raise MessageError("bad_retry", "retry", what)
    return Accepted(
        id,
        id.encode() if key is None else key,
        when(message.delay, message.at, limits),
        rank_of(check_priority(message.priority)),
        encode_record(planned(record, plan, tenant)),
    )


def when(delay: timedelta | float | str | None, at: datetime | str | None, limits: Limits) -> str:
    """The due time as the scripts take it: `+` and ms for a delay, epoch ms for a time.

    MessageError unless exactly one of the two is given and valid; DelayOutOfRange if it is further
    ahead than `limits` allow.
    """
    if delay is not None and at is not None:
        raise MessageError("time_ambiguous", "delay", "both delay and at are given; give one")
    if delay is not None:
        wait_ms = times.delay_ms(delay)
        check_delay(wait_ms, limits, "delay")
        return f"+{wait_ms}"
    if at is not None:
        due_ms = times.at_ms(at)
        check_delay(due_ms - time.time_ns() // 1_000_000, limits, "at")
        return str(due_ms)
    raise MessageError("time_required", "delay", "neither delay nor at is given; give one")


def check_id(id: object, limits: Limits | None = None, tenant: str = "") -> str:
    """The id as it is stored: 1 to 255 bytes of printable UTF-8, no space at either end; of a
    tenant with its name in front, which counts. Else `bad_id`."""
    most = (limits or Limits()).id_bytes - len(id_in_store("", tenant))
    if not isinstance(id, str):
        raise MessageError("bad_id", "id", f"got {type(id).__name__}; give text")
    try:
        size = len(id.encode())
    except UnicodeEncodeError:
        raise MessageError("bad_id", "id", "not valid UTF-8") from None
    if not 1 <= size <= most:
        raise MessageError("bad_id", "id", f"{size} bytes; give 1 to {most}")
    if not id.isprintable() or id != id.strip():
        raise MessageError(
            "bad_id", "id", f"{id!r} holds an unprintable character, or a space at an end"
        )
    return id_in_store(id, tenant)


def _short_key(key: object, limits: Limits) -> bytes | None:
    found = check_key(key)
    if found is not None and len(found) > limits.body_bytes:
        most = limits.body_bytes
        what = f"{len(found):,} bytes; limits.body_bytes, {most:,}, also limits the key"
        raise MessageError("key_too_large", "key", what)
    return found


def of_tenant(destination: str, tenant: str) -> str:
    """A destination as a message of a tenant has it: of pull topics each tenant has its own."""
    own = f"{PULL}:{id_in_store('', tenant)}"
    if not tenant or not destination.startswith(f"{PULL}:") or destination.startswith(own):
        return destination
    return own + destination.removeprefix(f"{PULL}:")


def tenant_of_topic(destination: Destination) -> str:
    """Whose pull topic it is; empty if it is none, or everybody's."""
    if destination.kind != PULL:
        return ""
    return destination.address.rpartition("/")[0]


def check_tenant(name: object) -> str:
    """The name of a tenant; MessageError `bad_tenant`."""
    if not is_tenant(name):
        what = f"got {shown(name)}; give 1 to {TENANT_CHARS} of a-z A-Z 0-9 . _ -, no sign first"
        raise MessageError("bad_tenant", "tenant", what)
    return str(name)


def check_delay(wait_ms: int, limits: Limits, name: str) -> None:
    """DelayOutOfRange if a due time is further ahead than `limits` allow."""
    if wait_ms > limits.delay_ms:
        raise DelayOutOfRange(
            "too_far", name, f"{wait_ms} ms ahead; the limit (limits.delay) is {limits.delay_ms} ms"
        )


def check_key(key: object) -> bytes | None:
    """The key as bytes; MessageError `bad_key`."""
    if key is None or isinstance(key, bytes):
        return key
    if isinstance(key, str):
        try:
            return key.encode()
        except UnicodeEncodeError:
            raise MessageError("bad_key", "key", "not valid UTF-8; give bytes") from None
    raise MessageError("bad_key", "key", f"got {type(key).__name__}; give text or bytes")


def _body_bytes(body: object, destination: Destination, limits: Limits) -> bytes | None:
    if isinstance(body, bytes):
        pass
    elif body is None:
        if destination.kind != "kafka":
            raise MessageError("null_body", "body", "only Kafka takes null; give an empty body")
        return None
    elif isinstance(body, str):
        try:
            body = body.encode()
        except UnicodeEncodeError:
            raise MessageError(
                "bad_body", "body", "text with a lone surrogate; give bytes"
            ) from None
    elif isinstance(body, bytearray | memoryview):
        body = bytes(body)
    else:
        raise MessageError("bad_body", "body", f"got {type(body).__name__}; give bytes or text")
    check_body_size(body, destination.broker, limits)
    return body


def check_body_size(body: bytes, broker: str, limits: Limits) -> None:
    """MessageError `body_too_large` if it exceeds `limits.body_bytes`."""
    if len(body) > limits.body_bytes:
        raise MessageError(
            "body_too_large",
            "body",
            f"{len(body)} bytes for {broker}; the limit (limits.body_bytes) is {limits.body_bytes}",
        )


def check_priority(priority: object) -> int:
    if isinstance(priority, bool) or not isinstance(priority, int) or not 0 <= priority <= 255:
        raise MessageError("bad_priority", "priority", f"got {shown(priority)}; give 0 to 255")
    return priority


def _flag(value: object, name: str) -> bool:
    if not isinstance(value, bool):
        raise MessageError("bad_flag", name, f"got {shown(value)}; give true or false")
    return value
