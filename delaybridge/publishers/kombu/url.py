"""kombu URLs: what kombu.Connection is given, and the checks that keep confirms and TLS intact."""

from __future__ import annotations

import json
import ssl
from importlib import import_module
from typing import Any, NamedTuple
from urllib.parse import quote, unquote_plus

from delaybridge.errors import ConfigError, nearest, printable
from delaybridge.publish import PublishOptions, read_password
from delaybridge.publishers.kombu.thread import kombu
from delaybridge.settings import password_file
from delaybridge.settings.password_file import PasswordFile
from delaybridge.settings.urls import redact_text

CONNECT_TIMEOUT_S = 5.0
OPTION_PREFIX = "transport."


class ConnectionSettings(NamedTuple):
    """What to give kombu.Connection. file: where the password is, if not in the URL."""

    url: str
    arguments: dict[str, Any]
    file: PasswordFile | None

    def url_with_password(self) -> str:
        """The URL with the password that is in its file now; ValueError if it cannot be read."""
        return self.url if self.file is None else _with_password(self.url, self.file.read())


def connection_settings(name: str, url: str, options: PublishOptions) -> ConnectionSettings:
    """Read a broker's URL, kombu+URL; `transport.NAME=VALUE` in it is a transport option.

    ConfigError for a transport that is unknown, needs another library, or confirms nothing.
    """
    bare, file = password_file.split(url)
    location, given = _without_options(bare.partition("+")[2])
    scheme = location.partition("://")[0].lower()
    _check_transport(name, scheme)
    if scheme == "amqp":  # kombu would use librabbitmq where that is installed: it confirms nothing
        location = "py" + location
    arguments: dict[str, Any] = {
        "connect_timeout": CONNECT_TIMEOUT_S,
        "heartbeat": options.heartbeat_s,
        "ssl": _tls(name, scheme, given),
    }
    try:
        driver = kombu.Connection(location, **arguments).get_transport_cls()
    except Exception as exc:
        what = redact_text(printable(f"{type(exc).__name__}: {exc}"))[:120]
        raise ConfigError(f"brokers.{name}: kombu cannot use the URL: {what}") from None
    if driver.driver_name == "librabbitmq":
        raise ConfigError(f"brokers.{name}: librabbitmq confirms nothing; use kombu+amqp://")
    arguments["transport_options"] = {
        **_defaults(driver.driver_type, options),
        **given,
        **_FIXED.get(driver.driver_type, {}),
    }
    if file is not None:
        read_password(name, file)
    return ConnectionSettings(location, arguments, file)


def _tls(name: str, scheme: str, given: dict[str, Any]) -> dict[str, Any] | bool:
    """kombu's argument `ssl`. `transport.ssl` adds to it, and cannot silently drop a check."""
    defaults = _TLS.get(scheme)
    if "ssl" not in given or scheme not in (*_TLS, "amqp", "pyamqp", "redis"):
        return dict(defaults) if defaults else False
    asked = given.pop("ssl")
    if defaults is None:
        what = "transport.ssl on a scheme without TLS; use kombu+amqps:// or kombu+rediss://"
        raise ConfigError(f"brokers.{name}: {what}")
    if not isinstance(asked, dict) and asked is not True:
        what = "transport.ssl would send clear text; leave it out, or use a scheme without TLS"
        raise ConfigError(f"brokers.{name}: {what}")
    return defaults | (asked if isinstance(asked, dict) else {})


# Without these kombu checks no certificate, or no name in it.
_TLS: dict[str, dict[str, Any]] = {
    "rediss": {"ssl_cert_reqs": ssl.CERT_REQUIRED},
    "amqps": {"cert_reqs": ssl.CERT_REQUIRED, "server_hostname": None},  # None: the URL's
}
# Without these a confirm would mean less, or a message would silently be sent twice.
_FIXED = {"amqp": {"confirm_publish": True}, "redis": {"retry_on_timeout": False}}


def _defaults(driver: str, options: PublishOptions) -> dict[str, Any]:
    if driver != "redis":
        return {}
    return {
        "socket_timeout": options.confirm_timeout_s,
        "socket_connect_timeout": CONNECT_TIMEOUT_S,
        "socket_keepalive": True,
    }


def _check_transport(name: str, scheme: str) -> None:
    known = import_module("kombu.transport").TRANSPORT_ALIASES
    if scheme not in known:
        near = nearest(scheme, known)
        remedy = f"did you mean kombu+{near[0]}://?" if near else "use a scheme of kombu's own URLs"
        raise ConfigError(f"brokers.{name}: kombu has no transport {printable(scheme)!r}; {remedy}")


def _without_options(url: str) -> tuple[str, dict[str, Any]]:
    """The URL as kombu reads it, and the transport options from its query."""
    location, _, query = url.partition("?")
    pieces = query.split("&") if query else []
    kept = [piece for piece in pieces if not piece.startswith(OPTION_PREFIX)]
    options = {}
    for piece in pieces:
        if piece.startswith(OPTION_PREFIX):
            name, _, value = piece.removeprefix(OPTION_PREFIX).partition("=")
            options[unquote_plus(name)] = _value(unquote_plus(value))
    return "?".join([location, "&".join(kept)] if kept else [location]), options


def _value(text: str) -> Any:
    """The JSON value that the text spells, such as a number or true; else the text itself."""
    try:
        return json.loads(text)
    except ValueError:
        return text


def _with_password(url: str, password: str) -> str:
    scheme, mark, rest = url.partition("://")
    user, _, location = rest.rpartition("@")
    return f"{scheme}{mark}{user}:{quote(password, safe='')}@{location}"
