"""What a front makes of a delayed exchange at the broker: looked at, made, removed.

Each function works on one connection, and may be repeated wherever an earlier one ended.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import product
from typing import NamedTuple

from pika.exceptions import AMQPError

from delaybridge.amqp.connection import WireConnection, close_code
from delaybridge.front.link import Refused
from delaybridge.ingest.rabbitmq import emptiness, topology
from delaybridge.ingest.rabbitmq.deaths import expired
from delaybridge.ingest.routes import Route

PRECONDITION_FAILED = 406
_REFUSED = 403
_LOOKS, _AGAIN_S = 5, 0.2  # before an exchange is called foreign: a marker may be on its way
_LOCK_AGAIN_S, _UNLOCK_S = 0.05, 1.0
_NO_TYPES = {  # of a new D, as the plugin says it
    None: "'x-delayed-type' must be an existing exchange type",
    b"x-delayed-message": "'x-delayed-message' can't be used for 'x-delayed-type'",
}
_FLAG_DIFFERS = re.compile(r"PRECONDITION_FAILED - inequivalent arg '(durable|internal)' for exch")
_TYPE_DIFFERS = "inequivalent arg 'type' for exchange"
_OF_PLUGIN = "current is ''x-delayed-message''"
_TOO_OLD = re.compile("Invalid x-match|invalid arg 'x-")


class _Seen(NamedTuple):
    """Which of an exchange's objects exist: D, D.due, the marker and the intake queue."""

    source: bool
    target: bool
    marker: bool
    queue: bool


async def _seen(connection: WireConnection, route: Route) -> _Seen:
    names = route.source, route.target, expired(route)
    asked = (topology.exists(connection, name) for name in names)
    queue = emptiness.has_queue(connection, route.queue)
    return _Seen(*await asyncio.gather(*asked, queue))


async def mark(
    connection: WireConnection, route: Route, type: bytes | None, adopt: bool
) -> bytes | None:
    """Put the marker, and return the type for D.due; Refused if D or D.due is foreign.

    None: D is of the plugin itself, and stays so. adopt: take a D.due that no front made.
    """
    seen = await _seen(connection, route)
    is_whole = seen.source and seen.target and seen.queue
    if seen.source and not is_whole and (text := await _why_foreign(connection, route)):
        if text.endswith(_OF_PLUGIN):
            return None
        raise Refused(PRECONDITION_FAILED, _as_declared(text))
    for _ in range(_LOOKS):
        if adopt or not seen.target or seen.marker or seen.queue:
            break
        await asyncio.sleep(_AGAIN_S)
        seen = await _seen(connection, route)
    else:
        raise Refused(
            PRECONDITION_FAILED,
            f"PRECONDITION_FAILED - exchange '{route.target}' exists and was not made by a front",
            "; set another front.suffix, or front.adopt (--adopt) to take it",
        )
    if not (seen.source and seen.target) and (fault := _NO_TYPES.get(type)):
        raise Refused(PRECONDITION_FAILED, f"PRECONDITION_FAILED - Invalid argument, {fault}")
    method, about = next(topology.declarations(route))
    await connection.call_alone(method, **about)
    if seen.target and (has := await topology.type_of(connection, route.target)):
        return has.encode()
    return b"direct" if type is None else type


async def begun(connection: WireConnection, route: Route) -> bool:
    """Whether a marker is there, and D is no exchange of others. Waits while one is made."""
    is_marked = await topology.exists(connection, expired(route))
    return is_marked and not await _why_foreign(connection, route)


async def _why_foreign(connection: WireConnection, route: Route) -> str:
    """`_differs` under the lock, if D is still there."""
    async with _locked(connection, route):
        is_there = await topology.exists(connection, route.source)
        return await _differs(connection, route) if is_there else ""


async def make(connection: WireConnection, route: Route, durable: bool, internal: bool) -> None:
    """Declare the queues, then D with its binding. Equal ones are left as they are."""
    async with _locked(connection, route):
        await topology.take_steps(connection, *topology.declarations(route, durable, internal))


async def unmark(connection: WireConnection, route: Route) -> None:
    """Take the marker away if it marks nothing."""
    async with _locked(connection, route):
        seen = await _seen(connection, route)
        if not (seen.target or seen.queue):
            about = {"exchange": expired(route), "if_unused": True}
            await connection.call_alone("exchange_delete", **about)


async def sweep(connection: WireConnection, route: Route) -> None:
    """Delete a D whose D.due is gone, unless it is another exchange of that name."""
    if not await topology.exists(connection, route.source):
        return
    async with _locked(connection, route):
        if await topology.exists(connection, route.target):
            return
        is_there = await topology.exists(connection, route.source)
        if is_there and not await _differs(connection, route):
            await connection.call_alone("exchange_delete", exchange=route.source)


async def _differs(connection: WireConnection, route: Route) -> str:
    """Why an exchange D that exists is not one that a front made, whatever its flags; else ''.

    Under the lock: this would make one that does not exist.
    """
    text = ""
    for internal, durable in product((False, True), (True, False)):
        steps = topology.declarations(route, durable, internal)
        made = (about for method, about in steps if method == "exchange_declare")
        (about,) = (about for about in made if about["exchange"] == route.source)
        text = await topology.difference(connection, "exchange_declare", **about)
        if not _FLAG_DIFFERS.match(text):
            break
    return text


@asynccontextmanager
async def _locked(connection: WireConnection, route: Route) -> AsyncIterator[None]:
    """Alone with D among all fronts and ingest processes."""
    while not await topology.try_lock(connection, route):
        await asyncio.sleep(_LOCK_AGAIN_S)
    try:
        yield
    finally:
        try:
            async with asyncio.timeout(_UNLOCK_S):
                await topology.unlock(connection, route)
        except (AMQPError, TimeoutError):
            connection.abort("a lock could not be given back")


def refusal_of(route: Route, exc: AMQPError) -> Refused:
    """The broker's refusal, with what to do about it if that is known."""
    code, text = close_code(exc) or (0, "")
    if code == _REFUSED:
        # The expression is the operator's to set: the client did nothing wrong.
        right = f"^{re.escape(route.source)}"
        return Refused(code, text, f"; let the front's user configure, write and read '{right}'")
    if code == PRECONDITION_FAILED and _TOO_OLD.search(text):
        return Refused(code, f"PRECONDITION_FAILED - RabbitMQ 3.10 or later is needed: {text}")
    return Refused(code, _as_declared(text))


def _as_declared(text: str) -> str:
    """The broker's text with the type that the client sent, quoted as the plugin's."""
    if _TYPE_DIFFERS not in text:
        return text
    return text.replace("received 'headers' but", "received ''x-delayed-message'' but")
