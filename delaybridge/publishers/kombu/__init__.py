"""Publishes through any of kombu's transports, one message at a time on a thread."""

from delaybridge.publishers.kombu.publisher import KombuPublisher as publisher

__all__ = ["publisher"]
