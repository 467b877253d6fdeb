"""The front's own connection in one vhost, with the user of `[brokers]`.

What is asked on it is asked again on the next connection if this one is lost, until a limit.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from copy import copy
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
from delaybridge.backoff import Backoff
from delaybridge.errors import PublishUnavailable

T = TypeVar("T")
RESOURCE_ERROR = 506
_TEXT_BYTES = 255
_FIRST_WAIT_S, _LONGEST_WAIT_S = 0.05, 2.0


class Refused(Exception):
    """A client's method is refused: its channel is to be closed with this code and text.

    The text has at most 255 bytes; if it is longer, `remedy`, its end, is kept whole.
    """

    def __init__(self, code: int, text: str, remedy: str = "") -> None:
        most = max(_TEXT_BYTES - len(remedy.encode()), 0)
        said = text.encode()[:most].decode(errors="ignore") + remedy
        self.code, self.text = code, said.encode()[:_TEXT_BYTES].decode(errors="ignore")
        super().__init__(f"{code} {self.text}")


class Link:
    """Opened when it is first needed, and again when it was lost.

    nodes: host and port of others of the cluster; if one cannot be reached, the next is tried.
    """

    def __init__(
        self, broker: str, parameters: Parameters, nodes: Iterable[tuple[str, int]] = ()
    ) -> None:
        self._broker, self._parameters = broker, parameters
        self._nodes = list(dict.fromkeys([(parameters.host, parameters.port), *nodes]))
        self._connection: WireConnection | None = None
        self._opening: asyncio.Task[WireConnection] | None = None
        self._backoff = Backoff(_FIRST_WAIT_S, _LONGEST_WAIT_S)
        self._why = "no answer"

    async def ask(
        self, operation: Callable[[WireConnection], Awaitable[T]], limit_s: float, what: str
    ) -> T:
        """The result of an operation that may be repeated; Refused with 506 after the limit.

        Raises the broker's refusal (`close_code`) at once. what: is shown if it cannot be done.
        """
        try:
            async with asyncio.timeout(limit_s):
                while True:
                    try:
                        return await operation(await self._connected())
                    except (AMQPError, PublishUnavailable) as exc:
                        if close_code(exc) is not None:
                            raise
                        self._why = reason_of(exc)
                    await asyncio.sleep(_FIRST_WAIT_S)
        except TimeoutError:
            raise Refused(
                RESOURCE_ERROR,
                f"RESOURCE_ERROR - {what} not within {limit_s:g} s at broker {self._broker}: "
                f"{self._why}",
                "; try again",
            ) from None

    async def close(self) -> None:
        """Close the connection; what is asked later opens another."""
        if self._opening is not None:
            self._opening.cancel()
            await asyncio.wait([self._opening])
        if self._connection is not None:
            await close_connection(self._connection)

    async def _connected(self) -> WireConnection:
        if self._connection is not None and self._connection.is_open:
            return self._connection
        if self._opening is None:
            self._opening = asyncio.create_task(self._open())
            # Nothing may wait for it any more when it fails.
            self._opening.add_done_callback(lambda task: task.cancelled() or task.exception())
        return await asyncio.shield(self._opening)  # others wait for it, too

    async def _open(self) -> WireConnection:
        try:
            opened = await open_connection(self._at(*self._nodes[0]), WireConnection)
        except PublishUnavailable as exc:
            self._nodes.append(self._nodes.pop(0))
            self._why = str(exc)
            await asyncio.sleep(self._backoff.next_s())
            raise
        else:
            self._backoff = Backoff(_FIRST_WAIT_S, _LONGEST_WAIT_S)
            self._why, self._connection = "no answer", opened
            return opened
        finally:
            self._opening = None

    def _at(self, host: str, port: int) -> Parameters:
        found = copy(self._parameters)
        if found.ssl_options is not None and host != found.host:
            found.ssl_options = SSLOptions(found.ssl_options.context, host)
        found.host, found.port = host, port
        return found
