"""The table of the console's pages and of what belongs to them."""

from __future__ import annotations

from delaybridge.client.verbs import Scope
from delaybridge.serve.console import assets
from delaybridge.serve.console.page import refusal
from delaybridge.serve.console.screens import (
    dead,
    destinations,
    fleet,
    horizon,
    in_flight,
    jobs,
    live,
    login,
    message,
    messages,
    overview,
    recurring,
    system,
    tail,
)
from delaybridge.serve.http.endpoint import Endpoint, Reply
from delaybridge.serve.http.problems import Problem
from delaybridge.serve.shared.call import Call

PAGES = (
    *overview.PAGES,
    *horizon.PAGES,
    *messages.PAGES,
    *message.PAGES,
    *in_flight.PAGES,
    *dead.PAGES,
    *destinations.PAGES,
    *system.PAGES,
    *jobs.PAGES,
    *fleet.PAGES,
    *recurring.PAGES,
    *tail.PAGES,
)
ENDPOINTS = (
    *(page.endpoint() for page in PAGES),
    *message.routes.endpoints,
    *live.routes.endpoints,
    *login.routes.endpoints,
    *assets.routes.endpoints,
)


async def _no_page(call: Call) -> Reply:
    raise Problem(404, "not_found", "there is no such page")


NO_PAGE = Endpoint(
    method="GET", path="/{page}", scope=Scope.READ, handler=_no_page, refusal=refusal,
    summary="Say that there is no such page",
)  # fmt: skip
