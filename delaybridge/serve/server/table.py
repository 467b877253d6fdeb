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
    *messages.ENDPOINTS,
    *batch.ENDPOINTS,
    *bulk.ENDPOINTS,
    *export.ENDPOINTS,
    *ledger.ENDPOINTS,
    *dead.ENDPOINTS,
    *destinations.ENDPOINTS,
    *recurring.ENDPOINTS,
    *fleet.ENDPOINTS,
    *numbers.ENDPOINTS,
    *definitions.ENDPOINTS,
    *configuration.ENDPOINTS,
    *storefacts.ENDPOINTS,
    *doctor.ENDPOINTS,
    *topology.ENDPOINTS,
    *topics.ENDPOINTS,
    *stream.ENDPOINTS,
    *audit.ENDPOINTS,
    *health.ENDPOINTS,
)
ENDPOINTS = (*_DESCRIBED, *endpoints_about(_DESCRIBED), *pages.ENDPOINTS)
