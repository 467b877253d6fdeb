"""RabbitMQ: publisher confirms, `mandatory`, pipelined; one channel per exchange.

`amqp_wire` is the connection and its frames, `amqp_exchange` one exchange's channel,
`amqp_channel` which outcome each delivery gets. This is what holds them: one connection, kept up.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any
from urllib.parse import parse_qs, quote, urlencode, urlsplit

import pika
from pika.connection import Parameters
from pika.credentials import PlainCredentials
from pika.exceptions import AMQPError, ConnectionClosedByBroker

from delaybridge.amqp.connection import (
    WireConnection,
    close_channel,
    close_code,
    open_connection,
    reason_of,
)
from delaybridge.errors import DETAIL_LIMIT, ConfigError, PublishUnavailable, printable
from delaybridge.message import Delivery, Destination
from delaybridge.publish import (
    Fault,
    Outcome,
    PublishOptions,
    Report,
    Verdict,
    check_options,
    read_password,
)
from delaybridge.publish.link import CLOSED, CLOSING, UNCONFIRMED, LinkedPublisher
from delaybridge.publish.rabbitmq.channel import refusal
from delaybridge.publish.rabbitmq.exchange import ANSWER_TIMEOUT_S, Exchange
from delaybridge.settings import password_file
from delaybridge.settings.password_file import PasswordFile

CONNECT_TIMEOUT_S, HANDSHAKE_TIMEOUT_S = 5.0, 10.0
GOODBYE_TIMEOUT_S = 1.0
MAX_EXCHANGES = 1000  # with a channel each; a broker allows 2047 by default

_SETTER = "_set_url_"  # of pika's, one for each option
_OPTIONS = {n.removeprefix(_SETTER) for n in dir(pika.URLParameters) if n.startswith(_SETTER)}
_NORMAL_CLOSES = (200, 320)  # closed on purpose: no message is the reason


class RabbitMQPublisher(LinkedPublisher):
    """A `Publisher` for one RabbitMQ. Confirmed means: on every queue it was routed to."""

    def __init__(
        self,
        name: str,
        parameters: Parameters,
        *,
        report: Report,
        on_change: Callable[[], None],
        options: PublishOptions,
    ) -> None:
        super().__init__(name, report=report, on_change=on_change)
        self._parameters = parameters
        self._login = getattr(parameters.credentials, "username", "").encode()
        self._timeout_s = options.confirm_timeout_s
        self._exchanges: dict[str, Exchange] = {}
        self._connection: WireConnection | None = None
        self._timer: asyncio.TimerHandle | None = None

    def _send(self, deliveries: Sequence[Delivery]) -> None:
        connection = self._connection
        if connection is None:
            self._refuse(deliveries)
            return
        by_exchange: dict[str, list[Delivery]] = {}
        for delivery in deliveries:
            by_exchange.setdefault(delivery.destination.address, []).append(delivery)
        for name, batch in by_exchange.items():
            self._exchange(name).publish(batch, connection)

    async def check(self, destination: Destination) -> str | None:
        """Why this destination would be refused as things stand, None if nothing is known."""
        connection = self._connection
        if self.unavailable is not None or connection is None:
            return self.unavailable or CLOSING
        try:
            async with asyncio.timeout(ANSWER_TIMEOUT_S):
                channel = await connection.open_channel(lambda *_: None)
                if destination.address:
                    await connection.look_up(channel, destination.address)
                else:
                    await connection.look_up_queue(channel, destination.routing_key)
        except TimeoutError:
            return f"no_answer: within {ANSWER_TIMEOUT_S:g} s"
        except AMQPError as exc:
            return _check_reason(exc, destination)
        close_channel(channel)
        return None

    async def limits(self) -> dict[str, int]:
        """The most bytes of one frame; a message's headers and properties have to fit in one."""
        return {} if self._connection is None else {"frame": self._connection.params.frame_max}

    def describe(self) -> str:
        """One line for people. No secrets."""
        at = f"{self._parameters.host}:{self._parameters.port}"
        vhost = quote(self._parameters.virtual_host, safe="")
        tls = "TLS" if self._parameters.ssl_options is not None else "no TLS"
        connection = self._connection
        if connection is None:
            return f"RabbitMQ at {at}/{vhost}, {tls}: {self.unavailable}"
        properties: dict[str, Any] = connection.server_properties or {}
        version = printable(str(properties.get("version", "of unknown version")))
        heartbeat = f"heartbeat {connection.params.heartbeat} s"
        return f"RabbitMQ {version} at {at}/{vhost}, {tls}, confirms, mandatory, {heartbeat}"

    # the connection

    async def _session(self) -> None:
        try:
            connection = await open_connection(self._parameters, WireConnection)
        except PublishUnavailable as exc:
            self._change(str(exc))
        else:
            self._connected(connection)
            await self._until_lost(connection)

    def _connected(self, connection: WireConnection) -> None:
        connection.add_on_connection_blocked_callback(self._blocked)
        connection.add_on_connection_unblocked_callback(self._unblocked)
        self._connection = connection
        self._opened()

    async def _until_lost(self, connection: WireConnection) -> None:
        # Shielded: what cancels this task must not mark the connection as lost.
        reason = await asyncio.shield(connection.lost)
        shown = f"connection_lost: {reason_of(reason)}"
        is_suspicious = (
            isinstance(reason, ConnectionClosedByBroker) and reason.reply_code not in _NORMAL_CLOSES
        )
        self._disconnected(shown, shown, is_suspicious=is_suspicious)

    def _disconnected(self, reason: str, unavailable: str, *, is_suspicious: bool = False) -> None:
        self._connection = None
        self._change(unavailable)
        unknown = Outcome(Verdict.UNKNOWN, reason, Fault.BROKER)
        for exchange in self._exchanges.values():
            exchange.connection_lost(unknown, is_suspicious=is_suspicious)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _blocked(self, _: object, frame: Any) -> None:
        reason = f"blocked: {printable(str(frame.method.reason))}"[:DETAIL_LIMIT]
        if self._connection is not None:
            self._connection.is_blocked = True
        self._change(reason)
        for exchange in self._exchanges.values():
            exchange.refuse_waiting(reason)

    def _unblocked(self, *_: object) -> None:
        if self._connection is not None:
            self._connection.is_blocked = False
        self._change(None)

    def _is_idle(self) -> bool:
        return all(exchange.line.is_idle for exchange in self._exchanges.values())

    async def _disconnect(self) -> None:
        connection = self._connection
        self._disconnected(UNCONFIRMED, CLOSED)
        self._reports.flush()
        if connection is not None:
            await _say_goodbye(connection)

    # exchanges

    def _exchange(self, name: str) -> Exchange:
        exchange = self._exchanges.get(name)
        if exchange is None:
            if len(self._exchanges) >= MAX_EXCHANGES:
                self._release_exchanges()
            exchange = Exchange(name, self._reports, self._login, self._arm)
            self._exchanges[name] = exchange
        return exchange

    def _release_exchanges(self) -> None:
        for name, exchange in list(self._exchanges.items()):
            exchange.release()
            if exchange.is_unused:
                del self._exchanges[name]

    # confirms that do not come

    def _arm(self) -> None:
        if self._timer is None:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(self._timeout_s, self._expire)

    def _expire(self) -> None:
        self._timer = None
        loop = asyncio.get_running_loop()
        outcome = Outcome(Verdict.UNKNOWN, f"confirm_timeout: none within {self._timeout_s:g} s")
        before_s = loop.time() - self._timeout_s
        looks = (exchange.expire(before_s, outcome) for exchange in self._exchanges.values())
        left = [oldest_s for oldest_s in list(looks) if oldest_s is not None]
        if left:
            self._timer = loop.call_at(min(left) + self._timeout_s, self._expire)


async def _say_goodbye(connection: WireConnection) -> None:
    if connection.is_open:
        connection.close()
        await asyncio.wait([connection.lost], timeout=GOODBYE_TIMEOUT_S)
    connection.abort("closed")
    await asyncio.wait([connection.lost], timeout=GOODBYE_TIMEOUT_S)


def _check_reason(exc: AMQPError, destination: Destination) -> str:
    if (closed := close_code(exc)) is None:
        return f"not_connected: {reason_of(exc)}"
    outcome = refusal(*closed)
    reason = reason_of(exc) if outcome is None else outcome.reason
    return reason if destination.address else reason.replace("exchange_missing", "queue_missing")


def publisher(
    name: str,
    url: str,
    *,
    report: Report,
    on_change: Callable[[], None],
    options: PublishOptions,
) -> RabbitMQPublisher:
    """A publisher for an amqp:// or amqps:// URL; what follows `?` is as in pika.URLParameters.

    amqps:// verifies certificate and host name. ConfigError for a URL that is none.
    """
    parameters = parameters_of(name, url, options)
    return RabbitMQPublisher(name, parameters, report=report, on_change=on_change, options=options)


class FileCredentials(PlainCredentials):  # type: ignore[misc]  # pika is untyped
    """User and password, the latter as it stands in its file at each connect."""

    def __init__(self, user: str, file: PasswordFile) -> None:
        super().__init__(user, "")
        self._file = file

    def response_for(self, start: Any) -> Any:
        """As pika asks for it. Raises if the file cannot be read: the connection fails."""
        self.password = self._file.read()
        try:
            return super().response_for(start)
        finally:
            self.password = ""


def _fault(given: Mapping[str, Sequence[str]]) -> str:
    """What is wrong with a URL that pika refuses; its own text may hold the password."""
    for option, values in given.items():
        try:
            pika.URLParameters(f"amqps://h/?{urlencode({option: values[0]})}")
        except Exception:
            return f"pika does not take the value of {option}; correct it or leave it out"
        if len(values) > 1:
            return f"{option} is given more than once; leave one"
    return "pika does not take the URL; write amqp[s]://USER:PASSWORD@HOST:PORT/VHOST"


def parameters_of(name: str, url: str, options: PublishOptions) -> Parameters:
    """How to connect to the broker at `url`; ConfigError for a URL that is none."""
    text, file = password_file.split(url)
    if file is not None:
        text = text.replace("@", ":@", 1)  # pika takes no user without a password
    given = parse_qs(urlsplit(text).query, keep_blank_values=True)
    check_options(name, given, _OPTIONS, "a RabbitMQ URL")
    try:
        parameters = pika.URLParameters(text)
    except Exception:
        raise ConfigError(f"brokers.{name}: {_fault(given)}") from None
    if file is not None:
        read_password(name, file)
        parameters.credentials = FileCredentials(parameters.credentials.username, file)
    parameters.connection_attempts = 1  # the back-off is ours
    parameters.client_properties = {
        "product": "delaybridge",
        "connection_name": f"delaybridge {name}",
    }
    defaults = {
        "heartbeat": options.heartbeat_s,
        "blocked_connection_timeout": options.blocked_connection_timeout_s,
        "socket_timeout": CONNECT_TIMEOUT_S,
        "stack_timeout": HANDSHAKE_TIMEOUT_S,
    }
    for option, value in defaults.items():
        if option not in given:
            setattr(parameters, option, value)
    return parameters
