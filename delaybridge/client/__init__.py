"""The clients: what an application uses to schedule, cancel, reschedule and inspect messages.

`Client` is synchronous, `AsyncClient` runs on an event loop. Both have the same methods, and both
do the same with a call: `Requests` checks the arguments and returns steps, a store completes them.
"""

from delaybridge.client.async_client import AsyncClient
from delaybridge.client.client import Client

__all__ = ["AsyncClient", "Client"]
