"""Login: a token becomes a session of the browser."""

from __future__ import annotations

import logging
from urllib.parse import parse_qs

from delaybridge.client.verbs import Scope
from delaybridge.errors import DelayBridgeError, printable
from delaybridge.serve.access.sessions import KEPT_S, is_foreign
from delaybridge.serve.console.page import html_page, lead_to, refusal
from delaybridge.serve.http.endpoint import Reply, Routes
from delaybridge.serve.http.problems import Problem, problem_of
from delaybridge.serve.shared.call import Call

_SIZE = 4096, "send a token only"
_log = logging.getLogger("delaybridge")
routes = Routes()


@routes("GET /login", "Log in", scope=Scope.OPEN, refusal=refusal)
async def form(call: Call) -> Reply:
    """The page that asks for a token."""
    if not call.site.access.asks_tokens():
        return lead_to(call, "/")
    return _form(call, _next(call.asked.partition("?")[2]))


@routes(
    "POST /login", "Begin a session", scope=Scope.OPEN, body=bytes, size=lambda settings: _SIZE,
    refusal=refusal,
)  # fmt: skip
async def log_in(call: Call) -> Reply:
    """Begin a session. The cookie goes to this server only, over TLS or within this host."""
    given = parse_qs(call.body.decode("utf-8", "replace"))
    after = own_path(given.get("next", ["/"])[0])
    access = call.site.access
    if not access.asks_tokens():
        return lead_to(call, after)
    try:
        await access.sessions.prepare(call.site.client)
        value = access.log_in(given.get("token", [""])[0].strip(), call.address)
    except (Problem, DelayBridgeError) as exc:
        return _form(call, after, problem_of(exc))
    return lead_to(call, after, _cookie(call, value, KEPT_S))


@routes(
    "POST /logout", "End a session", scope=Scope.OPEN, body=bytes, size=lambda settings: _SIZE,
    refusal=refusal,
)  # fmt: skip
async def log_out(call: Call) -> Reply:
    """End the session, for all servers. Problem 403 if another site asks for it."""
    if is_foreign(call.headers):
        raise Problem(403, "foreign_origin", "log out with the button of the console")
    access, gone = call.site.access, _cookie(call, "", 0)
    try:
        await access.log_out(call.site.client, call.headers)
    except DelayBridgeError as exc:
        _log.warning("a session is not ended everywhere: %s", printable(str(exc)))
        what = (
            "the session has ended in this browser and at this server; others learn of it as soon"
        )
        problem = Problem(503, "store_unavailable", f"{what} as Redis answers")
        answer = _form(call, "/", problem)
        return answer._replace(headers={**answer.headers, **gone})
    return lead_to(call, "/login", gone)


def _form(call: Call, after: str, problem: Problem | None = None) -> Reply:
    data = {"problem": problem, "after": after}
    return html_page(call, "login.html", data, problem.status if problem else 200)


def _cookie(call: Call, value: str, kept_s: int) -> dict[str, str]:
    named = f"{call.site.access.sessions.cookie}={value}; Max-Age={kept_s}"
    return {"Set-Cookie": f"{named}; Path=/; HttpOnly; Secure; SameSite=Strict"}


def _next(query: str) -> str:
    return own_path(parse_qs(query).get("next", ["/"])[0])


def own_path(text: str) -> str:
    """A path of this server, never another one: `//host` would lead away."""
    is_own = text.startswith("/") and not text.startswith(("//", "/\\")) and text.isprintable()
    return text if is_own and text.isascii() else "/"
