"""Claims a delay exchange for a namespace: the broker keeps who reads it."""

from __future__ import annotations

from delaybridge.errors import ConfigError
from delaybridge.ingest.owner import Owner, SourceTaken
from delaybridge.ingest.rabbitmq.connection import IntakeConnection
from delaybridge.ingest.rabbitmq.topology import ALTERNATE, difference, owner_exchange, text_with
from delaybridge.ingest.routes import Route

_REFUSED = 403
_OF_ALTERNATE, _CURRENT = f"'{ALTERNATE}' for exchange ", " but current is "


async def claim(connection: IntakeConnection, route: Route, owner: Owner) -> str:
    """Claim the delay exchange for this namespace; SourceTaken if it is another's.

    Returns '', or why it is read without a claim (the user may not declare). The owner's name is
    kept as alternate exchange: the broker compares that, and shows the other's value if it differs.
    """
    try:
        other = await _other_owner(connection, route, owner)
        if other in owner.take_over:
            await connection.call_alone("exchange_delete", exchange=owner_exchange(route))
            other = await _other_owner(connection, route, owner)
        if other:
            raise SourceTaken(owner.refusal(route, other))
    except Exception as exc:
        if (refused := text_with(exc, _REFUSED)) is None:
            raise
        return (
            f"nothing keeps another namespace from reading it, too: {refused}; let the user "
            f"configure, write and read all that begins with {route.queue!r}"
        )
    return ""


async def _other_owner(connection: IntakeConnection, route: Route, owner: Owner) -> str:
    """Declare the exchange that keeps the owner. Returns the other owner, '' if it is this one."""
    prefix = f"{route.source}:"
    refused = await _declare_owner(connection, route, prefix + owner.name)
    if refused and not refused.endswith("'"):  # cut off; a short name leaves more room
        refused = await _declare_owner(connection, route, "-") or refused
    if not refused:
        return ""
    _, is_known, current = refused.partition(_OF_ALTERNATE)[2].rpartition(_CURRENT)
    current = current.removeprefix("the value ")
    if not (is_known and current.startswith("'")):
        what = f"exchange {owner_exchange(route)!r} was not declared by delaybridge; delete it"
        raise ConfigError(f"{route}: {what}")
    return current[1:].partition("'")[0].removeprefix(prefix)


async def _declare_owner(connection: IntakeConnection, route: Route, name: str) -> str:
    return await difference(
        connection, "exchange_declare", exchange=owner_exchange(route), exchange_type="fanout",
        durable=True, internal=True, arguments={ALTERNATE: name},
    )  # fmt: skip
