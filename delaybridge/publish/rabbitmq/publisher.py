"""Publishes to RabbitMQ: one connection, kept up, with a channel for each exchange.

Every publish is `mandatory` and confirmed. `exchange.py` is one exchange's channel; `channel.py`
decides which outcome each delivery gets.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import parse_qs, quote, urlencode, urlsplit

import pika
from pika.connection import Parameters
from pika.credentials import PlainCredentials
from pika.exceptions import AMQPError, ConnectionClosedByBroker

from delaybridge.amqp.connection import (
    WireConnection,
    close_code,
    close_connection,
    open_connection,
    reason_of,
)
from delaybridge.errors import DETAIL_LIMIT, ConfigError, PublishUnavailable, printable
from delaybridge.message import Delivery, Destination
from delaybridge.publish import (
    Fault,
    Outcome,
    PublishOptions,
    Verdict,
    check_options,
    read_password,
)
from delaybridge.publish.link import CLOSED, CLOSING, UNCONFIRMED, LinkedPublisher
from delaybridge.publish.rabbitmq.channel import refusal
from delaybridge.publish.rabbitmq.exchange import AT_ONCE, ExchangeChannel, Openings
from delaybridge.settings import password_file
from delaybridge.settings.password_file import PasswordFile

CONNECT_TIMEOUT_S, HANDSHAKE_TIMEOUT_S = 5.0, 10.0

_SETTER = "_set_url_"  # pika's prefix of the method that sets an option


class URLParameters(pika.URLParameters):  # type: ignore[misc]  # pika is untyped
    """pika's, with one option more. proxy_protocol: the broker expects its header."""

    proxy_protocol = False

    def _set_url_proxy_protocol(self, value: str) -> None:
        self.proxy_protocol = {"true": True, "false": False}[value]


_OPTIONS = {n.removeprefix(_SETTER) for n in dir(URLParameters) if n.startswith(_SETTER)}


class FileCredentials(PlainCredentials):  # type: ignore[misc]  # pika is untyped
    """A user, and a password that is read from its file whenever it is used."""

    def __init__(self, user: str, file: PasswordFile) -> None:
        self._file = file
        super().__init__(user, "")

    @property
    def password(self) -> str:
        """The password in the file now; ValueError if it cannot be read."""
        return self._file.read()

    @password.setter
    def password(self, _: str) -> None:
        """Ignored: pika sets it once, when it is made."""


def _fault(given: Mapping[str, Sequence[str]]) -> str:
    """The reason why pika refuses a URL. pika's own text is not used: it may hold the password."""
    for option, values in given.items():
        try:
            URLParameters(f"amqps://h/?{urlencode({option: values[0]})}")
        except Exception:
            return f"pika does not take the value of {option}; correct it or leave it out"
        if len(values) > 1:
            return f"{option} is given more than once; leave one"
    return "pika does not take the URL; write amqp[s]://USER:PASSWORD@HOST:PORT/VHOST"


def parameters_of(name: str, url: str, options: PublishOptions) -> Parameters:
    """pika's parameters for the broker at `url`; ConfigError if the URL cannot be used."""
    text, file = password_file.split(url)
    if file is not None:
        text = text.replace("@", ":@", 1)  # pika takes no user without a password
    given = parse_qs(urlsplit(text).query, keep_blank_values=True)
    check_options(name, given, _OPTIONS, "a RabbitMQ URL")
    try:
        parameters = URLParameters(text)
    except Exception:
        raise ConfigError(f"brokers.{name}: {_fault(given)}") from None
    if file is not None:
        read_password(name, file)
        parameters.credentials = FileCredentials(parameters.credentials.username, file)
    parameters.connection_attempts = 1  # `LinkedPublisher` tries again
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


MAX_EXCHANGES = 2000  # remembered though they have no channel and nothing to do

_NORMAL_CLOSES = (200, 320)  # closed on purpose, not because of a message


class RabbitMQPublisher(LinkedPublisher):
    """A `Publisher` for one RabbitMQ. Confirmed means: on every queue it was routed to.

    Its URL is amqp:// or amqps://; after `?` the options of URLParameters. amqps:// verifies
    certificate and host name. ConfigError if the URL cannot be used.
    """

    def _configure(self, url: str, options: PublishOptions) -> None:
        self.parameters = parameters_of(self.name, url, options)
        self._login = getattr(self.parameters.credentials, "username", "").encode()
        self._exchanges: dict[str, ExchangeChannel] = {}
        self._openings = Openings(self._spawn)
        self._most_exchanges = MAX_EXCHANGES
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

    async def _check(self, destination: Destination) -> str | None:
        if (connection := self._connection) is None:
            return CLOSING
        exchange, queue = destination.address, destination.routing_key
        try:
            if exchange:
                await connection.call_alone("exchange_declare", exchange=exchange, passive=True)
            else:
                await connection.call_alone("queue_declare", queue=queue, passive=True)
        except AMQPError as exc:
            return _check_reason(exc, destination)
        return None

    async def limits(self) -> dict[str, int]:
        """The most bytes of one frame; a message's headers and properties have to fit in one."""
        return {} if self._connection is None else {"frame": self._connection.params.frame_max}

    def _describe(self) -> str:
        at = f"{self.parameters.host}:{self.parameters.port}"
        vhost = quote(self.parameters.virtual_host, safe="")
        tls = "TLS" if self.parameters.ssl_options is not None else "no TLS"
        if (connection := self._connection) is None:
            return f"RabbitMQ at {at}/{vhost}, {tls}"
        properties: dict[str, Any] = connection.server_properties or {}
        version = printable(str(properties.get("version", "of unknown version")))
        heartbeat = f"heartbeat {connection.params.heartbeat} s"
        return f"RabbitMQ {version} at {at}/{vhost}, {tls}, confirms, mandatory, {heartbeat}"

    # the connection

    async def _connect_until_lost(self) -> None:
        try:
            connection = await open_connection(self.parameters, WireConnection)
        except PublishUnavailable as exc:
            self._change(str(exc))
        else:
            self._connected(connection)
            await self._until_lost(connection)

    def _connected(self, connection: WireConnection) -> None:
        connection.add_on_connection_blocked_callback(self._blocked)
        connection.add_on_connection_unblocked_callback(self._unblocked)
        self._connection = connection
        # Those that are closing, and questions, need some, too.
        self._openings.most = max(1, int(connection.params.channel_max) - AT_ONCE - 1)
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

    def _abandon(self, reason: str) -> None:
        connection = self._connection
        self._disconnected(reason, reason)
        if connection is not None:
            connection.abort(reason)

    def _is_idle(self) -> bool:
        return all(exchange.line.is_idle for exchange in self._exchanges.values())

    async def _disconnect(self) -> None:
        connection = self._connection
        self._disconnected(UNCONFIRMED, CLOSED)
        self._reports.flush()
        if connection is not None:
            await close_connection(connection)

    # exchanges

    def _exchange(self, name: str) -> ExchangeChannel:
        exchange = self._exchanges.get(name)
        if exchange is None:
            if len(self._exchanges) >= self._most_exchanges:
                self._forget_unused()
            exchange = ExchangeChannel(name, self._reports, self._login, self._arm, self._openings)
            self._exchanges[name] = exchange
        return exchange

    def _forget_unused(self) -> None:
        used = {name: each for name, each in self._exchanges.items() if not each.is_unused}
        self._exchanges = used
        self._most_exchanges = max(MAX_EXCHANGES, 2 * len(used))  # looks at each once, not n times

    # confirms that are overdue

    def _arm(self) -> None:
        if self._timer is None:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(self._timeout_s, self._guarded(self._expire))

    def _expire(self) -> None:
        self._timer = None
        loop = asyncio.get_running_loop()
        outcome = Outcome(Verdict.UNKNOWN, f"confirm_timeout: none within {self._timeout_s:g} s")
        before_s = loop.time() - self._timeout_s
        looks = (exchange.expire(before_s, outcome) for exchange in self._exchanges.values())
        left = [oldest_s for oldest_s in list(looks) if oldest_s is not None]
        if left:
            self._timer = loop.call_at(min(left) + self._timeout_s, self._guarded(self._expire))


def _check_reason(exc: AMQPError, destination: Destination) -> str:
    if (closed := close_code(exc)) is None:
        return f"not_connected: {reason_of(exc)}"
    outcome = refusal(*closed)
    reason = reason_of(exc) if outcome is None else outcome.reason
    return reason if destination.address else reason.replace("exchange_missing", "queue_missing")
