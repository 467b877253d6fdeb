"""All settings, and how they are loaded: flags before environment before file before default."""

from __future__ import annotations

import ast
import inspect
import os
import re
import stat
from collections.abc import Iterator, Mapping
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, Self, cast

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    PrivateAttr,
    ValidationError,
)

from delaybridge.errors import ConfigError
from delaybridge.settings import relations, sources, values
from delaybridge.settings.durability import Durability, Keeping, check_durability
from delaybridge.settings.entrances import FrontSettings, IngestSettings
from delaybridge.settings.faults import DEFAULT, fault, misnamed_brokers, source_of
from delaybridge.settings.names import BROKERS, KeyPath, dotted, fields_of, value_at
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
    Section,
    ServeSettings,
    Tenants,
)
from delaybridge.settings.sources import MOST_EXPLAINED
from delaybridge.settings.urls import SecretUrl, cautions, check_broker_url, has_secret, is_loopback

_SOURCES = "_sources"  # the argument by which `load` passes them
LOW_HEARTBEAT_S = 5
_DAY_MS = 86_400_000
_MOST_BROKERS = 1000
_BROKER_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")


def _broker_name(name: str) -> str:
    if not _BROKER_NAME.fullmatch(name):
        raise ValueError("1 to 64 letters, digits, '_' or '-'; a destination is NAME:ADDRESS")
    return name


def _few_brokers(value: object) -> object:
    if isinstance(value, Mapping) and len(value) > _MOST_BROKERS:
        raise ValueError(f"up to {_MOST_BROKERS} brokers")
    return value


class Settings(Section):
    """All settings. `Settings()`: the defaults; `Settings.load()`: those that are configured."""

    model_config = ConfigDict(validate_default=True)

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
    brokers: Annotated[
        dict[
            Annotated[str, AfterValidator(_broker_name)],
            Annotated[SecretUrl, BeforeValidator(check_broker_url)],
        ],
        BeforeValidator(_few_brokers),
    ] = {}
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
    _sources: dict[str, str] = PrivateAttr(default_factory=dict)
    _loaded_with: tuple[str | Path | None, Mapping[str, Any]] = PrivateAttr(default=(None, {}))

    def __init__(self, **given: Any) -> None:
        """Merges what `load` passes; `Settings()` reads neither environment nor file."""
        super().__init__(**sources.merged(given.pop(_SOURCES, None) or [sources.flags(given)]))

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
            settings = cls(**{_SOURCES: read})
        except ValidationError as exc:
            known = [path for path, *_ in fields_of(cls)]
            faults += [fault(error, read, known) for error in exc.errors()[:MOST_EXPLAINED]]
            if (rest := exc.error_count() - MOST_EXPLAINED) > 0:
                faults.append(f"and {rest:,} more")
            raise ConfigError("\n".join(faults)) from None
        settings._sources.update({dotted(p): source_of(p, read) for p in settings._paths()})
        settings._loaded_with = config, dict(overrides or {})
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
        tree = self.model_dump(by_alias=True)
        tree["limits"]["delay"] = duration(self.limits.delay_ms)
        return ((dotted(path), value_at(tree, path)) for path in self._paths())

    def _paths(self) -> Iterator[KeyPath]:
        for path, *_ in fields_of(type(self)):
            yield from [(*BROKERS, name) for name in self.brokers] if path == BROKERS else [path]

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

    Read when asked: `use_attribute_docstrings` would read it at each import, in 30 ms.
    """
    return {dotted(path): _docs(model).get(name, "") for path, model, name in fields_of(Settings)}


@cache
def _docs(model: type[BaseModel]) -> dict[str, str]:
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
