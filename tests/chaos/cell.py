"""A cell: one fault done to one component, and what is expected. The cells are data."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tests.chaos.site import Site


@dataclass(frozen=True, kw_only=True)
class Setup:
    """The site of a cell. redis: "shared", "own", "clocked", "powered", "sentinel" or "cluster".

    broker: what the faults are done to: "rabbitmq" or "kafka" (shared), "own-" and its name.

    through: which of redis, broker, ledger are reached through a proxy that the cell can break.
    ledger: an own PostgreSQL, and durability ledger for all. Or "table space", "small disk": its
    tables, or all of it, are on a disk that may be full; "sqlite": a file on one. other: a second
    RabbitMQ, whose messages no fault concerns.
    """

    redis: str = "shared"
    redis_args: tuple[str, ...] = ()
    broker: str = "rabbitmq"  # or "own-rabbitmq", "kafka", "own-kafka"
    broker_config: str = ""  # of an own RabbitMQ
    through: tuple[str, ...] = ()
    ledger: bool | str = False
    other: bool = False
    workers: int = 2
    buckets: int = 16
    lease_ms: int = 2000
    settings: Mapping[str, str] = field(default_factory=dict)  # of workers, as NAME: value
    load: Mapping[str, Any] = field(default_factory=dict)
    change: str = ""  # of the workers' product; see changes.py


@dataclass(frozen=True, kw_only=True)
class Cell:
    """fault and expects are sentences of RESULTS.md. run: does it, while the load runs.

    duplicates: the most that may be delivered twice. back_off_ms: how long a message may wait after
    the end of the fault in addition to a lease. not_run: why there is nothing to run.
    """

    id: str
    component: str = "worker"
    fault: str
    expects: str
    run: Callable[[Site], None] = lambda site: None
    is_test: bool = False
    setup: Setup = field(default_factory=Setup)
    duplicates: int = 0
    back_off_ms: int = 5000
    may_lose_s: float = 0.0  # see Terms
    seconds: float = 0.0  # how long the load lasts, if this cell needs longer
    late_ms: int = 1000  # of destinations that no fault concerns
    cannot_hold: tuple[str, ...] = ()  # invariants that nobody could keep; said in `expects`
    excuses: Callable[[str], Collection[str]] = lambda id: ()  # likewise, of one message
    cancels_delivered: bool = False  # see Terms
    not_run: str = ""
