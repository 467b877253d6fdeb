"""Delay topics of Kafka, read into the store by a consumer group."""

from delaybridge.ingest.kafka.topics_read import connected

__all__ = ["connected"]
