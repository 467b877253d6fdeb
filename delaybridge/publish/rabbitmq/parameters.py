"""pika's connection parameters from a broker's URL."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from urllib.parse import parse_qs, urlencode, urlsplit

import pika
from pika.connection import Parameters
from pika.credentials import PlainCredentials

from delaybridge.errors import ConfigError
from delaybridge.publish import PublishOptions, check_options, read_password
from delaybridge.settings import password_file
from delaybridge.settings.password_file import PasswordFile

CONNECT_TIMEOUT_S, HANDSHAKE_TIMEOUT_S = 5.0, 10.0

_SETTER = "_set_url_"  # pika's prefix of the method that sets an option
_OPTIONS = {n.removeprefix(_SETTER) for n in dir(pika.URLParameters) if n.startswith(_SETTER)}


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
        """pika sets it once."""


def _fault(given: Mapping[str, Sequence[str]]) -> str:
    """The reason why pika refuses a URL. pika's own text is not used: it may hold the password."""
    for option, values in given.items():
        try:
            pika.URLParameters(f"amqps://h/?{urlencode({option: values[0]})}")
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
        parameters = pika.URLParameters(text)
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
