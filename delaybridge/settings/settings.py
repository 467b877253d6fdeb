"""Every setting, its default and what is accepted; where each value came from.

`Settings.load()` reads flags, the environment and one TOML file, field by field in that order, and
refuses with every fault at once. Pydantic alone checks: what pydantic-settings would add (prefix,
nesting, files) has rules of its own here, and its import costs every command 25 to 50 ms more.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Self
from urllib.parse import quote

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PrivateAttr,
    ValidationError,
    model_validator,
)
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from delaybridge import times
from delaybridge.errors import ConfigError, MessageError
from delaybridge.message import Limits
from delaybridge.settings import password_file
from delaybridge.settings.namespace import check_buckets, check_namespace
from delaybridge.settings.routes import SETTINGS as ROUTE_SETTINGS
from delaybridge.settings.routes import parse_routes
from delaybridge.settings.sources import BROKERS, Given, KeyPath, Shape, dotted, gather, shown
from delaybridge.settings.urls import (
    SecretUrl,
    cautions,
    check_broker_url,
    check_redis_url,
    has_secret,
    kind_of,
)

DEFAULT = "default"
_INTEGER = re.compile(r"-?[0-9]{1,18}")
_SKIP = re.compile(r"[^/=]+/[0-9]{1,9}=[0-9]{1,18}")
_OWNER = re.compile(r"[^@\s]+@[0-9a-f]+")
_MANAGEMENT = re.compile(r"([A-Za-z0-9_-]+=)?(off|https?://[^\s@?#/]+(/[^\s@?#]*)?)")
_NUMBER = re.compile(r"-?[0-9]{1,18}(\.[0-9]{1,9})?")
LOW_HEARTBEAT_S = 5
_DELAY_MOST_MS = 900 * times.YEAR_MS
_LIMITS = Limits()
_KIB, _MIB = 2**10, 2**20
_DAY_MS = 86_400_000

# The sum of the first, "<" or "<=", the last; seconds count as milliseconds.
RELATIONS: tuple[tuple[tuple[str, ...], str, str], ...] = (
    (("lease.renew_ms", "redis.timeout_s"), "<", "lease.ttl_ms"),
    (("scan.fire_lead_ms",), "<=", "scan.claim_ahead_ms"),
    (("publish.heartbeat_s",), "<=", "publish.confirm_timeout_s"),
    (("publish.blocked_connection_timeout_s",), "<=", "publish.confirm_timeout_s"),
    (("limits.body_bytes", "limits.headers_bytes"), "<=", "scan.batch_bytes"),
    (("limits.body_bytes", "limits.headers_bytes"), "<=", "scan.wheel_bytes"),
    (("limits.body_bytes", "limits.headers_bytes"), "<=", "publish.window_bytes"),
    (("publish.window_messages",), "<=", "scan.wheel_messages"),
    (("retry.base_ms",), "<=", "retry.max_ms"),
)


def whole(low: int, high: int) -> BeforeValidator:
    """Accepts a whole number from `low` to `high`, also as text; no truth values, no 1_000."""

    def check(value: object) -> int:
        if isinstance(value, str) and _INTEGER.fullmatch(value):
            value = int(value)
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            raise ValueError(f"a whole number from {low} to {high}")
        return value

    return BeforeValidator(check)


def number(low: float, high: float, *, above: bool = False) -> BeforeValidator:
    """Accepts a number from `low` (with `above`: greater than it) to `high`, also as text."""

    def check(value: object) -> float:
        if isinstance(value, str) and _NUMBER.fullmatch(value):
            value = float(value)
        if (
            isinstance(value, bool)
            or not isinstance(value, int | float)
            or not low <= value <= high
            or (above and value == low)
        ):
            raise ValueError(f"a number {'above' if above else 'from'} {low:g} to {high:g}")
        return float(value)

    return BeforeValidator(check)


def _namespace(value: object) -> str:
    try:
        return check_namespace(value if isinstance(value, str) else "")
    except ConfigError as exc:
        raise ValueError(str(exc).partition("; use ")[2]) from None


def _buckets(value: object) -> int:
    if isinstance(value, str) and _INTEGER.fullmatch(value):
        value = int(value)
    try:
        is_count = isinstance(value, int) and not isinstance(value, bool)
        return check_buckets(value if is_count else 0)  # type: ignore[arg-type]
    except ConfigError as exc:
        raise ValueError(str(exc).partition("; use ")[2]) from None


def _delay(value: object) -> int:
    try:
        delay_ms = times.delay_ms(value if isinstance(value, str) else "")
    except MessageError:
        delay_ms = -1
    if not 0 < delay_ms <= _DELAY_MOST_MS:
        raise ValueError("a duration with a unit, as 90m, 30d or P1DT12H, up to 900 years")
    return delay_ms


def _texts(value: object) -> tuple[str, ...]:
    """A list of texts; as one text they are parted by commas."""
    if isinstance(value, str):
        value = [part for part in (part.strip() for part in value.split(",")) if part]
    if not isinstance(value, list | tuple) or not all(
        isinstance(v, str) and v and v.isprintable() for v in value
    ):
        raise ValueError('a list of printable texts, as ["a", "b"]; in the environment a,b')
    return tuple(value)


def _switch(value: object) -> bool:
    words = {"true": True, "false": False}
    found = words.get(value.lower()) if isinstance(value, str) else value
    if not isinstance(found, bool):
        raise ValueError("true or false")
    return found


def _skips(value: object) -> tuple[str, ...]:
    texts = _texts(value)
    if not all(_SKIP.fullmatch(text) for text in texts):
        raise ValueError('a list of TOPIC/PARTITION=OFFSET, as ["orders.delay/0=1234"]')
    return texts


def _owners(value: object) -> tuple[str, ...]:
    texts = _texts(value)
    if not all(_OWNER.fullmatch(text) for text in texts):
        raise ValueError("a list of NAMESPACE@BIRTH, as the refusal of ingest names the owner")
    return texts


def _rules(value: object) -> tuple[str, ...]:
    texts = _texts(value)
    if not all(all(text.partition("=")) for text in texts):
        raise ValueError('a list of SOURCE=DESTINATION, as ["orders.delay=rabbitmq:audit"]')
    return texts


def _managements(value: object) -> tuple[str, ...]:
    texts = _texts(value)
    if not all(_MANAGEMENT.fullmatch(text) for text in texts):
        raise ValueError(
            "a list of [BROKER=]http[s]://HOST[:PORT] or off, without user and password"
        )
    return texts


Texts = Annotated[tuple[str, ...], BeforeValidator(_texts)]


class _Section(BaseModel):
    model_config = ConfigDict(
        frozen=True, extra="forbid", arbitrary_types_allowed=True, hide_input_in_errors=True
    )


class RedisSettings(_Section):
    """Where delayed messages are stored."""

    url: Annotated[SecretUrl, BeforeValidator(check_redis_url)] = Field(
        default=SecretUrl("redis://127.0.0.1:6379/0"),
        description="redis://HOST[:PORT][/DB], rediss://... for TLS, or unix:///PATH?db=DB; "
        "USER:PASSWORD@ before HOST, in a password @ as %40 and / as %2F.",
    )
    timeout_s: Annotated[float, number(0.05, 60)] = Field(
        default=5.0, description="A call is answered or fails within this time."
    )
    password_file: Annotated[str, Field(max_length=4096)] = Field(
        default="",
        description="A file that holds the password, instead of the URL. It is read at each "
        "connect, so a new password takes effect at once. The same as "
        "?password_file=/PATH in the URL, which every broker's URL takes, too.",
    )

    @model_validator(mode="after")
    def _file_in_url(self) -> Self:
        """Everything that connects is given the URL alone."""
        bare, file = password_file.split(self.url)
        if self.password_file and (file is None or file.path != self.password_file):
            option = f"{password_file.OPTION}={quote(self.password_file)}"
            url = f"{str.__str__(self.url)}{'&' if '?' in self.url else '?'}{option}"
            # Read again: refused where the URL holds a password, or another file.
            if file is not None:
                raise ValueError("password_file here or in the URL, not another in each")
            self.__dict__["url"] = check_redis_url(url)
        return self


class LeaseSettings(_Section):
    """The right of one worker to scan one bucket."""

    ttl_ms: Annotated[int, whole(100, 600_000)] = Field(
        default=10_000, description="The buckets of a dead worker wait at most this long."
    )
    renew_ms: Annotated[int, whole(10, 300_000)] = Field(
        default=4000,
        description="How often a lease is renewed. renew_ms + redis.timeout_s < ttl_ms.",
    )


class ScanSettings(_Section):
    """The worker: what it takes from the store, and how far ahead."""

    processes: Annotated[int, whole(1, 256)] = Field(
        default=1,
        description="Worker processes of one `delaybridge scan`; at most one per core is useful.",
    )
    claim_ahead_ms: Annotated[int, whole(0, 600_000)] = Field(
        default=2000, description="How long before its due time a message is taken into memory."
    )
    wheel_messages: Annotated[int, whole(1, 10_000_000)] = Field(
        default=100_000,
        description="The most messages that one worker process holds claimed; at the limit it "
        "claims no more.",
    )
    wheel_bytes: Annotated[int, whole(_KIB, 2**40)] = Field(
        default=64 * _MIB, description="The same in bytes."
    )
    batch_messages: Annotated[int, whole(1, 1000)] = Field(
        default=500, description="The most messages of one claim."
    )
    batch_bytes: Annotated[int, whole(_KIB, 512 * _MIB)] = Field(
        default=4 * _MIB, description="The same in bytes; a message must fit."
    )
    fire_lead_ms: Annotated[int, whole(0, 1000)] = Field(
        default=5,
        description="A message counts as handed over, and can no longer be cancelled, at most "
        "this long before its due time; less if the measured round trip to Redis is"
        " shorter. Nothing is ever published early.",
    )
    drain_timeout_s: Annotated[float, number(0.1, 3600)] = Field(
        default=20.0,
        description="A stopping worker ends within this time: it waits for outstanding confirms"
        " and gives its buckets back. Set it below your supervisor's own limit.",
    )


class PublishSettings(_Section):
    """Handing messages to the brokers."""

    window_messages: Annotated[int, whole(1, 500_000)] = Field(
        default=10_000,
        description="The most messages handed to a broker and not yet confirmed, per worker "
        "process: this bounds the duplicates after a fault.",
    )
    window_bytes: Annotated[int, whole(_KIB, 2**40)] = Field(
        default=32 * _MIB, description="The same in bytes; a message must fit."
    )
    confirm_timeout_s: Annotated[float, number(0.1, 3600)] = Field(
        default=20.0,
        description="Without a confirm within this time the outcome is unknown, and the message"
        " is retried.",
    )
    heartbeat_s: Annotated[int, whole(1, 600)] = Field(
        default=15, description="RabbitMQ: heartbeat; below 5 s it gives false alarms."
    )
    blocked_connection_timeout_s: Annotated[float, number(0.1, 3600)] = Field(
        default=20.0,
        description="RabbitMQ: how long it may block this connection (memory or disk alarm).",
    )
    linger_ms: Annotated[int, whole(0, 1000)] = Field(
        default=0, description="Kafka: how long to wait for more messages to send together."
    )


class RetrySettings(_Section):
    """What happens after a failed publish. A broker that is down costs no attempts."""

    max_attempts: Annotated[int, whole(1, 1000)] = Field(
        default=16,
        description="After this many attempts the message goes to the dead set, with the last "
        "reason.",
    )
    base_ms: Annotated[int, whole(1, _DAY_MS)] = Field(
        default=1000, description="The wait after the first failure."
    )
    factor: Annotated[float, number(1, 100, above=True)] = Field(
        default=2.0, description="Each further wait is longer by this factor."
    )
    max_ms: Annotated[int, whole(1, _DAY_MS)] = Field(
        default=300_000, description="The longest wait."
    )
    jitter: Annotated[float, number(0, 1)] = Field(
        default=0.2,
        description="The share by which each wait is shortened or lengthened at random.",
    )


class DeadSettings(_Section):
    """Messages given up: their bounds, and where they go instead of the dead set."""

    max_messages: Annotated[int, whole(0, 10**9)] = Field(
        default=0,
        description="The most messages that the dead set keeps, shared evenly by the buckets, each "
        "of which keeps one at least; above that the oldest are dropped for good. 0: no limit.",
    )
    max_age_s: Annotated[float, number(0, 10**9)] = Field(
        default=0.0, description="Older dead messages are dropped for good. 0: no limit."
    )
    dead_letter: Texts = Field(
        default=(),
        description="Where a message is published when its attempts are used up: one destination "
        "per broker, as rabbitmq:/orders.dead or kafka:orders.dead. If that fails, it goes to the "
        "dead set.",
    )

    @property
    def is_bounded(self) -> bool:
        """Whether anything is ever dropped."""
        return bool(self.max_messages or self.max_age_s)


class IngestSettings(_Section):
    """Delay exchanges and delay topics: `delaybridge ingest`, `delaybridge scan --with-ingest`."""

    exchanges: Texts = Field(
        default=(),
        description="RabbitMQ: the delay exchanges. X.delay delivers to X; NAME=TARGET for "
        "other names; BROKER:NAME if several are configured; NAME;type=fanout "
        "(topic, headers, direct) for one that does not exist yet.",
    )
    topics: Texts = Field(
        default=("*.delay",),
        description="Kafka: the delay topics, written the same way. * stands for any text.",
    )
    destinations: Texts = Field(
        default=(),
        description="Where a delaybridge-destination header may lead, in addition to the "
        "source's own target: as rabbitmq:audit or kafka:*, without routing key.",
    )
    trust: Annotated[tuple[str, ...], BeforeValidator(_rules)] = Field(
        default=(),
        description="A source may cancel, replace and reschedule messages bound for where its "
        "own may go. Rules that allow it more: SOURCE=DESTINATION, * for any text, "
        "as orders.delay=rabbitmq:audit.",
    )
    management: Annotated[tuple[str, ...], BeforeValidator(_managements)] = Field(
        default=(),
        description="RabbitMQ: [BROKER=]URL of its management API. []: look on the broker's "
        "host, port 15672, with TLS 15671; off: do not use it. It sets the policy "
        "of a direct delay exchange, and finds queues that are bound to a delay "
        "exchange.",
    )
    prefetch: Annotated[int, whole(1, 65_535)] = Field(
        default=4000,
        description="RabbitMQ: the most unacknowledged messages in memory, per exchange.",
    )
    window_bytes: Annotated[int, whole(_KIB, 2**40)] = Field(
        default=32 * _MIB,
        description="The most bytes in memory per broker; at the limit nothing more is read "
        "from it.",
    )
    group: Annotated[str, Field(min_length=1, max_length=249)] = Field(
        default="delaybridge", description="Kafka: the consumer group."
    )
    skip_offsets: Annotated[tuple[str, ...], BeforeValidator(_skips)] = Field(
        default=(),
        description="Kafka: TOPIC/PARTITION=OFFSET of records that cannot be read, to be skipped.",
    )
    take_over: Annotated[tuple[str, ...], BeforeValidator(_owners)] = Field(
        default=(),
        description="NAMESPACE@BIRTH of an abandoned namespace, as the refusal names it: its "
        "delay exchanges and delay topics become this one's.",
    )
    keep_partition: Annotated[bool, BeforeValidator(_switch)] = Field(
        default=False,
        description="Kafka: deliver to the partition of the same number, instead of by key.",
    )


class LimitsSettings(_Section):
    """What is accepted. Never above the brokers' own limits."""

    body_bytes: Annotated[int, whole(1, 512 * _MIB)] = Field(
        default=_LIMITS.body_bytes, description="The largest body, and the largest key."
    )
    headers: Annotated[int, whole(0, 10_000)] = Field(
        default=_LIMITS.headers, description="The most headers of one message."
    )
    headers_bytes: Annotated[int, whole(0, 128 * _KIB)] = Field(
        default=_LIMITS.headers_bytes, description="The largest size of all its headers together."
    )
    id_bytes: Annotated[int, whole(1, 255)] = Field(
        default=_LIMITS.id_bytes, description="The longest id."
    )
    delay_ms: Annotated[int, BeforeValidator(_delay)] = Field(
        default=_LIMITS.delay_ms, alias="delay", description="The longest delay, with a unit."
    )
    pending_messages: Annotated[int, whole(0, 10**12)] = Field(
        default=_LIMITS.pending_messages, description="The most messages pending; 0: no limit."
    )
    pending_bytes: Annotated[int, whole(0, 10**15)] = Field(
        default=_LIMITS.pending_bytes,
        description="The most bytes pending, approximately; 0: no limit.",
    )
    destination_messages: Annotated[int, whole(0, 10**12)] = Field(
        default=_LIMITS.destination_messages,
        description="The most messages pending for one destination, approximately; 0: no limit.",
    )
    destination_bytes: Annotated[int, whole(0, 10**15)] = Field(
        default=_LIMITS.destination_bytes,
        description="The most bytes pending for one destination, approximately; 0: no limit.",
    )

    def as_limits(self) -> Limits:
        """The same as `accept` and the clients take it."""
        return Limits(**self.model_dump())


class Settings(_Section):
    """All settings. `Settings()`: the defaults; `Settings.load()`: as people have set them."""

    namespace: Annotated[str, BeforeValidator(_namespace)] = Field(
        default="delaybridge", description="Prefix of every key in Redis: one namespace, one fleet."
    )
    buckets: Annotated[int, BeforeValidator(_buckets)] = Field(
        default=16,
        description="Shards of the store, a power of two; fixed when the namespace is first used.",
    )
    redis: RedisSettings = RedisSettings()
    brokers: dict[str, Annotated[SecretUrl, BeforeValidator(check_broker_url)]] = Field(
        default_factory=dict,
        description="Name = URL. The name is the first part of a destination, as in "
        "rabbitmq:orders/close; a message can go to a broker named here and to no other. "
        "In the environment: DELAYBRIDGE_BROKERS__RABBITMQ=amqp://...",
    )
    lease: LeaseSettings = LeaseSettings()
    scan: ScanSettings = ScanSettings()
    publish: PublishSettings = PublishSettings()
    retry: RetrySettings = RetrySettings()
    dead: DeadSettings = DeadSettings()
    ingest: IngestSettings = IngestSettings()
    limits: LimitsSettings = LimitsSettings()
    _sources: dict[str, str] = PrivateAttr(default_factory=dict)
    _given: tuple[str | Path | None, Mapping[str, Any]] = PrivateAttr(default=(None, {}))

    @classmethod
    def load(
        cls,
        config: str | Path | None = None,
        overrides: Mapping[str, Any] | None = None,
        *,
        environ: Mapping[str, str] | None = None,
    ) -> Self:
        """Flags (`overrides`, nested like the file) before environment before file before default.

        The file is `config`, else DELAYBRIDGE_CONFIG, else ./delaybridge.toml if there is one.
        An empty variable counts as unset. ConfigError: one line for each fault, all of them.
        """
        surroundings = os.environ if environ is None else environ
        chosen, faults = gather(_shape(), config, overrides or {}, surroundings)
        try:
            settings = cls.model_validate(_nested(chosen))
        except ValidationError as exc:
            faults += [_fault(chosen, error) for error in exc.errors()]
            raise ConfigError("\n".join(faults)) from None
        settings._sources.update({dotted(p): given.source for p, given in chosen.items()})
        settings._given = config, dict(overrides or {})
        faults += _broken_relations(settings)
        faults += _broken_routes(settings)
        faults += _bad_letters(settings)
        if faults:
            raise ConfigError("\n".join(faults))
        return settings

    def reread(self) -> Self:
        """The settings as they are written now: the same flags and file, read again."""
        return self.load(*self._given)

    def sources(self) -> dict[str, str]:
        """For each key path where its value came from: a flag, a variable, a file or `default`."""
        return {path: self._sources.get(path, DEFAULT) for path, _ in self.items()}

    def items(self) -> Iterator[tuple[str, Any]]:
        """Every key path with its value as it is written in the file; URLs still as `SecretUrl`."""
        for path, _ in fields():
            if path == BROKERS:
                yield from ((f"brokers.{name}", url) for name, url in self.brokers.items())
            else:
                yield dotted(path), self.value(path)

    def value(self, path: KeyPath) -> Any:
        """The value of one key path; a delay as text with its units."""
        if path == ("limits", "delay"):
            return duration(self.limits.delay_ms)
        return getattr(getattr(self, path[0]), path[1]) if len(path) > 1 else getattr(self, path[0])

    def cautions(self) -> list[str]:
        """What is accepted and yet deserves a warning at each start; without secrets."""
        urls = [("redis.url", self.redis.url)]
        urls += [(f"brokers.{name}", url) for name, url in self.brokers.items()]
        found = [f"{path}: {text}" for path, url in urls for text in cautions(url)]
        if self.publish.heartbeat_s < LOW_HEARTBEAT_S:
            found.append(
                f"publish.heartbeat_s: {self.publish.heartbeat_s} s gives false alarms; "
                f"use {LOW_HEARTBEAT_S} or more"
            )
        secret_files = {self._sources.get(path) for path, url in urls if has_secret(url)}
        for file in sorted(filter(None, secret_files)):
            if _others_may_read(file):
                found.append(f"{file}: holds a password and others may read it; chmod 600")
        return found


def fields() -> Iterator[tuple[KeyPath, FieldInfo]]:
    """Every setting in the order of the file, with its description and default."""
    for name, field in Settings.model_fields.items():
        section = field.annotation
        if isinstance(section, type) and issubclass(section, _Section):
            for inner, described in section.model_fields.items():
                yield (name, described.alias or inner), described
        else:
            yield (name,), field


def duration(ms: int) -> str:
    """`ms` as the file has it: exactly, in days, hours, minutes and the rest."""
    parts = []
    for unit, size in (("d", _DAY_MS), ("h", 3_600_000), ("m", 60_000), ("s", 1000), ("ms", 1)):
        count, ms = divmod(ms, size)
        parts.append(f"{count}{unit}" if count else "")
    return "".join(parts) or "0ms"


def _shape() -> Shape:
    known: dict[str, list[str] | None] = {}
    for path, _ in fields():
        if len(path) > 1:
            section = known.setdefault(path[0], [])
            if section is not None:
                section.append(path[1])
        else:
            known[path[0]] = [] if path == BROKERS else None
    return known


def _nested(chosen: Mapping[KeyPath, Given]) -> dict[str, Any]:
    tree: dict[str, Any] = {}
    for path, given in chosen.items():
        if len(path) > 1:
            tree.setdefault(path[0], {})[path[1]] = given.value
        else:
            tree[path[0]] = given.value
    return tree


def _fault(chosen: Mapping[KeyPath, Given], error: ErrorDetails) -> str:
    """One line for one refused value: where it was written, what, and what is allowed."""
    path = tuple(str(part) for part in error["loc"])
    if path not in chosen:  # of a whole section: the one thing in it that is checked so
        path = (*path, password_file.OPTION)
    given = chosen[path]
    allowed = str(error.get("ctx", {}).get("error", error["msg"]))
    return f"{given.source}: {dotted(path)}: got {shown(path, given.value)}; allowed: {allowed}"


def _broken_relations(settings: Settings) -> Iterator[str]:
    for left, sign, right in RELATIONS:
        least = sum(_number_at(settings, path) for path in left)
        most = _number_at(settings, right)
        if least > most or (least == most and sign == "<"):
            names = [*left, right]
            written = [settings.sources()[name] for name in names]
            source = next((name for name in written if name != DEFAULT), DEFAULT)
            sum_ = " + ".join(f"{name} ({settings.value(_path(name))})" for name in left)
            bound = "below" if sign == "<" else "at most"
            yield f"{source}: {sum_}: allowed: {bound} {right} ({settings.value(_path(right))})"


def _broken_routes(settings: Settings) -> Iterator[str]:
    """What ingest would refuse. If no broker of a kind is configured here, one may be elsewhere."""
    kinds = {name: kind_of(url) for name, url in settings.brokers.items()}
    for kind, path in ROUTE_SETTINGS.items():
        if kind not in kinds.values():
            kinds.setdefault(kind, kind)
        try:
            parse_routes(settings.value(_path(path)), kinds, kind, settings.brokers)
        except ConfigError as exc:
            yield f"{settings.sources()[path]}: {exc}"


def _bad_letters(settings: Settings) -> Iterator[str]:
    """Dead-letter destinations that name no broker here, or one that has another already."""
    if not settings.dead.dead_letter:
        return
    from delaybridge.accept.accept import parse_destination

    source, seen = settings.sources()["dead.dead_letter"], set()
    kinds = {name: kind_of(url) for name, url in settings.brokers.items()}
    for text in settings.dead.dead_letter:
        try:
            broker = parse_destination(text, kinds).broker
        except MessageError as exc:
            yield f"{source}: dead.dead_letter: got {text!r}; {exc.detail}"
            continue
        if broker in seen:
            yield f"{source}: dead.dead_letter: got {text!r}; broker {broker!r} has one already"
        seen.add(broker)


def _number_at(settings: Settings, name: str) -> float:
    """The number behind a key path; seconds as milliseconds."""
    value: float = settings.value(_path(name))
    return value * 1000 if name.endswith("_s") else value


def _path(name: str) -> KeyPath:
    return tuple(name.split("."))


def _others_may_read(file: str) -> bool:
    try:
        return bool(Path(file).stat().st_mode & (stat.S_IRGRP | stat.S_IROTH))
    except OSError:
        return False
