"""The table of all endpoints. The router takes the first that fits, so the busiest come first."""

from __future__ import annotations

from delaybridge.web import (
    audit,
    batch,
    bulk,
    configuration,
    dead,
    definitions,
    destinations,
    doctor,
    export,
    fleet,
    health,
    ledger,
    messages,
    numbers,
    recurring,
    storefacts,
    stream,
    topics,
    topology,
)
from delaybridge.web.about import endpoints_about
from delaybridge.web.console import pages
from delaybridge.web.endpoint import Endpoint

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
