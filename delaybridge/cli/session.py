"""What the global options say, and what a command gets for it: settings, a client, an output."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import click

from delaybridge.cli.failure import Exit, Failure
from delaybridge.cli.output import Output

if TYPE_CHECKING:
    from delaybridge.client import Client
    from delaybridge.settings.settings import Settings
    from delaybridge.store.store import Store

_START_REDIS = "start it, or say where it is: --redis URL"
_NAMED_URL = re.compile(r"([^=:?#]*)=(.*)", re.DOTALL)


@dataclass
class Session:
    """One run of the command line. Settings are read, and Redis is connected to, when asked for."""

    output: Output
    redis: str | None = None
    namespace: str | None = None
    brokers: tuple[str, ...] = ()
    config: str | None = None
    verbose: bool = False

    @cached_property
    def settings(self) -> Settings:
        """The settings in force: these flags, the environment, the file, the defaults."""
        return self.load({})

    def load(self, overrides: dict[str, Any]) -> Settings:
        """The settings in force under further flags."""
        from delaybridge.settings.settings import Settings

        flags = {
            "redis": {"url": self.redis},
            "namespace": self.namespace,
            "brokers": _named_brokers(self.brokers),
        }
        return Settings.load(self.config, {**flags, **overrides})

    @contextmanager
    def client(self, *, remedy: str = "") -> Iterator[Client]:
        """A client as the settings say, closed at the end. remedy: for an outcome unknown."""
        from delaybridge.client import Client

        with self._redis_failures(remedy), Client.from_settings(self.settings) as client:
            yield client

    @contextmanager
    def store(self) -> Iterator[Store]:
        """Runs single commands on Redis, which a client does not have; closed at the end."""
        from delaybridge.store.store import Store

        redis = self.settings.redis
        with self._redis_failures(), closing(Store(redis.url, timeout_s=redis.timeout_s)) as store:
            yield store

    @contextmanager
    def _redis_failures(self, remedy: str = "") -> Iterator[None]:
        """Turns errors of Redis into a Failure that names its URL and what to do."""
        settings = self.settings
        from delaybridge.errors import ConfigError, StoreUnavailable

        try:
            yield
        except StoreUnavailable as exc:
            reason = str(exc).removeprefix("redis: ").rstrip(".")
            hint = "; ".join(filter(None, [_START_REDIS, "" if never_sent(exc) else remedy]))
            what = f"{reason} ({settings.redis.url}); {hint}"
            raise Failure(Exit.UNREACHABLE, "store_unavailable", "redis", what) from exc
        except ConfigError as exc:
            field, _, what = str(exc).partition(": ")
            if field != "redis":
                raise
            # Not our settings are wrong but those of the Redis that answered.
            raise Failure(Exit.UNREACHABLE, "store_refused", field, what) from exc

    def note(self, text: str) -> None:
        """Something beside the result: on stderr, and not for programs."""
        if not self.output.json:
            self.output.error_line(text)

    def confirm(self, what: str, *, yes: bool, flag: str = "--yes") -> None:
        """Continue only if `flag` was given, or if the user agrees on the terminal."""
        if yes:
            return
        if sys.stdin is None or not sys.stdin.isatty():
            raise Failure(Exit.REFUSED, "confirm", flag, f"missing; needed to {what}")
        try:
            wanted = click.confirm(f"{what}?", err=True)
        except click.Abort:
            click.echo(err=True)
            raise
        if not wanted:
            raise Failure(Exit.REFUSED, "confirm", flag, "nothing was done")


def never_sent(exc: BaseException | None) -> bool:
    """Whether nobody listened, so that nothing can have arrived."""
    while exc is not None:
        if isinstance(exc, ConnectionRefusedError | FileNotFoundError):
            return True
        exc = exc.__cause__ or exc.__context__
    return False


def _named_brokers(flags: tuple[str, ...]) -> dict[str, str]:
    """`[NAME=]URL`, the name being the kind if left out."""
    brokers: dict[str, str] = {}
    for flag in flags:
        found = _NAMED_URL.fullmatch(flag)
        name, url = (found[1], found[2]) if found else (_kind(flag), flag)
        if name in brokers:
            what = f"two brokers are named {name!r}; name them: --broker NAME=URL"
            raise Failure(Exit.REFUSED, "config", "--broker", what)
        brokers[name] = url
    return brokers


def _kind(url: str) -> str:
    """The name of a broker given without one; of an unknown scheme, the scheme itself."""
    from delaybridge.settings.urls import own_kind_of

    scheme = url.partition("://")[0].lower() if "://" in url else ""
    if not scheme:
        from delaybridge.settings.urls import redact

        what = f"got {redact(url)!r}; give [NAME=]URL, as amqp://HOST or eu=kafka://HOST:9092"
        raise Failure(Exit.REFUSED, "config", "--broker", what)
    return own_kind_of(scheme) or scheme
