"""The table of all endpoints. The router takes the first that fits, so the busiest come first."""

from __future__ import annotations

from delaybridge.serve.api.description.about import endpoints_about
from delaybridge.serve.api.messages import (
    batch,
    bulk,
    carrying,
    dead,
    export,
    ledger,
    messages,
    streaming,
    topics,
)
from delaybridge.serve.api.operations import (
    definitions,
    deployment,
    destinations,
    fleet,
    health,
    numbers,
    recurring,
    stream,
)
from delaybridge.serve.console.screens import pages
from delaybridge.serve.http.endpoint import Endpoint
from delaybridge.serve.shared import audit

_MODULES = (
    *(
        messages,
        batch,
        streaming,
        bulk,
        export,
        carrying,
        ledger,
        dead,
        destinations,
        recurring,
        fleet,
    ),
    *(numbers, definitions, deployment, topics, stream, audit, health),
)
_DESCRIBED: tuple[Endpoint, ...] = tuple(
    endpoint for module in _MODULES for endpoint in module.routes.endpoints
)
ENDPOINTS = (*_DESCRIBED, *endpoints_about(_DESCRIBED), *pages.ENDPOINTS)
