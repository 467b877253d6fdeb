"""Delay exchanges of RabbitMQ, read into the store."""

from delaybridge.ingest.rabbitmq.exchanges import connected

__all__ = ["connected"]
