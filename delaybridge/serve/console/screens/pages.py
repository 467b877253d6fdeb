"""The table of the console's pages and of what belongs to them."""

from __future__ import annotations

from functools import partial

from delaybridge.client.verbs import Scope
from delaybridge.serve.console import rendering
from delaybridge.serve.console.page import ConsolePage, refusal
from delaybridge.serve.console.screens import (
    destinations,
    fleet,
    horizon,
    live,
    login,
    message,
    messages,
    overview,
    recurring,
    system,
)
from delaybridge.serve.http.endpoint import Endpoint, Reply
from delaybridge.serve.http.problems import Problem
from delaybridge.serve.shared.call import Call

_MODULES = (overview, horizon, messages, message, destinations, system, fleet, recurring, live)
PAGES = tuple(page for module in _MODULES for page in module.pages.listed)
ENDPOINTS = (
    *(each for module in _MODULES for each in module.pages.endpoints),
    *(each for one in (message, live, login, rendering) for each in one.routes.endpoints),
)


async def _no_page(call: Call) -> Reply:
    raise Problem(404, "not_found", "there is no such page")


_LOST = ConsolePage("/{page}", "problem", "There is no such page")
NO_PAGE = Endpoint(
    method="GET", path=_LOST.path, scope=Scope.READ, handler=_no_page,
    refusal=partial(refusal, page=_LOST), summary="Say that there is no such page",
)  # fmt: skip
