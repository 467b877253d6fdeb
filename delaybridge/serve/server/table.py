"""The table of all endpoints. The router takes the first that fits, so the busiest come first."""

from __future__ import annotations

from delaybridge.serve.api.description.about import endpoints_about
from delaybridge.serve.api.messages import batch, bulk, dead, export, ledger, messages, topics
from delaybridge.serve.api.operations import (
    configuration,
    definitions,
    destinations,
    doctor,
    fleet,
    health,
    numbers,
    recurring,
    storefacts,
    stream,
    topology,
)
from delaybridge.serve.console.screens import pages
from delaybridge.serve.http.endpoint import Endpoint
from delaybridge.serve.shared import audit

_DESCRIBED: tuple[Endpoint, ...] = (
    *messages.routes.endpoints,
    *batch.routes.endpoints,
    *bulk.routes.endpoints,
    *export.routes.endpoints,
    *ledger.routes.endpoints,
    *dead.routes.endpoints,
    *destinations.routes.endpoints,
    *recurring.routes.endpoints,
    *fleet.routes.endpoints,
    *numbers.routes.endpoints,
    *definitions.routes.endpoints,
    *configuration.routes.endpoints,
    *storefacts.routes.endpoints,
    *doctor.routes.endpoints,
    *topology.routes.endpoints,
    *topics.routes.endpoints,
    *stream.routes.endpoints,
    *audit.routes.endpoints,
    *health.routes.endpoints,
)
ENDPOINTS = (*_DESCRIBED, *endpoints_about(_DESCRIBED), *pages.ENDPOINTS)
