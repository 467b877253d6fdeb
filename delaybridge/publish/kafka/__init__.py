"""Publishes to Kafka with an idempotent producer; every in-sync replica confirms."""

from delaybridge.publish.kafka.publisher import KafkaPublisher as publisher

__all__ = ["publisher"]
