"""librdkafka's settings from a broker's URL, and the check that librdkafka accepts them."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Mapping
from typing import Any, Self
from urllib.parse import parse_qsl, unquote

from confluent_kafka import KafkaException, Producer
from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AdminClient,
    ConfigResource,
    ResourceType,
)

from delaybridge.errors import ConfigError, printable
from delaybridge.publish import PublishOptions, check_options, read_password
from delaybridge.publish.kafka.outcomes import error_of, error_text
from delaybridge.settings import password_file, url_options
from delaybridge.settings.password_file import PasswordFile

DEFAULT_PORT = 9092

# Fixed: without them a confirm would not mean that every in-sync replica has the record.
_FIXED = {"enable.idempotence": True, "acks": "all"}
# Those that are shown, and those whose values are secrets or may be.
_ALLOWED = url_options.KAFKA.union(
    """
    sasl.oauthbearer.client.secret sasl.oauthbearer.config sasl.oauthbearer.token.endpoint.url
    sasl.password ssl.ca.pem ssl.certificate.pem ssl.key.password ssl.key.pem ssl.keystore.password
    """.split()
)
_DEFAULTS = {
    "client.id": "delaybridge",
    "socket.nagle.disable": True,
    "socket.keepalive.enable": True,
    "reconnect.backoff.ms": 100,
    "reconnect.backoff.max.ms": 2000,
    # How long a known topic may be missing before its messages are refused.
    "topic.metadata.propagation.max.ms": 5000,
}


class Configuration(dict[str, Any]):
    """librdkafka's settings.

    file: where the password is, if not in the URL. may_linger: the operator set no linger, so a
    backlog may be sent with one.
    """

    file: PasswordFile | None = None
    may_linger = False

    def with_linger(self, linger_ms: int) -> Self:
        """The same settings with this linger."""
        return self._with({"linger.ms": linger_ms})

    def with_single_records(self) -> Self:
        """The same settings, with a request for each record, and no record sent twice.

        Without idempotence, since with it librdkafka waits for all its requests after each refusal.
        Idempotence is for what librdkafka sends again by itself, and here that is nothing.
        """
        alone = {"linger.ms": 0, "batch.num.messages": 1}
        return self._with({**alone, "enable.idempotence": False, "message.send.max.retries": 0})

    def _with(self, others: Mapping[str, Any]) -> Self:
        made = type(self)({**self, **others})
        made.file = self.file
        return made

    def current(self) -> Self:
        """These settings with the password that is in the file now, for a new client."""
        if self.file is not None:
            # If the file cannot be read, the old password stays, and the broker refuses it.
            with contextlib.suppress(ValueError):
                self["sasl.password"] = self.file.read()
        return self

    def renew(self, client: Any) -> None:
        """Make a client log in with that password from its next connect on.

        librdkafka asks for none when it connects, so this follows each failure of the client.
        """
        if self.file is not None:
            now = self.current()
            client.set_sasl_credentials(now["sasl.username"], now["sasl.password"])


def catchable(callback: Callable[..., None]) -> Callable[..., None]:
    """The callback, with errors that can be caught around the call that polls the client.

    Before Python 3.12, confluent-kafka 2.16 keeps only the value of an error that a callback
    raises. If its own C code raised it, that value is not an exception yet, and `except
    BaseException` does not catch it.
    """

    def call(*arguments: object) -> None:
        try:
            callback(*arguments)
        except Exception:  # entering this makes Python create the exception
            raise

    return call


def configuration(name: str, url: str, options: PublishOptions) -> Configuration:
    """librdkafka's settings for a kafka:// or kafkas:// URL; ConfigError without secrets."""
    text, file = password_file.split(url)
    scheme, _, rest = text.partition("://")
    location, _, query = rest.partition("?")
    userinfo, at, hosts = location.rstrip("/").rpartition("@")
    timeout_ms = int(options.confirm_timeout_s * 1000)
    given = _given(name, query)
    settings = Configuration(
        {
            **_DEFAULTS,
            "linger.ms": options.linger_ms,
            "message.timeout.ms": timeout_ms,
            # Half of it, so that a lost request is sent once more before the message times out.
            "socket.timeout.ms": max(timeout_ms // 2, 1000),
            **given,
            **_FIXED,
            "bootstrap.servers": ",".join(_with_port(name, host) for host in hosts.split(",")),
        }
    )
    settings.may_linger = options.linger_ms == 0 and "linger.ms" not in given
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
        Producer(offline, logger=LineLogger())
    except KafkaException as exc:
        error = error_of(exc)
        reason = "librdkafka refuses the settings" if error is None else error_text(error)
        raise ConfigError(f"brokers.{name}: {reason}") from None


class LineLogger(logging.Logger):
    """Passes librdkafka's lines to `see` alone. Without it they would go to standard error."""

    def __init__(self, see: Callable[[str], None] = lambda line: None) -> None:
        super().__init__("librdkafka", logging.DEBUG)
        self._see = see

    def handle(self, record: logging.LogRecord) -> None:
        """Instead of the handlers of a logger."""
        self._see(record.getMessage())


_TIMEOUT_S = 5.0
_FOR_ANY_CLIENT = ("bootstrap.servers", "security.", "sasl.", "ssl.")


def largest_record(settings: Configuration) -> int | None:
    """The most bytes of one record (`message.max.bytes`); None if the cluster does not tell.

    A topic may have a limit of its own. Blocks for up to 10 s.
    """
    mine = {k: v for k, v in settings.current().items() if k.startswith(_FOR_ANY_CLIENT)}
    admin = AdminClient({**mine, "log_level": 0})
    try:
        number = next(iter(admin.list_topics(timeout=_TIMEOUT_S).brokers))
        broker = ConfigResource(ResourceType.BROKER, str(number))
        asked = admin.describe_configs([broker], request_timeout=_TIMEOUT_S)
        return int(asked[broker].result(_TIMEOUT_S)["message.max.bytes"].value)
    except (KafkaException, StopIteration, KeyError, TimeoutError):
        return None
