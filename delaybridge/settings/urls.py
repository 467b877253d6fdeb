"""URLs of Redis and of brokers: checked when settings are read, redacted wherever they are shown.

The checks raise ValueError with the accepted form; callers that know where the value came from
turn it into a ConfigError.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from ipaddress import ip_address
from typing import NamedTuple
from urllib.parse import parse_qsl, unquote, urlsplit

from delaybridge import late
from delaybridge.errors import ConfigError, nearest
from delaybridge.extensions import PUBLISHERS, is_known
from delaybridge.settings import password_file
from delaybridge.settings.url_options import HARMLESS, TIME_IN_SCRIPTS, taken

MASK = "***"
_URL_CHARS = 65_536  # keys and certificates may be options
KINDS = {
    "amqp": "rabbitmq",
    "amqps": "rabbitmq",
    "kafka": "kafka",
    "kafkas": "kafka",
    "redis": "redis",
    "rediss": "redis",
    "unix": "redis",
    "kombu": "kombu",  # followed by + and the scheme of kombu's own URL
    "http": "http",
    "https": "http",
    "memory": "memory",
}
DEFAULT_KINDS = {kind: kind for kind in KINDS.values()}  # where no broker is configured
_TLS_OPTIONS = frozenset({
    "ssl_cert_reqs", "ssl_ca_certs", "ssl_ca_path", "ssl_certfile", "ssl_keyfile",
    "ssl_password", "ssl_check_hostname", "ssl_min_version",
})  # fmt: skip
_REDIS_FORM = (
    "redis://HOST[:PORT][/DB], rediss://... (TLS) or unix:///PATH?db=DB; USER:PASSWORD@ before HOST"
)
_STORE_FORM = (
    "redis://HOST[:PORT][/DB], unix:///PATH?db=DB, "
    "redis+sentinel://HOST[:PORT],HOST.../SERVICE[/DB] or redis+cluster://HOST[:PORT],HOST...; "
    "rediss for TLS; USER:PASSWORD@ before the first HOST"
)
_LEDGER_FORM = (
    "postgresql+psycopg://USER:PASSWORD@HOST[:PORT]/DATABASE, "
    "mysql+pymysql://USER:PASSWORD@HOST[:PORT]/DATABASE or sqlite:////PATH"
)
_FORMS = {
    "rabbitmq": "amqp[s]://HOST[:PORT][/VHOST], USER:PASSWORD@ before HOST",
    "kafka": "kafka[s]://HOST:PORT[,HOST:PORT]..., USER:PASSWORD@ before the first",
    "redis": _REDIS_FORM,
    "http": "http[s]://HOST[:PORT][/BASE], USER:PASSWORD@ before HOST",
    "kombu": "kombu+URL, with kombu's own URL, as kombu+redis://HOST:6379/0",
}
_STREAM_OPTIONS = frozenset({"maxlen"})
_STORE_OPTIONS = frozenset({"max_connections", TIME_IN_SCRIPTS})
_SENTINEL_OPTIONS = frozenset({
    "sentinel_username", "sentinel_password", "sentinel_password_file",
})  # fmt: skip
_ESCAPES = "; in a user, password or vhost write @ as %40, / as %2F, : as %3A"
_HOST = late.pattern(r"(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+)(?::([0-9]{1,6}))?")
_STRUCTURED = late.pattern(r"[{\[\"'@]|://")  # an option that may hold a secret deep inside
_PLAIN = {
    "redis": "rediss",
    "redis+sentinel": "rediss+sentinel",
    "redis+cluster": "rediss+cluster",
    "amqp": "amqps",
    "pyamqp": "amqps",
    "kafka": "kafkas",
    "http": "https",
}
_ANYONE = "anyone on the network path can read and change everything"
_ANY_NAME = "the certificate of any other server is accepted, too"
# A scheme is tried only where its characters begin: to try it at each of them costs the square.
_URL = late.pattern(r"(?<![A-Za-z0-9+.-])([0-9+.-]*)([A-Za-z][A-Za-z0-9+.-]*://[^\s'\"<>]+)")
_SCHEME = late.pattern(r"[A-Za-z][A-Za-z0-9+.-]*://")
_PORTS = ("[:PORT]", ":PORT")  # in the form of a URL, as an error shows it
_AFTER_URL = ").;:!"  # of the sentence around a URL


class SecretUrl(str):
    """A URL that may hold a password. Printed or formatted, it is redacted."""

    __slots__ = ()

    def __str__(self) -> str:
        return redact(self)

    def __repr__(self) -> str:
        return repr(redact(self))

    def __format__(self, spec: str) -> str:
        return format(redact(self), spec)


class _Parts(NamedTuple):
    scheme: str
    userinfo: str | None
    hosts: str
    path: str
    query: str


def redact(url: str) -> str:
    """`url` without its passwords, even if it is malformed: in doubt, more is masked than needed.

    A user name before a password stays, and the text after the last `@`, except what stands where
    a port belongs, and options that are not known to be harmless.
    """
    text = str.__str__(url)
    found = _SCHEME.match(text)
    scheme = found[0] if found else ""
    userinfo, at, rest = text[len(scheme) :].rpartition("@")
    user, _, password = userinfo.partition(":")
    login = f"{user}:{MASK}" if password else MASK * bool(at)
    location, mark, query = rest.partition("?")
    options = re.sub(r"[^&;#]+", _redacted_option, query)
    return f"{scheme}{login}{at}{_redacted_location(scheme, location)}{mark}{options}"


def _redacted_location(scheme: str, location: str) -> str:
    """Hosts, ports and path; without what stands where a port belongs and is not one."""
    hosts, _, path = location.partition("/")
    if scheme:
        hosts = hosts.rstrip(_AFTER_URL)
    for form in _PORTS:
        hosts = hosts.replace(form, "")
    is_bare = not hosts and path.startswith(":")
    if is_bare or any(":" in host and not _HOST.fullmatch(host) for host in hosts.split(",")):
        return f"{location.partition(':')[0]}:{MASK}"
    return location


def redact_text(text: str) -> str:
    """`text` with every URL in it redacted: for messages of client libraries."""
    return _URL.sub(lambda found: found[1] + redact(found[2]), text)


def has_secret(url: str) -> bool:
    """Whether `redact` would mask anything in the URL."""
    return redact(url) != str.__str__(url)


def kind_of(url: str) -> str:
    """The kind of broker behind a URL, from its scheme; ValueError if no publisher provides it."""
    scheme = urlsplit(url).scheme
    if (kind := own_kind_of(scheme)) is not None:
        return kind
    if is_known(PUBLISHERS, scheme):
        return scheme
    raise ValueError("a URL whose scheme is one of " + ", ".join(sorted(KINDS)))


def kinds_of(brokers: Mapping[str, str]) -> dict[str, str]:
    """Name -> kind of these brokers; ConfigError if no publisher provides one."""
    if not isinstance(brokers, Mapping):
        raise ConfigError('brokers: give names and URLs, as {"rabbitmq": "amqp://HOST"}')
    try:
        return {name: kind_of(url) for name, url in brokers.items()}
    except ValueError as exc:
        raise ConfigError(f"brokers: give {exc}") from None


def own_kind_of(scheme: str) -> str | None:
    """The kind of broker behind a built-in scheme, else None. kombu+redis: kombu."""
    before, plus, _ = scheme.partition("+")
    return KINDS.get(before) if before == "kombu" or not plus else None


def server_of(url: str) -> str:
    """The server behind a URL, to compare two: scheme, hosts and path, without user and options."""
    parts = _parts(str.__str__(url), "")
    return (
        f"{KINDS.get(parts.scheme, parts.scheme)}://{parts.hosts.lower()}{parts.path.rstrip('/')}"
    )


def check_redis_url(value: object) -> SecretUrl:
    """A URL of the store's Redis; ValueError names the accepted forms."""
    parts = _parts(value, _STORE_FORM)
    if parts.scheme.endswith(("+sentinel", "+cluster")):
        _check_redis_servers(parts)
    else:
        _check_redis(parts, _STORE_OPTIONS, _STORE_FORM)
    if taken(str(value), TIME_IN_SCRIPTS)[1] not in (None, "yes", "no"):
        raise ValueError(f"{TIME_IN_SCRIPTS}: yes or no")
    return SecretUrl(value)


def _check_redis_servers(parts: _Parts) -> None:
    """A URL that names several servers: Sentinels, or those of a Cluster."""
    scheme, _, kind = parts.scheme.partition("+")
    _check_hosts(parts, _STORE_FORM, many=True)
    form = r"/[^/]+(/[0-9]{0,5})?" if kind == "sentinel" else r"(/0?)?"
    if scheme not in ("redis", "rediss") or not re.fullmatch(form, parts.path):
        raise ValueError(_STORE_FORM + _escape_hint(parts))
    more = _STORE_OPTIONS | (_SENTINEL_OPTIONS if kind == "sentinel" else frozenset())
    _check_redis_options(parts._replace(scheme=scheme), more)


def _check_redis(
    parts: _Parts, more_options: frozenset[str] = frozenset(), form: str = _REDIS_FORM
) -> None:
    if parts.scheme not in ("redis", "rediss", "unix"):
        raise ValueError(form)
    if parts.scheme == "unix":
        if parts.hosts or not parts.path.strip("/"):
            raise ValueError(form)
    else:
        _check_hosts(parts, form)
        if not re.fullmatch(r"(/[0-9]{0,5})?", parts.path):
            raise ValueError(form + _escape_hint(parts))
    _check_redis_options(parts, more_options)


def check_broker_url(value: object) -> SecretUrl:
    """A URL of a broker; ValueError names the accepted forms. The publisher checks its options."""
    forms = " or ".join(_FORMS.values())
    parts = _parts(value, forms)
    kind = kind_of(f"{parts.scheme}://")
    if kind == "redis":
        _check_redis(parts, _STREAM_OPTIONS)
    elif kind == "kombu":
        if not re.fullmatch(r"kombu\+[a-z0-9+.-]+", parts.scheme):
            raise ValueError(_FORMS[kind])
    elif kind in _FORMS:
        form = _FORMS[kind]
        _check_hosts(parts, form, many=kind == "kafka")
        is_deep = "/" in parts.path[1:] and kind != "http"
        if is_deep or (kind == "kafka" and len(parts.path) > 1):
            raise ValueError(form + _ESCAPES)
    return SecretUrl(value)


def check_ledger_url(value: object) -> SecretUrl:
    """A URL of the ledger's database, or empty; ValueError names the accepted forms."""
    if value == "":
        return SecretUrl("")
    parts = _parts(value, _LEDGER_FORM)
    if parts.scheme == "sqlite":
        if parts.hosts or not parts.path.strip("/"):
            raise ValueError(_LEDGER_FORM)
    elif parts.scheme in ("postgresql+psycopg", "mysql+pymysql"):
        _check_hosts(parts, _LEDGER_FORM)
        if not re.fullmatch(r"/[^/]+", parts.path):
            raise ValueError(_LEDGER_FORM + _escape_hint(parts))
    else:
        raise ValueError(_LEDGER_FORM)
    return SecretUrl(value)


def cautions(url: str) -> Iterator[str]:
    """Warnings about a URL that is accepted but risky; without secrets."""
    parts = _parts(str.__str__(url), "")
    shown, scheme = redact(url), parts.scheme.removeprefix("kombu+")
    safe = _PLAIN.get(scheme)
    if safe and not all(is_loopback(host) for host in parts.hosts.split(",")):
        before = "kombu+" if parts.scheme.startswith("kombu+") else ""
        yield f"{shown}: not encrypted, and not on this host; use {before}{safe}://"
    if parts.scheme == "amqps" and parts.hosts.endswith(":5672"):
        yield f"{shown}: TLS on port 5672, which is RabbitMQ's plain one; 5671 is usual"
    for name, value in parse_qsl(parts.query):
        if weak := _weakness(name, value):
            yield f"{shown}: {weak}; leave it out"


def _weakness(name: str, value: str) -> str | None:
    """How an option weakens TLS: the certificate is not checked, or not the name in it."""
    word = value.strip().lower().removeprefix("cert_")
    if name == "ssl_cert_reqs" and word not in ("required", "2"):
        return f"ssl_cert_reqs={value[:20]}: {_ANYONE}"
    if name == "ssl_check_hostname" and word in ("0", "f", "false", "n", "no"):
        return f"ssl_check_hostname={value[:20]}: {_ANY_NAME}"
    if name == "ssl.endpoint.identification.algorithm" and word != "https":
        return f"{name}={value[:20]}: {_ANY_NAME}"
    if name not in ("ssl_options", "transport.ssl"):
        return None
    if re.search(r"protocol['\"]|ssl_version|context['\"]", value):
        return f"{name} replaces the check of certificates, perhaps with none"
    reqs = re.search(r"cert_reqs['\"]\s*:\s*['\"]?(\w+)", value)
    if reqs and reqs[1].lower().removeprefix("cert_") not in ("required", "2"):
        return f"cert_reqs in {name}: {_ANYONE}"
    if re.search(r"check_hostname['\"]\s*:\s*(false|0)", value, re.IGNORECASE):
        return f"check_hostname in {name}: {_ANY_NAME}"
    return None


def _redacted_option(found: re.Match[str]) -> str:
    name, equals, value = found[0].partition("=")
    if not equals:
        return MASK
    is_shown = not value or unquote(name) in HARMLESS
    return found[0] if is_shown and not _STRUCTURED.search(unquote(value)) else f"{name}={MASK}"


def _parts(value: object, form: str) -> _Parts:
    if not isinstance(value, str) or len(value) > _URL_CHARS:
        raise ValueError(f"{form}; up to {_URL_CHARS} characters")
    if not value.isprintable() or " " in value:
        raise ValueError(f"{form}, without spaces and control characters")
    scheme, mark, rest = value.partition("://")
    if not mark:
        raise ValueError(form)
    found = re.fullmatch(r"([^/?#]*)([^?#]*)(?:\?([^#]*))?(#.*)?", rest)
    if found is None or found[4]:
        raise ValueError(f"{form}, without '#' (in a password write %23)")
    userinfo, at, hosts = found[1].rpartition("@")
    parts = _Parts(scheme.lower(), userinfo if at else None, hosts, found[2], found[3] or "")
    if "@" in userinfo:
        raise ValueError(f"{form}{_ESCAPES}")
    if ":" in userinfo and password_file.split(value)[1] is not None:
        raise ValueError("a password or password_file, not both")
    return parts


def _check_hosts(parts: _Parts, form: str, *, many: bool = False) -> None:
    for host in parts.hosts.split(",") if many else [parts.hosts]:
        found = _HOST.fullmatch(host)
        if not found:
            raise ValueError(form + _escape_hint(parts))
        if found[2] and not 1 <= int(found[2]) <= 65535:
            raise ValueError(f"{form}; a port is 1 to 65535{_escape_hint(parts)}")


def _escape_hint(parts: _Parts) -> str:
    """A hint for URLs cut in the wrong place by an unescaped character of a password."""
    return _ESCAPES if "@" in parts.path + parts.query else ""


def _check_redis_options(parts: _Parts, more: frozenset[str]) -> None:
    options = dict(parse_qsl(parts.query, keep_blank_values=True))
    known = {"client_name", password_file.OPTION, *more}
    known |= _TLS_OPTIONS if parts.scheme == "rediss" else set()
    known |= {"db", "username", "password"} if parts.scheme == "unix" else set()
    for name in options.keys() - known:
        near = nearest(name, known)
        hint = f"; did you mean {near[0]}?" if near else ""
        raise ValueError(f"after '?' only {', '.join(sorted(known))}{hint}{_escape_hint(parts)}")
    if ("ssl_certfile" in options) != ("ssl_keyfile" in options):
        raise ValueError("ssl_certfile and ssl_keyfile together, or neither")
    if not re.fullmatch(r"[1-9][0-9]{0,8}", options.get("max_connections", "1")):
        raise ValueError("max_connections: how many, 1 or more")
    if not re.fullmatch(r"[1-9][0-9]{0,17}", options.get("maxlen", "1")):
        raise ValueError("maxlen: how many entries a stream keeps, about: 1 or more")


def is_loopback(host: str) -> bool:
    """Whether a host, with or without a port, is this machine itself."""
    found = _HOST.fullmatch(host)
    name = found[1].strip("[]") if found else host
    try:
        return ip_address(name).is_loopback
    except ValueError:
        return name == "localhost"
