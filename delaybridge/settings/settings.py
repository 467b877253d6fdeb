"""All settings, and how they are loaded: flags before environment before file before default."""

import ast
import inspect
import os
import re
import stat
from collections.abc import Iterator, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, Self, cast

from delaybridge.errors import ConfigError
from delaybridge.settings import relations, sources, values
from delaybridge.settings.durability import Durability, Keeping, check_durability
from delaybridge.settings.entrances import FrontSettings, IngestSettings
from delaybridge.settings.faults import DEFAULT, NAME, fault, misnamed_brokers, source_of
from delaybridge.settings.names import BROKERS, KeyPath, dotted, fields_of
from delaybridge.settings.section import Section, WrongSettings, WrongValue
from delaybridge.settings.sections import (
    DeadSettings,
    HttpSettings,
    LeaseSettings,
    LedgerSettings,
    LimitsSettings,
    MetricsSettings,
    OutboxSettings,
    PublishSettings,
    RedisSettings,
    RetrySettings,
    ScanSettings,
    ServeSettings,
    Tenants,
)
from delaybridge.settings.sources import MOST_EXPLAINED
from delaybridge.settings.urls import SecretUrl, cautions, check_broker_url, has_secret, is_loopback

LOW_HEARTBEAT_S = 5
_DAY_MS = 86_400_000
_MOST_BROKERS = 1000
_BROKER_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")


def _brokers(value: object) -> dict[str, SecretUrl]:
    if not isinstance(value, Mapping):
        raise ValueError("a table")
    if len(value) > _MOST_BROKERS:
        raise ValueError(f"up to {_MOST_BROKERS} brokers")
    taken, faults = dict[str, SecretUrl](), list[WrongValue]()
    for name, url in value.items():
        if not _BROKER_NAME.fullmatch(name):
            form = "1 to 64 letters, digits, '_' or '-'; a destination is NAME:ADDRESS"
            faults.append(WrongValue((name, NAME), name, form))
        try:
            taken[name] = check_broker_url(url)
        except ValueError as exc:
            faults.append(WrongValue((name,), url, str(exc)))
    if faults:
        raise WrongSettings(faults)
    return taken


class Settings(Section):
    """All settings. `Settings()`: the defaults; `Settings.load()`: those that are configured."""

    namespace: Annotated[str, values.namespace] = "delaybridge"
    """Prefix of every key in Redis: one namespace, one fleet."""
    buckets: Annotated[int, values.buckets] = 16
    """Shards of the store, a power of two, of a new namespace; later: delaybridge bucket resize."""
    durability: Annotated[str, values.durability] = "memory"
    """What has to have happened to a message, a cancel or any other change before it is accepted:
    memory (Redis has it), aof (and keeps an append-only file), aof-fsync (and has it on disk),
    replicated:N (and N replicas have it), ledger (and the database ledger.url has it). Otherwise
    the caller gets an error."""
    tenants: Tenants = ()
    """Names of the tenants that share the namespace, as ["acme", "beta"]. A source of ingest and a
    token of `serve` may belong to one: see docs/tenants.md."""
    redis: RedisSettings = RedisSettings()
    ledger: LedgerSettings = LedgerSettings()
    outbox: OutboxSettings = OutboxSettings()
    brokers: Annotated[dict[str, SecretUrl], _brokers] = {}
    """Name = URL. The name is the first part of a destination, as in rabbitmq:orders/close; a
    message can go to a broker named here and to no other. In the environment:
    DELAYBRIDGE_BROKERS__RABBITMQ=amqp://..."""
    lease: LeaseSettings = LeaseSettings()
    scan: ScanSettings = ScanSettings()
    publish: PublishSettings = PublishSettings()
    retry: RetrySettings = RetrySettings()
    dead: DeadSettings = DeadSettings()
    ingest: IngestSettings = IngestSettings()
    front: FrontSettings = FrontSettings()
    metrics: MetricsSettings = MetricsSettings()
    http: HttpSettings = HttpSettings()
    serve: ServeSettings = ServeSettings()
    limits: LimitsSettings = LimitsSettings()
    _sources: Mapping[str, str] = {}
    _loaded_with: tuple[str | Path | None, Mapping[str, Any]] = None, {}

    def __init__(self, **given: Any) -> None:
        """`Settings()` reads neither environment nor file."""
        super().__init__(**sources.flags(given).tree)

    @classmethod
    def load(
        cls,
        config: str | Path | None = None,
        overrides: Mapping[str, Any] | None = None,
        *,
        environ: Mapping[str, str] | None = None,
    ) -> Self:
        """The settings in force: overrides, then environment, then file, then defaults.

        Args:
            config: the path of the file; by default DELAYBRIDGE_CONFIG, or ./delaybridge.toml if
                it exists.
            overrides: values that win over all others, nested like the file.
            environ: by default `os.environ`. An empty variable counts as unset.

        Raises:
            ConfigError: one line for each setting that is missing, unknown or wrong.
        """
        environ = os.environ if environ is None else environ
        faults: list[str] = []
        read = [
            sources.flags(overrides or {}),
            sources.environment(cls, environ, faults),
            sources.settings_file(config, environ, faults),
        ]
        for source in read:
            faults += source.without_plain_sections(cls)
        faults += misnamed_brokers(read)
        try:
            settings = cls(**sources.merged(read))
        except WrongSettings as exc:
            known = [path for path, *_ in fields_of(cls)]
            faults += [fault(found, read, known) for found in exc.faults[:MOST_EXPLAINED]]
            if (rest := len(exc.faults) - MOST_EXPLAINED) > 0:
                faults.append(f"and {rest:,} more")
            raise ConfigError("\n".join(faults)) from None
        found_in = {dotted(path): source_of(path, read) for path, _ in settings._values()}
        loaded_with = config, dict(overrides or {})
        settings = settings.model_copy(update={"_sources": found_in, "_loaded_with": loaded_with})
        faults += relations.contradictions(settings)
        if faults:
            raise ConfigError("\n".join(faults))
        return settings

    @property
    def kept(self) -> Durability:
        """The setting `durability`, read and checked."""
        return check_durability(self.durability)

    @property
    def has_ledger(self) -> bool:
        """Whether messages are in a ledger, too."""
        return self.kept.mode is Keeping.LEDGER

    def reading(self) -> Self:
        """The same for a client that only reads: it promises nothing."""
        return self.model_copy(update={"durability": Keeping.MEMORY.value})

    def reread(self) -> Self:
        """The settings as they are written now: the same flags and file, read again."""
        return self.load(*self._loaded_with)

    def sources(self) -> dict[str, str]:
        """For each key path where its value came from: a flag, a variable, a file or `default`."""
        return {path: self._sources.get(path, DEFAULT) for path, _ in self.items()}

    def items(self) -> Iterator[tuple[str, Any]]:
        """Every key path with its value as it is written in the file; URLs still as `SecretUrl`."""
        return ((dotted(path), value) for path, value in self._values())

    def _values(self) -> Iterator[tuple[KeyPath, Any]]:
        for path, _, name in fields_of(type(self)):
            section = getattr(self, path[0]) if len(path) > 1 else self
            value = getattr(section, name)
            if path == BROKERS:
                yield from (((*BROKERS, broker), url) for broker, url in value.items())
            else:
                yield path, duration(value) if name == "delay_ms" else value

    def cautions(self) -> list[str]:
        """Warnings about settings that are accepted but risky; without secrets."""
        urls = [("redis.url", self.redis.url)]
        urls += [(f"brokers.{name}", url) for name, url in self.brokers.items()]
        databases = [("ledger.url", self.ledger.url), ("outbox.url", self.outbox.url)]
        urls += [(path, url) for path, url in databases if url]
        found = [f"{path}: {text}" for path, url in urls for text in cautions(url)]
        if self.publish.heartbeat_s < LOW_HEARTBEAT_S:
            found.append(
                f"publish.heartbeat_s: {self.publish.heartbeat_s} s gives false alarms; "
                f"use {LOW_HEARTBEAT_S} or more"
            )
        if self.metrics.port and not is_loopback(self.metrics.host):
            found.append(
                f"metrics.host: {self.metrics.host}: whoever reaches port {self.metrics.port} "
                "reads the metrics without a password; keep it within your network"
            )
        found += relations.cautions(self)
        secret_files = {self._sources.get(path) for path, url in urls if has_secret(url)}
        for file in sorted(filter(None, secret_files)):
            if _others_may_read(file):
                found.append(f"{file}: holds a password and others may read it; chmod 600")
        return found + _token_cautions(self.serve.token_file)


def descriptions() -> dict[str, str]:
    """Dotted key path of each setting -> its meaning: the docstring below it in the source.

    Read when asked, in 30 ms.
    """
    fields = [*fields_of(Settings)]
    about = {model: _docs(model) for model in {model for _, model, _ in fields}}
    return {dotted(path): about[model].get(name, "") for path, model, name in fields}


def _docs(model: type[Section]) -> dict[str, str]:
    (definition,) = ast.parse(inspect.getsource(model)).body
    return {
        ast.unparse(field.target): inspect.cleandoc(ast.literal_eval(text.value))
        for field, text in pairwise(cast(ast.ClassDef, definition).body)
        if isinstance(field, ast.AnnAssign) and isinstance(text, ast.Expr)
    }


def duration(ms: int) -> str:
    """`ms` as the file has it: exactly, in days, hours, minutes and the rest."""
    parts = []
    for unit, size in (("d", _DAY_MS), ("h", 3_600_000), ("m", 60_000), ("s", 1000), ("ms", 1)):
        count, ms = divmod(ms, size)
        parts.append(f"{count}{unit}" if count else "")
    return "".join(parts) or "0ms"


def _token_cautions(file: str) -> list[str]:
    if not file or not _others_may_read(file) or not _has_plain_tokens(Path(file)):
        return []
    what = "chmod 600, or write sha256:HEX instead of tokens"
    return [f"serve.token_file: others may read {file}; {what}"]


def _has_plain_tokens(file: Path) -> bool:
    """Whether a line has more than a digest: a Secret of Kubernetes is always read by its group."""
    try:
        lines = file.read_text("ascii", "replace").split("\n")
    except OSError:  # `serve` says what is wrong with it
        return True
    return any(line.strip() and not line.lstrip().startswith(("#", "sha256:")) for line in lines)


def _others_may_read(file: str) -> bool:
    try:
        return bool(Path(file).stat().st_mode & (stat.S_IRGRP | stat.S_IROTH))
    except OSError:
        return False
