"""What all requests to one process share."""

from __future__ import annotations

from dataclasses import dataclass, field

from delaybridge.client.async_client import AsyncClient
from delaybridge.settings.settings import Settings


@dataclass(slots=True)
class Site:
    """The client, and the settings it was made with.

    is_draining: told to stop. alone_since_s: bucket -> when it was first seen without a worker, on
    the monotonic clock.
    """

    settings: Settings
    client: AsyncClient
    is_draining: bool = False
    alone_since_s: dict[int, float] = field(default_factory=dict)
