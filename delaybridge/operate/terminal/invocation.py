"""One run of the command line: its global options, and the settings, client and output for them."""

from __future__ import annotations

import json
import re
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

import click

import delaybridge
from delaybridge.errors import LedgerUnavailable, refused_certificate
from delaybridge.operate.terminal.failure import Exit, Failure, refused
from delaybridge.operate.terminal.output import Output

if TYPE_CHECKING:
    from delaybridge.operate.notices.silent_buckets import Unseen
    from delaybridge.settings.settings import Settings
    from delaybridge.store.redis.store import Store

_START_REDIS = "start it, or say where it is: --redis URL"
_NAMED_URL = re.compile(r"(?:([^=:?#]*)=)?(.*)", re.DOTALL)


@dataclass
class Invocation:
    """One run of the command line. Reads settings and connects to Redis only on demand."""

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
        """The settings in force, with more flags."""
        from delaybridge.settings.settings import Settings

        brokers: dict[str, str] = {}
        for flag in self.brokers:
            name, url = _named_url(flag)
            if name in brokers:
                what = f"two brokers are named {name[:80]!r}; name them: --broker NAME=URL"
                raise refused("--broker", what, "config")
            brokers[name] = url
        flags = {"redis": {"url": self.redis}, "namespace": self.namespace, "brokers": brokers}
        return Settings.load(self.config, {**flags, **overrides})

    @contextmanager
    def client(self, *, remedy: str = "", reads: bool = False) -> Iterator[delaybridge.Client]:
        """A client, closed at the end. remedy: shown if the outcome of a call is unknown.

        reads: it only reads, also from a Redis that contradicts `durability`.
        """
        is_free = reads and not self.settings.has_ledger  # which has cold messages, and the layout
        settings = self.settings.reading() if is_free else self.settings
        with self.client_of(settings, remedy=remedy) as client:
            yield client

    @contextmanager
    def client_of(self, settings: Settings, *, remedy: str = "") -> Iterator[delaybridge.Client]:
        """The same with other settings."""
        with self._redis_failures(remedy), delaybridge.Client.from_settings(settings) as client:
            yield client

    @contextmanager
    def store(self) -> Iterator[Store]:
        """Runs single commands on Redis, which a client does not do; closed at the end."""
        from delaybridge.store.redis.store import Store

        redis = self.settings.redis
        with self._redis_failures(), closing(Store(redis.url, timeout_s=redis.timeout_s)) as store:
            yield store

    @contextmanager
    def _redis_failures(self, remedy: str = "") -> Iterator[None]:
        """Turns errors of Redis into a Failure that names its URL and the remedy."""
        try:
            yield
        except delaybridge.NotDurable as exc:
            what = str(exc).removeprefix("redis: ")
            what = f"{what}; {remedy}" if remedy else what
            raise Failure(Exit.UNREACHABLE, "not_durable", "redis", what) from exc
        except LedgerUnavailable as exc:
            hint = "" if "nothing was" in str(exc) else remedy
            what = "; ".join(filter(None, [str(exc), "see: delaybridge doctor", hint]))
            raise Failure(Exit.UNREACHABLE, "ledger_unavailable", None, what) from exc
        except delaybridge.StoreUnavailable as exc:
            reason = str(exc).removeprefix("redis: ").rstrip(".")
            hints = filter(None, [_start(exc, reason), "" if never_sent(exc) else remedy])
            what = "; ".join([f"{reason} ({self.settings.redis.url})", *hints])
            raise Failure(Exit.UNREACHABLE, "store_unavailable", "redis", what) from exc
        except delaybridge.ConfigError as exc:
            field, _, what = str(exc).partition(": ")
            if field != "redis":
                raise
            # The settings of the Redis that answered are wrong, not ours.
            raise Failure(Exit.UNREACHABLE, "store_refused", field, what) from exc

    @staticmethod
    def now_ms(client: delaybridge.Client) -> int:
        """Redis' clock, by which messages are due; this host's if the user may not read it."""
        with suppress(delaybridge.StoreError):
            return client.run(lambda calls: calls.now_ms())
        return time.time_ns() // 1_000_000

    def note(self, text: str) -> None:
        """A note for people: on stderr, and not with --json."""
        if not self.output.json:
            self.output.error_line(text)

    def begin_log(self, settings: Settings | None = None) -> Callable[[], None]:
        """Send the log to stderr; return what does so in a child. settings: warns of risky ones."""
        from delaybridge.operate.terminal.logs import configure

        for caution in settings.cautions() if settings else ():
            self.note(f"warning: {caution}")
        prepare = partial(configure, as_json=self.output.json, verbose=self.verbose)
        prepare()
        return prepare

    def say_unseen(self, unseen: Sequence[Unseen]) -> Exit:
        """Name on stderr the buckets whose server does not answer; PARTLY if there are any."""
        for each in unseen:
            as_json = json.dumps({"unseen": each._asdict()})
            self.output.error_line(as_json if self.output.json else f"warning: {each}")
        return Exit.PARTLY if unseen else Exit.DONE

    def confirm(self, what: str, *, yes: bool, flag: str = "--yes") -> None:
        """Ask on the terminal unless `yes`. Failure if the answer is no, or without a terminal."""
        if yes:
            return
        if sys.stdin is None or not sys.stdin.isatty():
            raise refused(flag, f"missing; needed to {what}", "confirm")
        try:
            wanted = click.confirm(f"{what}?", err=True)
        except click.Abort:
            click.echo(err=True)
            raise
        if not wanted:
            raise refused(flag, "nothing was done", "confirm")


def never_sent(exc: BaseException | None) -> bool:
    """Whether a connection was refused, by either side: the request cannot have arrived."""
    if refused_certificate(exc):
        return True
    while exc is not None:
        if isinstance(exc, ConnectionRefusedError | FileNotFoundError):
            return True
        exc = exc.__cause__ or exc.__context__
    return False


def _start(exc: Exception, reason: str) -> str:
    if reason.startswith("not ready"):  # it answers
        return "see: delaybridge doctor"
    return "" if refused_certificate(exc) else _START_REDIS


def _named_url(flag: str) -> tuple[str, str]:
    """`[NAME=]URL`; the name defaults to the kind, or to the scheme if that is unknown."""
    from delaybridge.settings.faults import value_text
    from delaybridge.settings.names import BROKERS
    from delaybridge.settings.urls import own_kind_of

    found = _NAMED_URL.fullmatch(flag)
    name, url = found.groups() if found else (None, flag)
    scheme = url.partition("://")[0].lower() if "://" in url else ""
    if name is None and not scheme:
        what = f"got {value_text(BROKERS, url)}; give [NAME=]URL, as amqp://HOST or eu=kafka://HOST:9092"
        raise refused("--broker", what, "config")
    return own_kind_of(scheme) or scheme if name is None else name, url
