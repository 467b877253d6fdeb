"""The table of the console's pages and of what belongs to them."""

from __future__ import annotations

from delaybridge.web.console import (
    assets,
    dead,
    fleet,
    horizon,
    in_flight,
    jobs,
    live,
    login,
    message,
    messages,
    overview,
    places,
    recurring_page,
    system,
    tail,
)

PAGES = (
    *overview.PAGES,
    *horizon.PAGES,
    *messages.PAGES,
    *message.PAGES,
    *in_flight.PAGES,
    *dead.PAGES,
    *places.PAGES,
    *system.PAGES,
    *jobs.PAGES,
    *fleet.PAGES,
    *recurring_page.PAGES,
    *tail.PAGES,
)
ENDPOINTS = (
    *(page.endpoint() for page in PAGES),
    *message.ENDPOINTS,
    *live.ENDPOINTS,
    *login.ENDPOINTS,
    *assets.ENDPOINTS,
)
