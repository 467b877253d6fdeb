"""The front's own connection in one vhost, with the user of `[brokers]`.

What is asked on it is asked again on the next connection if this one is lost, until a limit.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from copy import copy
from itertools import cycle
from typing import TypeVar

from pika.connection import Parameters, SSLOptions
from pika.exceptions import AMQPError

from delaybridge.amqp.connection import (
    WireConnection,
    close_code,
    close_connection,
    open_connection,
    reason_of,
)
from delaybridge.errors import PublishUnavailable
from delaybridge.front.methods import TEXT_BYTES

T = TypeVar("T")
Operation = Callable[[WireConnection], Awaitable[T]]
RESOURCE_ERROR = 506
_AGAIN_S = 0.1  # between two attempts


class Refused(Exception):
    """A client's method is refused: its channel is to be closed with this code and text.

    The text has at most 255 bytes; if it is longer, `remedy`, its end, is kept whole.
    """

    def __init__(self, code: int, text: str, remedy: str = "") -> None:
        most = max(TEXT_BYTES - len(remedy.encode()), 0)
        said = text.encode()[:most].decode(errors="ignore") + remedy
        self.code, self.text = code, said.encode()[:TEXT_BYTES].decode(errors="ignore")
        super().__init__(f"{code} {self.text}")


class Link:
    """Opened when it is first needed, and again when it was lost.

    nodes: host and port of others of the cluster; each time it is opened, the next is tried.
    """

    def __init__(
        self, broker: str, parameters: Parameters, nodes: Iterable[tuple[str, int]] = ()
    ) -> None:
        self._broker = broker
        all_nodes = dict.fromkeys([(parameters.host, parameters.port), *nodes])
        self._nodes = cycle([_at(parameters, *node) for node in all_nodes])
        self._connection: WireConnection | None = None
        self._opening = asyncio.Lock()

    async def ask(self, operation: Operation[T], limit_s: float, what: str) -> T:
        """The result of an operation that may be repeated; Refused with 506 after the limit.

        Raises the broker's refusal (`close_code`) at once. what: is shown if it cannot be done.
        """
        why = "no answer"
        try:
            async with asyncio.timeout(limit_s):
                while True:
                    try:
                        return await operation(await self._connected())
                    except (AMQPError, PublishUnavailable) as exc:
                        if close_code(exc) is not None:
                            raise
                        why = str(exc) if isinstance(exc, PublishUnavailable) else reason_of(exc)
                    await asyncio.sleep(_AGAIN_S)
        except TimeoutError:
            raise Refused(
                RESOURCE_ERROR,
                f"RESOURCE_ERROR - {what} not within {limit_s:g} s at broker {self._broker}: {why}",
                "; try again",
            ) from None

    async def close(self) -> None:
        """Close the connection; what is asked later opens another."""
        if self._connection is not None:
            await close_connection(self._connection)

    async def _connected(self) -> WireConnection:
        async with self._opening:
            if self._connection is None or not self._connection.is_open:
                self._connection = await open_connection(next(self._nodes), WireConnection)
            return self._connection


def _at(parameters: Parameters, host: str, port: int) -> Parameters:
    found = copy(parameters)
    if found.ssl_options is not None and host != found.host:
        found.ssl_options = SSLOptions(found.ssl_options.context, host)
    found.host, found.port = host, port
    return found
