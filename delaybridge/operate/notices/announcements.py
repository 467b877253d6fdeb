"""Announcements of workers and ingest processes, read leniently.

Other versions announce fewer or more fields, and someone may have written anything by hand. Unknown
fields are ignored; a field that is missing or makes no sense becomes None, or `?` if it is a text.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from delaybridge.errors import printable
from delaybridge.store.namespace.announcements import announced, said_of, texts_of, vanished
from delaybridge.store.namespace.registry import KINDS
from delaybridge.store.protocol.record import WorkerTroubles

UNKNOWN = "?"
_SOURCE_TEXTS = ("source", "target", "state")
_SOURCE_COUNTS = ("total", "quarantined", "near_misses", "lag", "refused", "without_id")
_MOST = 2**53
_CLIENT_TEXTS = ("client", "user", "vhost", "product", "name", "node", "state", "held_for")
_CLIENT_COUNTS = ("channels", "received", "sent", "open_ms", "held_ms")
_CLIENTS = 200
_HELD_MS = 10_000  # a front gives up asking before that
_CHARS = 500
_FAULTS, _FAULT_CHARS = 20, 2000  # a fault ends with a command, which must be whole


class LedgerDrift(NamedTuple):
    """How far ledger and Redis differed when they were compared last; of a worker, or of all.

    silent: why the ledger does not answer, or empty. lag: what it was not told yet. restored:
    messages that Redis lacked; dropped: those that had ended; without_row: those that the ledger
    does not know; mended: rows that said something else than Redis. waiting: buckets of which
    nothing goes out before they were compared.
    """

    silent: str = ""
    lag: int = 0
    restored: int = 0
    dropped: int = 0
    without_row: int = 0
    mended: int = 0
    waiting: int = 0


class WorkerPace(NamedTuple):
    """How fast a worker is, of the last seconds; None, or a broker left out: it did not say.

    published_s, claims_s: a second. claimed: messages of a claim. ahead_ms: of its host's clock
    against Redis', at least; below 0: behind. By broker: confirm_ms: within how many ms 99 % were
    confirmed; unconfirmed: messages that the broker has not answered yet. late_ms: by destination,
    how late 99 % were at most, in the last minute.
    """

    published_s: float | None = None
    claims_s: float | None = None
    claimed: float | None = None
    ahead_ms: int | None = None
    confirm_ms: Mapping[str, float] = {}
    unconfirmed: Mapping[str, int] = {}
    late_ms: Mapping[str, float] = {}


class WorkerInfo(NamedTuple):
    """One living worker, as it announced itself.

    started_ms, expires_ms: in epoch milliseconds of Redis' clock. buckets: how many it holds.
    said: why messages do not go out (the name is public: `worker ls --json` prints it).
    damaged: bucket -> the damage that keeps it waiting. failing: what it cannot do, each with the
    reason: `series` (report what it counted), and other parts of its pulse. ledger: None without.
    instance: differs from every earlier worker of that name; empty: it did not say, and cannot
    be asked for anything. unwatched: why its buckets would wait for its lease, if it were killed;
    was_ousted: since the others took it for dead while it lived.
    """

    name: str
    host: str
    pid: int | None
    version: str
    started_ms: int | None
    buckets: int
    expires_ms: int
    said: WorkerTroubles = WorkerTroubles()
    damaged: Mapping[str, Any] = {}
    failing: Mapping[str, Any] = {}
    ledger: LedgerDrift | None = None
    instance: str = ""
    pace: WorkerPace = WorkerPace()
    unwatched: str = ""
    was_ousted: bool = False

    @property
    def obeys_rules(self) -> bool:
        """Whether its version obeys the rules of destinations."""
        return self.said.paused is not None


class SourceInfo(NamedTuple):
    """A delay exchange or delay topic as one ingest process sees it.

    state: `reading`, or why it does not read. total: messages read since the process started;
    quarantined: those that went to the dead set. near_misses: headers that resemble delaybridge's.
    lag: messages waiting at the broker, None if unknown. rate: messages a second. refused: cancels
    and reschedules of messages to destinations outside the source's reach. without_id: messages
    without an id, which are sent twice if RabbitMQ delivers them again. faults: what loses or
    hastens messages although the source is read, each with its remedy.
    """

    source: str
    target: str
    state: str
    total: int | None
    quarantined: int | None
    near_misses: int | None
    lag: int | None
    rate: float | None
    refused: int | None = 0
    without_id: int | None = 0
    faults: tuple[str, ...] = ()

    @property
    def condition(self) -> str:
        """The state, and the faults."""
        return "; ".join((self.state, *self.faults))


class IngestInfo(NamedTuple):
    """One living ingest process, as it announced itself."""

    name: str
    host: str
    pid: int | None
    version: str
    started_ms: int | None
    sources: list[SourceInfo]
    expires_ms: int


class FrontInfo(NamedTuple):
    """One living front, as it announced itself.

    listen: its address. open: how many clients are connected; clients: 200 of them at most, those
    that wait first, as `front/counts.py` announces them. nodes: of the broker -> why the last
    connect failed, None if it did not. exchanges: delayed exchanges that it knows, as `VHOST NAME`.
    refused: in the last ten minutes, what -> why.
    """

    name: str
    host: str
    pid: int | None
    version: str
    started_ms: int | None
    listen: str
    open: int | None
    clients: list[dict[str, Any]]
    nodes: Mapping[str, Any]
    exchanges: tuple[str, ...]
    refused: Mapping[str, Any]
    expires_ms: int

    @property
    def is_cut_off(self) -> bool:
        """Whether it reaches no node of the broker."""
        return bool(self.nodes) and all(self.nodes.values())

    @property
    def unreached(self) -> str:
        """The nodes that it does not reach, each with the reason."""
        return "; ".join(f"{node}: {why}" for node, why in self.nodes.items() if why)

    @property
    def late(self) -> list[dict[str, Any]]:
        """The clients whose frames have waited too long."""
        return [each for each in self.clients if (each["held_ms"] or 0) > _HELD_MS]


class Gone(NamedTuple):
    """A process that stopped announcing itself within ten minutes, and did not say that it leaves.

    It was killed, or it hangs, or it does not reach Redis. kind: `worker`, `ingest` or `front`.
    announced_ms: when it announced itself last, on Redis' clock. killed_by: who killed it on
    purpose and said so, as the demo does. ousted_by: the worker that found its connection gone.
    """

    kind: str
    name: str
    host: str
    pid: int | None
    version: str
    started_ms: int | None
    announced_ms: int
    killed_by: str = ""
    ousted_by: str = ""


def gone(of_kinds: Sequence[Any], now_ms: int) -> list[Gone]:
    """The processes that vanished, the latest first, in the replies to `registry.fleet` of all
    KINDS."""
    found = [
        Gone(
            kind,
            **_process(of, name),
            announced_ms=announced_ms,
            killed_by=_who(of, "killed_by"),
            ousted_by=_who(of, "ousted_by"),
        )  # fmt: skip
        for kind, replies in zip(KINDS, of_kinds, strict=True)
        for name, of, announced_ms in vanished(replies, now_ms)
    ]
    return sorted(found, key=lambda one: -one.announced_ms)


def workers(
    replies: Sequence[Any], now_ms: int, owners: Sequence[str | None] = ()
) -> list[WorkerInfo]:
    """The workers whose announcement has not expired, in the replies to `registry.fleet`.

    owners: the worker that holds each bucket. Of a damaged key, nothing.
    """
    return [
        WorkerInfo(
            **_process(of, name),
            buckets=owners.count(name),
            expires_ms=expires_ms,
            said=said_of(of),
            damaged=texts_of(of, "damaged") or {},
            failing=texts_of(of, "failing") or {},
            ledger=_drift(of.get("ledger")),
            instance=_instance(of),
            pace=_pace(of.get("pace")),
            unwatched=_who(of, "unwatched"),
            was_ousted=of.get("was_ousted") is True,
        )
        for name, of, expires_ms in announced(replies, now_ms)
    ]


def ingests(replies: Sequence[Any], now_ms: int) -> list[IngestInfo]:
    """The ingest processes whose announcement has not expired."""
    return [
        IngestInfo(**_process(of, name), sources=list(_sources(of)), expires_ms=expires_ms)
        for name, of, expires_ms in announced(replies, now_ms)
    ]


def fronts(replies: Sequence[Any], now_ms: int) -> list[FrontInfo]:
    """The fronts whose announcement has not expired."""
    return [
        FrontInfo(
            **_process(of, name),
            listen=_text(of, "listen"),
            open=_whole(of, "open"),
            clients=_clients(of.get("clients")),
            nodes=texts_of(of, "nodes") or {},
            exchanges=_texts(of.get("exchanges"), _CLIENTS),
            refused=texts_of(of, "refused") or {},
            expires_ms=expires_ms,
        )
        for name, of, expires_ms in announced(replies, now_ms)
    ]


def _clients(listed: object) -> list[dict[str, Any]]:
    return [
        {name: printable(str(each.get(name) or "")[:_CHARS]) for name in _CLIENT_TEXTS}
        | {name: _whole(each, name) for name in _CLIENT_COUNTS}
        for each in (listed[:_CLIENTS] if isinstance(listed, list) else ())
        if isinstance(each, dict)
    ]


def _drift(value: object) -> LedgerDrift | None:
    if not isinstance(value, dict):
        return None
    numbers = {name: _whole(value, name) or 0 for name in LedgerDrift._fields[1:]}
    return LedgerDrift(printable(str(value.get("silent") or "")[:_CHARS]), **numbers)


def _instance(of: Mapping[str, Any]) -> str:
    value = of.get("instance")
    return value if isinstance(value, str) and value.isalnum() and len(value) <= _CHARS else ""


def _pace(of: object) -> WorkerPace:
    if not isinstance(of, dict):
        return WorkerPace()
    published_s, claims_s, claimed = (
        _number(of, f) for f in ("published_s", "claims_s", "claimed")
    )
    confirm_ms, unconfirmed = (_numbers(of.get(f)) for f in ("confirm_ms", "unconfirmed"))
    waiting = {broker: int(count) for broker, count in unconfirmed.items()}
    ahead_ms = _whole(of, "ahead_ms")
    late_ms = _numbers(of.get("late_ms"))
    return WorkerPace(published_s, claims_s, claimed, ahead_ms, confirm_ms, waiting, late_ms)


def drift_of(living: Sequence[WorkerInfo]) -> LedgerDrift | None:
    """What the workers say together; None if none has a ledger."""
    found = [each.ledger for each in living if each.ledger is not None]
    if not found:
        return None
    sums = (sum(counts) for counts in zip(*(each[1:] for each in found), strict=True))
    return LedgerDrift(next((each.silent for each in found if each.silent), ""), *sums)


def waiting_text(buckets: int, silent: str) -> str:
    """`16 buckets wait to be compared with the ledger, which does not answer: ...`."""
    text = f"{buckets} buckets wait to be compared with the ledger"
    why = silent.removeprefix("ledger: ")
    return f"{text}, which does not answer: {why}" if why else text


def _process(of: Mapping[str, Any], name: str) -> dict[str, Any]:
    texts = {field: _text(of, field) for field in ("host", "version")}
    numbers = {field: _whole(of, field) for field in ("pid", "started_ms")}
    return {"name": name, **texts, **numbers}


def _who(of: Mapping[str, Any], field: str) -> str:
    return _text(of, field).removeprefix(UNKNOWN)


def _sources(of: Mapping[str, Any]) -> Iterator[SourceInfo]:
    listed = of.get("sources")
    for each in listed if isinstance(listed, list) else ():
        if isinstance(each, dict):
            texts: dict[str, Any] = {field: _text(each, field) for field in _SOURCE_TEXTS}
            counts: dict[str, Any] = {field: _whole(each, field) for field in _SOURCE_COUNTS}
            rate, faults = _number(each, "rate"), _texts(each.get("faults"), _FAULTS)
            yield SourceInfo(**texts, **counts, rate=rate, faults=faults)


def _texts(value: object, most: int) -> tuple[str, ...]:
    listed = value[:most] if isinstance(value, list) else ()
    return tuple(each[:_FAULT_CHARS] for each in listed if isinstance(each, str))


def _text(of: Mapping[str, Any], field: str) -> str:
    value = of.get(field)
    return value[:_CHARS] if isinstance(value, str) else UNKNOWN


def _whole(of: Mapping[str, Any], field: str) -> int | None:
    value = of.get(field)
    if not isinstance(value, int) or isinstance(value, bool) or abs(value) >= _MOST:
        return None
    return value


def _numbers(of: object) -> dict[str, float]:
    """An object of numbers; without whatever else it holds."""
    found = {} if not isinstance(of, dict) else {name: _number(of, name) for name in of}
    return {name: value for name, value in found.items() if value is not None}


def _number(of: Mapping[str, Any], field: str) -> float | None:
    value = of.get(field)
    if not isinstance(value, int | float) or isinstance(value, bool) or not abs(value) < _MOST:
        return None
    return float(value)
