"""librdkafka on the event loop: its settings from a URL, its callbacks in batches.

A thread polls the client, so that delivery reports come without delay and cost nothing while
there are none. What one poll brings goes to the loop in one call.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any
from urllib.parse import parse_qsl, unquote

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from delaybridge.errors import ConfigError, printable
from delaybridge.message import Delivery
from delaybridge.publish import PublishOptions, check_options, read_password
from delaybridge.publish.kafka.outcomes import error_of, shown
from delaybridge.settings import password_file
from delaybridge.settings.password_file import PasswordFile

POLL_S = 0.2
DEFAULT_PORT = 9092

# Fixed: without them a confirm would not mean what ours means.
_FIXED = {"enable.idempotence": True, "acks": "all"}
_ALLOWED = frozenset(
    """
    batch.num.messages batch.size broker.address.family broker.address.ttl client.dns.lookup
    client.id client.rack compression.codec compression.level compression.type
    connections.max.idle.ms linger.ms message.max.bytes metadata.max.age.ms partitioner
    queue.buffering.max.kbytes queue.buffering.max.messages reconnect.backoff.max.ms
    reconnect.backoff.ms retry.backoff.max.ms retry.backoff.ms sasl.kerberos.keytab
    sasl.kerberos.principal sasl.kerberos.service.name sasl.mechanism sasl.mechanisms
    sasl.oauthbearer.client.id sasl.oauthbearer.client.secret sasl.oauthbearer.config
    sasl.oauthbearer.method sasl.oauthbearer.scope sasl.oauthbearer.token.endpoint.url
    sasl.password sasl.username socket.connection.setup.timeout.ms socket.keepalive.enable
    socket.nagle.disable socket.receive.buffer.bytes socket.send.buffer.bytes socket.timeout.ms
    ssl.ca.location ssl.ca.pem ssl.certificate.location ssl.certificate.pem ssl.cipher.suites
    ssl.crl.location ssl.endpoint.identification.algorithm ssl.key.location ssl.key.password
    ssl.key.pem ssl.keystore.location ssl.keystore.password sticky.partitioning.linger.ms
    topic.metadata.refresh.interval.ms
    """.split()
)
_DEFAULTS = {
    "client.id": "delaybridge",
    "socket.nagle.disable": True,
    "socket.keepalive.enable": True,
    "reconnect.backoff.ms": 100,
    "reconnect.backoff.max.ms": 2000,
    # How long a topic that was there may be missing before its messages are refused.
    "topic.metadata.propagation.max.ms": 5000,
}

Answers = list[tuple[Delivery, KafkaError | None]]


class Configuration(dict[str, Any]):
    """librdkafka's settings. file: where the password is."""

    file: PasswordFile | None = None

    def renew(self, client: Any) -> None:
        """Have the client log in with the password that stands in the file now."""
        if self.file is None:
            return
        try:
            self["sasl.password"] = self.file.read()
        except ValueError:
            return  # as it was: the broker says again and again that it is refused
        client.set_sasl_credentials(self["sasl.username"], self["sasl.password"])


def configuration(name: str, url: str, options: PublishOptions) -> Configuration:
    """librdkafka's settings for a kafka:// or kafkas:// URL; ConfigError without secrets."""
    text, file = password_file.split(url)
    scheme, _, rest = text.partition("://")
    location, _, query = rest.partition("?")
    userinfo, at, hosts = location.rstrip("/").rpartition("@")
    timeout_ms = int(options.confirm_timeout_s * 1000)
    settings = Configuration(
        {
            **_DEFAULTS,
            "linger.ms": options.linger_ms,
            "message.timeout.ms": timeout_ms,
            # Half of it, so that a request that was lost is sent once more before it is given up.
            "socket.timeout.ms": max(timeout_ms // 2, 1000),
            **_given(name, query),
            **_FIXED,
            "bootstrap.servers": ",".join(_with_port(name, host) for host in hosts.split(",")),
        }
    )
    security = "sasl" if at or "sasl.mechanism" in settings or "sasl.mechanisms" in settings else ""
    settings["security.protocol"] = {
        ("kafka", ""): "plaintext",
        ("kafka", "sasl"): "sasl_plaintext",
        ("kafkas", ""): "ssl",
        ("kafkas", "sasl"): "sasl_ssl",
    }[scheme, security]
    if at:
        user, _, password = userinfo.partition(":")
        settings.update({"sasl.username": unquote(user), "sasl.password": unquote(password)})
        if "sasl.mechanisms" not in settings:
            settings.setdefault("sasl.mechanism", "PLAIN")
    if file is not None:
        if "sasl.username" not in settings:
            raise ConfigError(f"brokers.{name}: password_file without a user; write USER@HOST")
        settings["sasl.password"], settings.file = read_password(name, file), file
    return settings


def _given(name: str, query: str) -> Mapping[str, str]:
    given = dict(parse_qsl(query, keep_blank_values=True))
    for option in given:
        if option in _FIXED or option == "transactional.id" or option.startswith("max.in.flight"):
            what = f"{printable(option)} is fixed, because confirms depend on it; leave it out"
            raise ConfigError(f"brokers.{name}: {what}")
    check_options(name, given, _ALLOWED, "a Kafka URL")
    return given


def _with_port(name: str, host: str) -> str:
    if not host:
        raise ConfigError(f"brokers.{name}: a host is missing; kafka://HOST:PORT[,HOST:PORT]")
    has_port = host.rpartition("]")[2].count(":") == 1
    return host if has_port else f"{host}:{DEFAULT_PORT}"


def check(name: str, settings: Mapping[str, Any]) -> None:
    """ConfigError if librdkafka does not take the settings. Connects to nothing."""
    try:
        offline = {k: v for k, v in settings.items() if k != "bootstrap.servers"}
        Producer(offline, logger=_watching(lambda line: None))
    except KafkaException as exc:
        error = error_of(exc)
        reason = "librdkafka refuses the settings" if error is None else shown(error)
        raise ConfigError(f"brokers.{name}: {reason}") from None


class KafkaClient:
    """One librdkafka producer and the thread that polls it.

    `on_answers` and `on_error` are called on the loop. `ready` is set once the producer has its
    id, for which the first record would wait. `disturbed_s`: when a connection was lost last, by
    the loop's clock.
    """

    def __init__(
        self,
        settings: Configuration,
        on_answers: Callable[[KafkaClient, Answers], None],
        on_error: Callable[[KafkaClient, KafkaError], None],
    ) -> None:
        self.ready = asyncio.Event()
        self.disturbed_s = 0.0
        self._loop = asyncio.get_running_loop()
        self._on_answers, self._on_error = on_answers, on_error
        self._answers: Answers = []
        self._settings = settings
        self._is_stopped = False
        self._producer = Producer(
            {
                **settings,
                "error_cb": self._error,
                # The one way to learn of the producer id without a record: its state is logged.
                # A few lines at each change of a connection, none per record. A lost connection
                # is logged too, also where no error is reported: the others are up.
                "debug": "eos",
            },
            logger=_watching(self._logged),
        )
        # A daemon: a process that fails without closing us must end.
        self._thread = threading.Thread(target=self._poll, name="delaybridge kafka", daemon=True)
        self._thread.start()

    def produce(self, delivery: Delivery, headers: list[tuple[str, str | bytes | None]]) -> None:
        """Queue one record; BufferError if there is no room, KafkaException if it is refused."""
        record = delivery.record
        self._producer.produce(
            delivery.destination.address,
            record.body,
            record.key,
            -1 if record.partition is None else record.partition,
            partial(self._answer, delivery),
            headers=headers,
        )

    def renew_password(self) -> None:
        """Log in with the password that stands in its file now, from the next connect on."""
        self._settings.renew(self._producer)

    async def error_of_topic(self, topic: str | None, timeout_s: float) -> KafkaError | None:
        """Ask a broker for the topic, or only for itself: what it says against it."""

        def ask() -> KafkaError | None:
            try:
                named = {} if topic is None else {"topic": topic}
                found = self._producer.list_topics(timeout=timeout_s, **named)
            except KafkaException as exc:
                return error_of(exc) or KafkaError(KafkaError._FAIL)
            return None if topic is None else found.topics[topic].error

        return await asyncio.to_thread(ask)

    async def stop(self) -> None:
        """Forget what is queued and in flight, and end; call it once."""
        self._producer.purge(in_queue=True, in_flight=True, blocking=False)
        self._is_stopped = True
        await asyncio.to_thread(self._end)

    def _end(self) -> None:
        self._thread.join()
        del self._producer  # which takes a moment: not on the loop

    # in the polling thread

    def _poll(self) -> None:
        while not self._is_stopped:
            fatal = None
            try:
                self._producer.poll(POLL_S)
            except KafkaException as exc:  # instead of `error_cb`, where the producer is at its end
                fatal = error_of(exc)
            if self._answers:
                answers, self._answers = self._answers, []
                self._tell(self._on_answers, self, answers)
            if fatal is not None:
                self._tell(self._on_error, self, fatal)

    def _answer(self, delivery: Delivery, error: KafkaError | None, message: Message) -> None:
        if error is None and message.offset() is None:
            # The broker called it a duplicate, which librdkafka takes for success. It need not be
            # one: a partition just made takes any first sequence number, so where the first
            # request was refused and the second taken, the first, sent again, looks like a
            # duplicate and is lost (KAFKA-15591).
            error = KafkaError(KafkaError.DUPLICATE_SEQUENCE_NUMBER)
        self._answers.append((delivery, error))

    def _error(self, error: KafkaError) -> None:
        self._tell(self._on_error, self, error)

    def _logged(self, line: str) -> None:
        if line.endswith("-> Assigned"):
            self._tell(self.ready.set)
        elif line.startswith("FAIL"):
            self.disturbed_s = self._loop.time()

    def _tell(self, callback: Callable[..., None], *arguments: object) -> None:
        # The loop may have ended without closing us.
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(callback, *arguments)


class _Watching(logging.Handler):
    def __init__(self, see: Callable[[str], None]) -> None:
        super().__init__()
        self._see = see

    def emit(self, record: logging.LogRecord) -> None:
        self._see(record.getMessage())


def _watching(see: Callable[[str], None]) -> logging.Logger:
    # A logger of its own, outside the tree: librdkafka's lines are for nobody else, and without
    # one they would go to standard error.
    logger = logging.Logger("librdkafka", logging.DEBUG)
    logger.addHandler(_Watching(see))
    return logger
