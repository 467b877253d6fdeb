"""The catalog: every metric with its type, its labels and its meaning.

docs/metrics.md shows it, and a test compares them.
"""

from __future__ import annotations

from typing import NamedTuple

PREFIX = "delaybridge_"


class Metric(NamedTuple):
    """kind: counter, gauge, histogram or info. alert: what an operator may alert on.

    of_redis: a counter that Redis has: absent while it does not answer, for a total may not fall.
    """

    kind: str
    labels: tuple[str, ...]
    means: str
    alert: str = ""
    of_redis: bool = False


def _counter(means: str, labels: str = "", alert: str = "") -> Metric:
    return Metric("counter", tuple(labels.split()), means, alert)


def _gauge(means: str, labels: str = "", alert: str = "") -> Metric:
    return Metric("gauge", tuple(labels.split()), means, alert)


def _histogram(means: str, labels: str = "", alert: str = "") -> Metric:
    return Metric("histogram", tuple(labels.split()), means, alert)


METRICS = {
    # counters: of the processes behind this port, since they started
    "messages_scheduled_total": _counter(
        "Messages that ingest stored, or that were made of recurring definitions. One that the "
        "broker delivers to ingest twice counts twice.",
        "destination source",
    ),
    "messages_ingested_total": _counter(
        "Messages read from a delay exchange or delay topic, also those refused or sent at once.",
        "source",
    ),
    "messages_refused_total": _counter(
        "Messages that ingest refused; they are in the dead set, unchanged.",
        "code",
        alert="any: a producer is broken",
    ),
    "messages_cancelled_total": _counter("Messages cancelled through ingest.", "destination"),
    "messages_rescheduled_total": _counter("Messages rescheduled through ingest.", "destination"),
    "recurring_missed_total": _counter(
        "Runs of a recurring definition that became due before they were made.",
        "name",
        alert="any: no worker ran",
    ),
    "messages_claimed_total": _counter(
        "Messages taken into memory, shortly before they are due.", "destination"
    ),
    "messages_fired_total": _counter(
        "Messages that the store allowed to be published, when they are due.", "destination"
    ),
    "messages_published_total": _counter("Messages that the broker confirmed.", "destination"),
    "messages_settled_total": _counter(
        "Messages that were delivered and are no longer stored. At-most-once messages are settled"
        " before they are published.",
        "destination",
    ),
    "messages_retried_total": _counter(
        "Failed attempts after which the message waits for another.",
        "destination reason",
        alert="rate() stays above 0",
    ),
    "messages_buried_total": _counter(
        "Messages that moved to the dead set.",
        "destination reason",
        alert="any: look at delaybridge dead ls",
    ),
    "messages_dead_lettered_total": _counter(
        "Messages sent to the dead-letter destination.", "destination reason", alert="any"
    ),
    "messages_dropped_total": _counter(
        "At-most-once messages lost in a failed publish.", "destination reason"
    ),
    "messages_reclaimed_total": _counter(
        "Messages that a dead worker had claimed, taken back.", "destination"
    ),
    "dead_messages_deleted_total": _counter(
        "Dead messages deleted because of dead.max_messages or dead.max_age_s."
    ),
    "publish_errors_total": _counter(
        "Publishes that failed, or whose outcome is unknown.",
        "broker error_type",
        alert="rate() stays above 0",
    ),
    "circuits_opened_total": _counter(
        "How often a destination began to refuse everything.", "destination"
    ),
    "leases_acquired_total": _counter("Buckets that a worker began to scan."),
    "leases_lost_total": _counter(
        "Buckets that a worker stopped scanning. cause: released (a drain) or expired.",
        "cause",
        alert='rate(cause="expired") above 0: workers starve or Redis is slow',
    ),
    "store_silences_total": _counter("How often Redis did not answer in time."),
    "scanner_failures_total": _counter(
        "Unexpected errors after which a scanner started again.", alert="any: report a bug"
    ),
    "process_crashes_total": _counter("Child processes that died and were replaced.", alert="any"),
    "front_accepted_connections_total": _counter("Connections of clients that fronts accepted."),
    "front_connections_refused_total": _counter(
        "Those sent away. reason: broker (no node is reached), limit, guest, protocol or frame.",
        "reason",
        alert="rate() stays above 0",
    ),
    "front_bytes_total": _counter("Bytes passed on: to_broker, to_client.", "direction"),
    "front_methods_refused_total": _counter(
        "Those for which a channel was closed: by a front, or for want of rights on what it made.",
        "code",
        alert="any: see `doctor`",
    ),
    # counters: of Redis, read when scraped
    **{
        f"store_messages_{what}_total": _counter(
            f"Messages that anyone {what}, counted in Redis: the same from every process; do not"
            " sum."
        )._replace(of_redis=True)
        for what in ("scheduled", "cancelled", "rescheduled", "kicked")
    },
    # histograms, of the same processes
    "publish_lateness_seconds": _histogram(
        "Time of the confirm minus due time, of each message: the service level.",
        "destination",
        alert="the 99th percentile is above 1 s for 5 m",
    ),
    "publish_confirm_seconds": _histogram(
        "How long a broker took to confirm a batch; one observation per batch.", "broker"
    ),
    "requested_delay_seconds": _histogram(
        "How long messages that ingest stored are to wait, when they are stored.", "destination"
    ),
    "scan_batch_messages": _histogram("Messages in a claim that returned any."),
    "claim_seconds": _histogram("How long a claim took, in Redis and on the way there."),
    "front_held_seconds": _histogram("How long a declare, delete or bind took in a front."),
    # gauges, of these processes
    "worker_processes": _gauge("Processes that run and have reported."),
    "worker_buckets": _gauge("Buckets held by these processes.", alert="0 for minutes"),
    "worker_last_scan_timestamp_seconds": _gauge(
        "When these workers last looked after their leases; of several, the one longest ago.",
        alert="time() minus this is above 30",
    ),
    "worker_clock_skew_seconds": _gauge(
        "Redis' clock minus this host's. Due times count on Redis' clock.", alert="above 0.1"
    ),
    "publisher_unconfirmed_messages": _gauge(
        "Messages that a broker has and has not confirmed.", "broker"
    ),
    "broker_up": _gauge("1: available to all of these workers.", "broker", alert="0 for 1 m"),
    "ledger_up": _gauge(
        "1: the ledger's database answers all of these workers.", alert="0 for 1 m"
    ),
    "ledger_lag_messages": _gauge("What the ledger was not told yet.", alert="it grows"),
    "ledger_waiting_buckets": _gauge(
        "Buckets held here of which nothing goes out before they were compared with the ledger.",
        alert="above 0 for 1 m",
    ),
    "ledger_restored_messages": _gauge(
        "Messages that Redis lacked when it was compared with the ledger last.", alert="above 0"
    ),
    "ledger_without_row_messages": _gauge(
        "Messages that Redis had and the ledger did not know when they were compared last."
    ),
    "source_up": _gauge(
        "1: one of these processes reads it, or it is idle here because another does.",
        "source",
        alert="0 for 1 m",
    ),
    "source_faults": _gauge(
        "What is wrong with it although it is read: messages wait for a quota or a damaged bucket, "
        "or go elsewhere. `worker ls` says what.",
        "source",
        alert="above 0 for 5 m",
    ),
    "source_lag_messages": _gauge(
        "Messages that wait at the broker to be read by ingest.", "source", alert="it grows"
    ),
    "front_connections": _gauge("Clients that are connected to fronts."),
    "front_longest_held_seconds": _gauge(
        "How long a client's frames have waited in a front, at most.", alert="above 10"
    ),
    "front_node_up": _gauge(
        "1: this node of the broker took the last connection.", "node", alert="0 for 1 m"
    ),
    # gauges, of Redis, read when scraped
    "store_up": _gauge("1: Redis answered this scrape.", alert="0 for 30 s"),
    "store_refusing": _gauge(
        "Redis masters that answer, and take no writes.", alert="above 0 for 30 s"
    ),
    "store_memory_bytes": _gauge("Memory that Redis uses; on a Cluster the sum of its masters."),
    "store_memory_max_bytes": _gauge(
        "Redis' maxmemory; 0: none.", alert="store_memory_bytes is above 80 % of it"
    ),
    "messages": _gauge(
        "Messages in the buckets held here. state: delayed, in_flight, parked or dead.", "state"
    ),
    "destination_messages": _gauge(
        "Messages in the buckets held here by destination: counted, or estimated if more than about"
        " 2,000 are in this state. Read again after ten seconds.",
        "destination state",
    ),
    "destination_messages_error": _gauge(
        "How far off destination_messages is, in 95 of 100 cases at most; 0: counted.",
        "destination state",
    ),
    "oldest_overdue_seconds": _gauge(
        "How late the oldest message is, in the buckets held here or by no worker; 0 if none is"
        " late. Held messages are not late.",
        alert="above 5 for 1 m: page",
    ),
    "held_messages": _gauge(
        "Messages that are due and wait because an operator wants it. cause: paused or rate.",
        "destination cause",
    ),
    "orphans_found_messages": _gauge(
        "Messages that were found in no set of their bucket, of those held here, until `delaybridge"
        " alarm clear`. became: due (delayed again), dead, parked (held back), or bare: the body is"
        " lost, and the rest is dead.",
        "became",
        alert="above 0: keys were lost in Redis",
    ),
    "orphans_waiting_messages": _gauge(
        "Of those the ones that are held back until an operator decides.", alert="above 0"
    ),
    "next_due_timestamp_seconds": _gauge(
        "When the next delayed message of the buckets held here is due; absent if there is none."
    ),
    "horizon_messages": _gauge(
        "Messages in the buckets held here that are in flight, or delayed and due within the window"
        " (1m, 5m, 1h, 1d; each includes the shorter ones).",
        "window",
    ),
    "recurring_last_run_timestamp_seconds": _gauge(
        "Due time of the latest run that these processes made.", "name"
    ),
    "buckets": _gauge("Buckets of the namespace: the same from every process; do not sum."),
    "buckets_unowned": _gauge(
        "Buckets that no worker holds: the same from every process; do not sum.",
        alert="above 0 for 30 s: page",
    ),
    "buckets_unseen": _gauge(
        "Buckets whose Redis server, one of a Cluster, does not answer: the same from every"
        " process; do not sum. No other gauge counts them.",
        alert="above 0 for 30 s: page",
    ),
    "retrying_messages": _gauge(
        "Messages in the buckets held here whose last publish failed, about a thousand of each.",
        "destination reason",
        alert="above 0 for 10 m",
    ),
    "build_info": Metric(
        "info", ("version", "python", "redis_client", "broker_client"), "The versions in use."
    ),
}
"""Name without the prefix -> the metric."""
