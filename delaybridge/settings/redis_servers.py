"""The servers that a Redis URL names: one, those behind Sentinels, or those of a Cluster."""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple
from urllib.parse import quote, unquote

from delaybridge.settings import password_file

_PORT, _SENTINEL_PORT = 6379, 26379

Address = tuple[str, int]
"""Host and port."""


class Mode(Enum):
    """How the servers behind a URL work together."""

    SINGLE = "single"
    SENTINEL = "sentinel"
    CLUSTER = "cluster"


class RedisServers(NamedTuple):
    """What a URL of the store says. It has been checked by `urls.check_redis_url`.

    url: redis-py's URL for the servers that store messages; except for SINGLE its host stands for
    any of them. asked: who knows the masters: Sentinels, or servers of the Cluster; asked_url:
    redis-py's URL for those. service: what Sentinels call the master.
    """

    mode: Mode
    url: str
    asked: tuple[Address, ...] = ()
    asked_url: str = ""
    service: str = ""

    @classmethod
    def parse(cls, url: str) -> RedisServers:
        """The servers that a checked URL names."""
        text = str.__str__(url)
        scheme, _, rest = text.partition("://")
        scheme, _, kind = scheme.lower().partition("+")
        if not kind:
            return cls(Mode.SINGLE, text)
        location, _, options = rest.partition("?")
        location, _, path = location.partition("/")
        userinfo, at, hosts = location.rpartition("@")
        mode = Mode(kind)
        port = _SENTINEL_PORT if mode is Mode.SENTINEL else _PORT
        asked = tuple(_address(host, port) for host in hosts.split(","))
        own, of_sentinels = _split_options(options)
        service, _, database = path.partition("/") if mode is Mode.SENTINEL else ("", "", "")
        store = _url(scheme, userinfo + at, f"/{database}", own)
        if mode is Mode.CLUSTER:
            return cls(mode, store, asked, store)
        login = _userinfo(of_sentinels)
        tls = {name: value for name, value in own.items() if name.startswith("ssl_")}
        if "password_file" in of_sentinels:
            tls[password_file.OPTION] = of_sentinels["password_file"]
        return cls(mode, store, asked, _url(scheme, login, "", tls), unquote(service))


def name_of(address: Address) -> str:
    """The address as `host:port`, also of IPv6."""
    host, port = address
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _address(text: str, port: int) -> Address:
    if text.startswith("["):
        host, _, rest = text[1:].partition("]")
        return host, int(rest[1:] or port)
    host, _, number = text.partition(":")
    return host, int(number or port)


def _split_options(options: str) -> tuple[dict[str, str], dict[str, str]]:
    """The options of the store's servers, and those of the Sentinels; values still quoted."""
    own, of_sentinels = dict[str, str](), dict[str, str]()
    for piece in filter(None, options.split("&")):
        name, _, value = piece.partition("=")
        if name.startswith("sentinel_"):
            of_sentinels[name.removeprefix("sentinel_")] = value
        else:
            own[name] = value
    return own, of_sentinels


def _userinfo(options: dict[str, str]) -> str:
    user, password = (quote(unquote(options.get(n, "")), "") for n in ("username", "password"))
    return f"{user}{':' + password if password else ''}@" if user or password else ""


def _url(scheme: str, login: str, path: str, options: dict[str, str]) -> str:
    query = "&".join(f"{name}={value}" for name, value in options.items())
    return f"{scheme}://{login}localhost{path.rstrip('/')}{'?' * bool(query)}{query}"
