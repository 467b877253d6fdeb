"""The table of all endpoints. The router takes the first that fits, so the busiest come first."""

from __future__ import annotations

from delaybridge.web import messages
from delaybridge.web.endpoint import Endpoint

ENDPOINTS: tuple[Endpoint, ...] = (*messages.ENDPOINTS,)
