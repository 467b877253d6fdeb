"""Test your own code: a `Bridge` in memory, without Redis and brokers, whose clock you move.

The engine is the real one: its scripts run in a Redis of this process (`redis`), its scanner, which
`engine` drives, hands what is due to `brokers` that note it. `amqp` takes what client libraries
publish themselves. The fixture for pytest is `delaybridge.pytest_plugin`. See docs/testing.md.
"""

from __future__ import annotations

from delaybridge.testing.bridge import Bridge
from delaybridge.testing.brokers import DeliveredMessage

__all__ = ["Bridge", "DeliveredMessage"]
