"""Delay exchanges of RabbitMQ, read into the store."""

from delaybridge.ingest.rabbitmq.ingest import connected

__all__ = ["connected"]
