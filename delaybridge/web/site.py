"""What all requests to one process share."""

from __future__ import annotations

from dataclasses import dataclass

from delaybridge.client.async_client import AsyncClient
from delaybridge.settings.settings import Settings


@dataclass(slots=True)
class Site:
    """The client, and the settings it was made with. is_draining: told to stop."""

    settings: Settings
    client: AsyncClient
    is_draining: bool = False
