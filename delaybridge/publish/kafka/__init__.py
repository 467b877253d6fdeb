"""Publishing to Kafka: an idempotent producer, confirmed by every in-sync replica."""

from delaybridge.publish.kafka.publisher import publisher

__all__ = ["publisher"]
