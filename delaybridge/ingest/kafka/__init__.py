"""Delay topics of Kafka, read into the store by a consumer group."""

from delaybridge.ingest.kafka.ingest import connected

__all__ = ["connected"]
