"""The sections of the settings for what takes messages in from brokers: ingest, and the front."""

from typing import Annotated

from delaybridge.settings.section import Section
from delaybridge.settings.sections import Switch, Texts
from delaybridge.settings.values import number, short, text, texts, whole

_KIB, _MIB = 2**10, 2**20
Skips = Annotated[
    tuple[str, ...],
    texts(
        r"[^/=]+/[0-9]{1,9}=[0-9]{1,18}",
        'a list of TOPIC/PARTITION=OFFSET, as ["orders.delay/0=1234"]',
    ),
]
Owners = Annotated[
    tuple[str, ...],
    texts(
        r"[^@\s]+@[0-9a-f]+", "a list of NAMESPACE@BIRTH, as the refusal of ingest names the owner"
    ),
]
Rules = Annotated[
    tuple[str, ...],
    texts("[^=]+=.+", 'a list of SOURCE=DESTINATION, as ["orders.delay=rabbitmq:audit"]'),
]
SourceTenants = Annotated[
    tuple[str, ...], texts("[^=]+=[^=]+", 'a list of SOURCE=TENANT, as ["orders.delay=acme"]')
]
ManagementUrls = Annotated[
    tuple[str, ...],
    texts(
        r"([A-Za-z0-9_-]+=)?(off|https?://[^\s@?#/]+(/[^\s@?#]*)?)",
        "a list of [BROKER=]http[s]://HOST[:PORT] or off, without user and password",
    ),
]
_HOST = r"(\[[0-9a-fA-F:.%\w]+\]|[^\s:\[\]]+)"
_PORT = r"(6553[0-5]|655[0-2]\d|65[0-4]\d\d|6[0-4]\d{3}|[1-5]?\d{1,4})"
Nodes = Annotated[
    tuple[str, ...], texts(f"{_HOST}:{_PORT}", 'a list of HOST:PORT, as ["rabbit-1:5672"]')
]


class IngestSettings(Section):
    """Delay exchanges and delay topics: `delaybridge ingest`, `delaybridge scan --with-ingest`."""

    exchanges: Texts = ()
    """RabbitMQ: the delay exchanges. X.delay delivers to X; NAME=TARGET for other names;
    BROKER:NAME if several are configured."""
    topics: Texts = ()
    """Kafka: the delay topics, written the same way. * stands for any text: on a cluster that
    others use too, it may match their topics."""
    destinations: Texts = ()
    """Destinations that a delaybridge-destination header may name, in addition to the source's own
    target: as rabbitmq:audit or kafka:*, without routing key. They are of the source's kind."""
    trust: Rules = ()
    """A source may cancel, replace and reschedule only messages for destinations that it may send
    to. Rules that allow more: SOURCE=DESTINATION, as orders.delay=rabbitmq:audit; * is any text."""
    tenants: SourceTenants = ()
    """Whose messages a source reads: SOURCE=TENANT, as orders.delay=acme; * is any text; the first
    that fits counts. A source of no tenant may not name ids that begin with a tenant's name and
    a slash: see docs/tenants.md."""
    management: ManagementUrls = ()
    """RabbitMQ: [BROKER=]URL of its management API. []: look on the broker's host, port 15672,
    with TLS 15671; off: do not use it. It finds what else is bound to a delay exchange."""
    prefetch: Annotated[int, whole(1, 65_535)] = 4000
    """RabbitMQ: the most unacknowledged messages in memory, per queue; an exchange has two."""
    window_bytes: Annotated[int, whole(_KIB, 2**40)] = 32 * _MIB
    """The most bytes in memory per broker; at the limit nothing more is read from it."""
    group: Annotated[str, short(249, 1)] = "delaybridge"
    """Kafka: the consumer group."""
    skip_offsets: Skips = ()
    """Kafka: TOPIC/PARTITION=OFFSET of records that cannot be read, to be skipped."""
    take_over: Owners = ()
    """NAMESPACE@BIRTH of an abandoned namespace, as the refusal names it: its delay exchanges and
    delay topics become this one's."""
    keep_partition: Switch = False
    """Kafka: deliver to the partition of the same number, instead of by key."""
    front: Switch = False
    """RabbitMQ: also read for the exchanges that `delaybridge front` makes, as soon as they are
    made. The front's own ingest process always does."""
    negate_delay: Switch = False
    """RabbitMQ: consumers get x-delay as a negative number, as the plugin's last versions do, also
    from delay exchanges. From an exchange that a front made they always do."""
    broker_stamp: Switch = False
    """RabbitMQ: a delay counts from the header timestamp_in_ms. Only if RabbitMQ itself sets it:
    message_interceptors.incoming.set_header_timestamp.overwrite = true."""


class FrontSettings(Section):
    """The AMQP front: `delaybridge front`, `delaybridge scan --with-front`; see docs/front.md."""

    listen: Annotated[str, text(f"({_HOST}:)?{_PORT}", "HOST:PORT, as 127.0.0.1:5672")] = (
        "127.0.0.1:5672"
    )
    """HOST:PORT where clients connect; 0.0.0.0:5672 is reachable from other hosts."""
    broker: Annotated[str, short(64)] = ""
    """Which of [brokers] it stands before; it may be left out if only one is of RabbitMQ."""
    nodes: Nodes = ()
    """HOST:PORT of the nodes that clients are connected to; if one cannot be reached, the next one
    is tried. []: the host of the broker's URL."""
    suffix: Annotated[
        str, text("[A-Za-z0-9._~-]{1,32}", "1 to 32 of A-Z, a-z, 0-9, '.', '_', '~' and '-'")
    ] = ".due"
    """The delayed exchange D has its type and its bindings in an exchange of this ending. Set it
    before the first declare, the same at every front."""
    adopt: Switch = False
    """Also take an exchange D.due that no front has made, with its bindings."""
    allow_guest: Switch = False
    """Let the user guest in from other hosts, as RabbitMQ itself does not."""
    proxy_protocol: Switch = False
    """Tell the broker the address of each client, by PROXY protocol 2. It must expect that."""
    tls_cert_file: Annotated[str, short(4096)] = ""
    """Clients use TLS: the certificate, with those between it and the root. Empty: no TLS."""
    tls_key_file: Annotated[str, short(4096)] = ""
    """Its key; empty: it is in tls_cert_file, too."""
    other_protocols: Annotated[str, text("refuse|pass", "refuse or pass")] = "refuse"
    """What a client gets that begins with another protocol than AMQP 0-9-1, as AMQP 1.0: refuse, or
    pass: its connection is passed on as it is."""
    connections: Annotated[int, whole(1, 1_000_000)] = 10_000
    """The most open connections of clients to one process."""
    channels: Annotated[int, whole(0, 65_535)] = 0
    """The most open channels of one connection; 0: as many as the broker allows."""
    buffer_bytes: Annotated[int, whole(4 * _KIB, 2**30)] = 256 * _KIB
    """The most bytes in memory for one direction of one connection, before it is not read."""
    drain_timeout_s: Annotated[float, number(0, 3600)] = 10.0
    """After SIGTERM clients have this long to leave; then their connections are closed."""
    processes: Annotated[int, whole(1, 256)] = 1
    """Processes that share the address; at most one per core is useful."""
