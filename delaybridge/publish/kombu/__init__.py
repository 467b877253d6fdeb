"""Publishing through any of kombu's transports."""

from delaybridge.publish.kombu.publisher import publisher

__all__ = ["publisher"]
