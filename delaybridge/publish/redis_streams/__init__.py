"""Publishes to Redis Streams, one XADD per message, pipelined."""

from delaybridge.publish.redis_streams.publisher import StreamsPublisher as publisher

__all__ = ["publisher"]
