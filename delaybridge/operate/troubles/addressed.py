"""Remedies that work when they are pasted: commands of a server get its address. No password."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

if TYPE_CHECKING:
    from delaybridge.operate.troubles.finding import Finding
    from delaybridge.settings.settings import Settings

# Those without an address: `redis-cli -p 26379` asks a Sentinel.
_REDIS = re.compile(r"\bredis-cli (?!-[hps] |--cluster|--tls|--user)")
_RABBITMQ = re.compile(r"\brabbitmqadmin (?!-)")
_KAFKA = re.compile(r"\bkafka-topics.sh (?!--bootstrap)")


def addressed(found: Finding, settings: Settings) -> Finding:
    """The same finding; its commands for Redis and for its broker say which server they mean.

    A password is not among the options: redis-cli takes it from REDISCLI_AUTH, rabbitmqadmin from
    RABBITMQADMIN_PASSWORD.
    """
    node = found.about.partition(" ")[2] if ":" in found.about else ""
    remedy = _with(_REDIS, lambda: _of_redis(settings.redis.url, node), found.remedy)
    name = str(found.values.get("destination") or found.values.get("broker", "")).partition(":")[0]
    if (url := settings.brokers.get(name)) is not None:
        parts = urlsplit(url)
        vhost = unquote(parts.path[1:]) or "/"
        of_rabbitmq = {"--host": parts.hostname, "--vhost": vhost, "-u": parts.username}
        remedy = _with(_RABBITMQ, lambda: _options(of_rabbitmq), remedy)
        servers = {"--bootstrap-server": parts.netloc.rpartition("@")[2]}
        remedy = _with(_KAFKA, lambda: _options(servers), remedy)
    return found._replace(remedy=remedy)


def _with(command: re.Pattern[str], options: Callable[[], str], remedy: str) -> str:
    return command.sub(lambda match: match[0] + options(), remedy)


def _of_redis(url: str, node: str) -> str:
    parts = urlsplit(url)
    if parts.scheme == "unix":
        return _options({"-s": unquote(parts.path)})
    if "+" in parts.scheme:  # a Cluster, or Sentinels: the server that the finding is about
        host, _, port = node.split(",")[0].rpartition(":")
        return _options({"-h": host, "-p": port})
    tls = "--tls " * (parts.scheme == "rediss")
    said = {"-h": parts.hostname, "-p": parts.port or 6379, "--user": parts.username}
    return tls + _options(said)


def _options(said: Mapping[str, object]) -> str:
    return "".join(f"{name} {shlex.quote(str(value))} " for name, value in said.items() if value)
