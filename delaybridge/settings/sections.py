"""The sections of the settings: every key with its default, its bounds and its description.

`config/delaybridge.toml` is generated from here: the docstrings of sections and of their settings
are its comments.
"""

from typing import Annotated, Any
from urllib.parse import quote

from delaybridge.message import TENANT, TENANT_CHARS, Limits
from delaybridge.settings import password_file
from delaybridge.settings.durability import HOT_WINDOW_S, check_hot_window
from delaybridge.settings.section import Section, WrittenAs, WrongSettings, WrongValue
from delaybridge.settings.urls import SecretUrl, check_ledger_url, check_redis_url
from delaybridge.settings.values import (
    delay,
    each_once,
    networks,
    number,
    printable,
    short,
    switch,
    text,
    texts,
    whole,
)

PATH_PREFIX = r"(/[A-Za-z0-9._~-]+)*/?"
_LIMITS = Limits()
_KIB, _MIB = 2**10, 2**20
_DAY_MS = 86_400_000

Texts = Annotated[tuple[str, ...], texts()]
Networks = Annotated[tuple[str, ...], texts(), networks]
Switch = Annotated[bool, switch]
Tenants = Annotated[
    tuple[str, ...],
    texts(TENANT, f"a list of names of 1 to {TENANT_CHARS} of a-z A-Z 0-9 . _ -, no sign first"),
    each_once,
]
TenantLimits = Annotated[
    tuple[str, ...],
    texts("[^=]+=[0-9]{1,15}/[0-9]{1,15}", 'a list of NAME=MESSAGES/BYTES, as ["acme=500000/0"]'),
]


class RedisSettings(Section):
    """Where delayed messages are stored."""

    url: Annotated[SecretUrl, check_redis_url] = SecretUrl("redis://127.0.0.1:6379/0")
    """redis://HOST[:PORT][/DB], unix:///PATH?db=DB, redis+sentinel://HOST,HOST.../SERVICE[/DB] or
    redis+cluster://HOST[:PORT],HOST...; rediss for TLS. USER:PASSWORD@ before the first HOST, in a
    password @ as %40 and / as %2F. For the Sentinels ?sentinel_username=&sentinel_password=, or
    sentinel_password_file. ?time_in_scripts=no for a server that refuses TIME in scripts."""
    timeout_s: Annotated[float, number(0.05, 60)] = 5.0
    """A call is answered or fails within this time."""
    password_file: Annotated[str, short(4096)] = ""
    """A file that holds the password, instead of the URL. It is read at each connect, so a new
    password takes effect at once. The same as ?password_file=/PATH in the URL, which every
    broker's URL takes, too."""

    def __init__(self, **given: Any) -> None:
        """Everything that connects is given the URL alone."""
        super().__init__(**given)
        _, file = password_file.split(self.url)
        if not self.password_file or (file is not None and file.path == self.password_file):
            return
        option = f"{password_file.OPTION}={quote(self.password_file)}"
        url = f"{str.__str__(self.url)}{'&' if '?' in self.url else '?'}{option}"
        try:  # it is read again: refused where the URL holds a password
            if file is not None:
                raise ValueError("password_file here or in the URL, not two different ones")
            self.__dict__["url"] = check_redis_url(url)
        except ValueError as exc:
            raise WrongSettings(
                [WrongValue((password_file.OPTION,), self.password_file, str(exc))]
            ) from None


class LedgerSettings(Section):
    """A database that has every message: see docs/ledger.md. It is used if durability is ledger."""

    url: Annotated[SecretUrl, check_ledger_url] = SecretUrl("")
    """postgresql+psycopg://USER@HOST[:PORT]/DATABASE, mysql+pymysql://USER@HOST[:PORT]/DATABASE, or
    sqlite:////PATH for one machine; in a password @ as %40 and / as %2F."""
    hot_window_s: Annotated[float, number(0, 10**9), check_hot_window] = HOT_WINDOW_S
    """Messages due later than this stay in the database alone; a worker brings them into Redis in
    time. 0: all go into Redis at once; else 10 or more."""
    retention_s: Annotated[float, number(0, 10**9)] = 604_800.0
    """How long rows of messages are kept that were published, cancelled or have expired. 0: for
    ever."""
    reconcile_s: Annotated[float, number(1, 86_400)] = 60.0
    """How often one worker compares the ledger with Redis, and mends what differs."""


class OutboxSettings(Section):
    """An application's database with the table of `delaybridge.outbox`: see docs/outbox.md."""

    url: Annotated[SecretUrl, check_ledger_url] = SecretUrl("")
    """The same forms as for ledger.url. It is used by `delaybridge outbox` only."""
    poll_ms: Annotated[int, whole(1, 60_000)] = 20
    """How often the pump looks for rows. On PostgreSQL it is told of them, and looks every
    second."""


class LeaseSettings(Section):
    """The right of one worker to scan one bucket."""

    ttl_ms: Annotated[int, whole(100, 600_000)] = 10_000
    """The buckets of a dead worker wait at most this long."""
    renew_ms: Annotated[int, whole(10, 300_000)] = 4000
    """How often a lease is renewed. renew_ms + redis.timeout_s < ttl_ms."""


class ScanSettings(Section):
    """The worker: how much it takes from the store, and how far ahead."""

    processes: Annotated[int, whole(1, 256)] = 1
    """Worker processes of one `delaybridge scan`; at most one per core is useful."""
    claim_ahead_ms: Annotated[int, whole(0, 600_000)] = 2000
    """How long before its due time a message is taken into memory."""
    wheel_messages: Annotated[int, whole(1, 10_000_000)] = 100_000
    """The most messages that one worker process holds claimed; at the limit it claims no more."""
    wheel_bytes: Annotated[int, whole(_KIB, 2**40)] = 64 * _MIB
    """The same in bytes."""
    batch_messages: Annotated[int, whole(1, 1000)] = 1000
    """The most messages of one claim."""
    batch_bytes: Annotated[int, whole(_KIB, 512 * _MIB)] = 4 * _MIB
    """The same in bytes; a message must fit."""
    fire_lead_ms: Annotated[int, whole(0, 1000)] = 10
    """A message counts as handed over, and can no longer be cancelled, at most this long before
    its due time. For half of it Redis may be busy with something else, and no message is late.
    Nothing is ever published early."""
    drain_timeout_s: Annotated[float, number(0.1, 3600)] = 20.0
    """A stopping worker ends within this time: it waits for outstanding confirms and gives its
    buckets back. Set it below your supervisor's own limit."""


class PublishSettings(Section):
    """Handing messages to the brokers."""

    window_messages: Annotated[int, whole(1, 500_000)] = 10_000
    """The most messages handed to a broker and not yet confirmed, per worker process: this bounds
    the duplicates after a fault."""
    window_bytes: Annotated[int, whole(_KIB, 2**40)] = 32 * _MIB
    """The same in bytes; a message must fit."""
    confirm_timeout_s: Annotated[float, number(0.1, 3600)] = 20.0
    """Without a confirm within this time the outcome is unknown, and the message is retried."""
    heartbeat_s: Annotated[int, whole(1, 600)] = 15
    """RabbitMQ: heartbeat; below 5 s it gives false alarms."""
    blocked_connection_timeout_s: Annotated[float, number(0.1, 3600)] = 20.0
    """RabbitMQ: how long it may block this connection (memory or disk alarm)."""
    dedup_window_s: Annotated[float, number(0, 10**9)] = 0.0
    """How long a schedule of an id that was delivered is answered `duplicate`; the same for all
    workers. Each id takes about 130 bytes of Redis for that time: see docs/effectively-once.md.
    0: the id is free at once."""
    linger_ms: Annotated[int, whole(0, 1000)] = 0
    """Kafka: how long to wait for more messages to send together. 0: only while a topic has
    hundreds of messages in flight, 5 ms."""


class RetrySettings(Section):
    """What happens after a failed publish. A broker that is down costs no attempts."""

    max_attempts: Annotated[int, whole(1, 1000)] = 16
    """After this many attempts the message goes to the dead set, with the last reason."""
    base_ms: Annotated[int, whole(1, _DAY_MS)] = 1000
    """The wait after the first failure."""
    factor: Annotated[float, number(1, 100, above=True)] = 2.0
    """Each further wait is longer by this factor."""
    max_ms: Annotated[int, whole(1, _DAY_MS)] = 300_000
    """The longest wait."""
    jitter: Annotated[float, number(0, 1)] = 0.2
    """The share by which each wait is shortened or lengthened at random."""


class DeadSettings(Section):
    """Messages given up: their bounds, and where they go instead of the dead set."""

    max_messages: Annotated[int, whole(0, 10**9)] = 0
    """The most messages that the dead set keeps, shared evenly by the buckets, each of which keeps
    one at least; above that the oldest are dropped for good. 0: no limit."""
    max_age_s: Annotated[float, number(0, 10**9)] = 0.0
    """Older dead messages are dropped for good. 0: no limit."""
    dead_letter: Texts = ()
    """Where a message is published when its attempts are used up: one destination per broker, as
    rabbitmq:/orders.dead or kafka:orders.dead. If that fails, it goes to the dead set."""

    @property
    def is_bounded(self) -> bool:
        """Whether anything is ever dropped."""
        return bool(self.max_messages or self.max_age_s)


class MetricsSettings(Section):
    """Metrics for Prometheus, and health probes: see docs/metrics.md."""

    port: Annotated[int, whole(0, 65_535)] = 0
    """`scan`, `ingest` and `front` serve /metrics, /health/live and /health/ready here, with one
    port for all processes of a command; 0: they serve nothing."""
    host: Annotated[str, short(255, 1)] = "127.0.0.1"
    """The address to listen on; 0.0.0.0 is reachable from other hosts, without a password."""


class HttpSettings(Section):
    """Brokers of the kind http: each message is a POST, as `hook = "https://host/base"`."""

    allow_private: Switch = False
    """Also connect to private and local addresses, and without TLS."""
    secret_file: Annotated[str, short(4096)] = ""
    """A file with the secret that signs each POST (Standard Webhooks); several lines: with each."""
    timeout_s: Annotated[float, number(0.1, 3600)] = 10.0
    """A POST is answered within this time, or its outcome is unknown."""
    connections: Annotated[int, whole(1, 10_000)] = 64
    """The most POSTs under way at once, for each broker."""
    proxy: Annotated[
        str, text(r"|https?://[^\s@?#/]+/?", "http://HOST:PORT, without a user", 1000)
    ] = ""
    """http://HOST:PORT of a proxy that all POSTs go through. It decides what may be reached."""


class ServeSettings(Section):
    """The HTTP API: `delaybridge serve`."""

    host: Annotated[str, short(255, 1)] = "127.0.0.1"
    """The address to listen on; any but this host's own needs token_file."""
    port: Annotated[int, whole(0, 65_535)] = 8645
    """The port; 0: any free one."""
    base_path: Annotated[str, text(PATH_PREFIX, "a path, as /delay")] = "/"
    """What stands before each path, as /delay behind a proxy."""
    trusted_proxies: Networks = ()
    """Addresses or networks of proxies, as ["127.0.0.1", "10.0.0.0/8"]. From these X-Forwarded-For
    says the client's address, and X-Forwarded-Prefix what they took off the path."""
    token_file: Annotated[str, short(4096)] = ""
    """A file with one token a line: TOKEN [read|write|admin [NAME [TENANT]]]; admin if nothing is
    said. Instead of TOKEN also sha256:HEX, its SHA-256, as `delaybridge serve token new` writes it.
    It is read again whenever it changes. Without it everybody who reaches the port may do
    everything."""
    rate: Annotated[float, number(0, 1_000_000)] = 0.0
    """The most requests a second of one token to one process; 0: no limit."""
    allowed_hosts: Texts = ()
    """The names that requests may use for this server, as ["delay.example.com"]; []: any with a
    token_file, else only this host's own."""
    read_only: Switch = False
    """Change nothing, whatever a token allows."""
    compat: Annotated[str, text("[a-z0-9_-]{0,64}", "up to 64 of a-z 0-9 _ -")] = ""
    """Also speak the HTTP of another delay queue: mykit, youzan or delay-queue."""
    compat_destination: Annotated[str, short(1000)] = "pull:{topic}"
    """Where the messages of its topics go, as kafka:{topic} or rabbitmq:{topic}/{subtopic}."""
    env_label: Annotated[str, printable(20)] = ""
    """A word at the top of every page of the console, as PROD; up to 20 characters."""
    trace_url: Annotated[str, text(r"|https?://\S+", "a URL of http or https", 1000)] = ""
    """Where the console's link to a message's trace leads, as https://jaeger/trace/{trace_id}."""
    processes: Annotated[int, whole(1, 256)] = 1
    """Processes that share the port; at most one per core is useful."""
    connections: Annotated[int, whole(1, 1_000_000)] = 10_000
    """The most open connections of one process; fewer if it may open fewer files. For a new one the
    oldest idle one is closed. Streams and long polls get half, and a token half of that."""
    batch_bytes: Annotated[int, whole(64 * _KIB, 512 * _MIB)] = 16 * _MIB
    """The largest request of POST /v1/messages:batch."""
    idempotency_keys: Annotated[int, whole(0, 10**9)] = 1_000_000
    """The most Idempotency-Keys that are remembered, for a day each; one takes about 1 KB of
    Redis."""


class LimitsSettings(Section):
    """Limits of messages and of the namespace. Never above the brokers' own."""

    body_bytes: Annotated[int, whole(1, 512 * _MIB)] = _LIMITS.body_bytes
    """The largest body, and the largest key."""
    headers: Annotated[int, whole(0, 10_000)] = _LIMITS.headers
    """The most headers of one message."""
    headers_bytes: Annotated[int, whole(0, 128 * _KIB)] = _LIMITS.headers_bytes
    """The largest size of all its headers together."""
    id_bytes: Annotated[int, whole(1, 255)] = _LIMITS.id_bytes
    """The longest id."""
    delay_ms: Annotated[int, WrittenAs("delay"), delay] = _LIMITS.delay_ms
    """The longest delay, with a unit."""
    pending_messages: Annotated[int, whole(0, 10**12)] = _LIMITS.pending_messages
    """The most messages pending; 0: no limit."""
    pending_bytes: Annotated[int, whole(0, 10**15)] = _LIMITS.pending_bytes
    """The most bytes pending, approximately; 0: no limit."""
    destination_messages: Annotated[int, whole(0, 10**12)] = _LIMITS.destination_messages
    """The most messages pending for one destination, approximately; 0: no limit."""
    destination_bytes: Annotated[int, whole(0, 10**15)] = _LIMITS.destination_bytes
    """The most bytes pending for one destination, approximately; 0: no limit."""
    tenant_messages: Annotated[int, whole(0, 10**12)] = _LIMITS.tenant_messages
    """The most messages pending of one tenant, approximately; 0: no limit: see docs/tenants.md."""
    tenant_bytes: Annotated[int, whole(0, 10**15)] = _LIMITS.tenant_bytes
    """The most bytes pending of one tenant, approximately; 0: no limit."""
    tenants: TenantLimits = ()
    """Other numbers for some tenants: NAME=MESSAGES/BYTES, as acme=500000/0."""

    def as_limits(self) -> Limits:
        """The same as `accept` and the clients take it."""
        return Limits(**{**self.model_dump(), "tenants": dict(map(_tenant_limits, self.tenants))})


def _tenant_limits(rule: str) -> tuple[str, tuple[int, int]]:
    name, _, numbers = rule.partition("=")
    messages, _, size = numbers.partition("/")
    return name, (int(messages), int(size))
