"""Publishes to Redis Streams, one XADD per message, pipelined."""

from delaybridge.publishers.redis_streams.publisher import StreamsPublisher as publisher

__all__ = ["publisher"]
