"""A page of the console: what it is made of, and how it is sent."""

from __future__ import annotations

import shlex
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple
from urllib.parse import quote

from delaybridge.client.verbs import Scope
from delaybridge.serve.access.sessions import cookies
from delaybridge.serve.console.rendering import SAFE_HEADERS, language_of, render
from delaybridge.serve.console.snapshot import Snapshot, snapshots_of
from delaybridge.serve.http.endpoint import Endpoint, Reply
from delaybridge.serve.http.problems import Problem
from delaybridge.serve.http.reading import segment
from delaybridge.serve.shared.call import Call

Data = Callable[[Call], Awaitable[dict[str, Any] | Reply]]
"""Finds out what a template shows: its variables. `api` among them: the request behind the page.
Or an answer of its own: it leads elsewhere."""
_THEMES = ("light", "dark")
_TEMPLATE_OF_CODE = {
    "store_unavailable": "away", "ledger_unavailable": "away", "unknown_message": "absent",
}  # fmt: skip


class ConsolePage(NamedTuple):
    """One page, as templates know it. path: may have parameters. name: of its template, and of its
    entry in the navigation. title: in English."""

    path: str
    name: str
    title: str


class Pages:
    """The pages of a module: a function that finds out what one shows is written below it."""

    def __init__(self) -> None:
        self.listed: list[ConsolePage] = []
        self.endpoints: list[Endpoint] = []

    def __call__(
        self, path: str, title: str, *, name: str = "", is_blind: bool = False, **fields: Any
    ) -> Callable[[Data], Data]:
        """A decorator. name: by default the path's first word. is_blind: shown also while Redis
        does not answer, so without what the frame shows of it. fields: of `Endpoint`, as `query`: a
        struct with the state of the page, which is in its URL."""
        page = ConsolePage(path, name or path.split("/")[1], title)

        def add(data: Data) -> Data:
            async def handler(call: Call) -> Reply:
                snapshot = Snapshot() if is_blind else await snapshots_of(call.site).latest()
                patient = replace(call.site, client=call.site.patient)
                found = await data(call._replace(site=patient))
                if isinstance(found, Reply):
                    return found
                found = {"page": page, "snapshot": snapshot, **found}
                return html_page(call, f"{page.name}.html", found)

            handler.__doc__ = f"{title}: a page of the console."
            summary, refused = f"{title}, as a page", partial(refusal, page=page)
            made: dict[str, Any] = {"scope": Scope.READ, "refusal": refused, **fields}
            shown = Endpoint(method="GET", path=path, handler=handler, summary=summary, **made)
            self.listed.append(page)
            self.endpoints.append(shown)
            return data

        return add


def html_page(call: Call, template: str, data: Mapping[str, Any], status: int = 200) -> Reply:
    """Answer with a template as HTML, within the frame of the console."""
    chosen = cookies(call.headers)
    theme = chosen.get("delaybridge-theme", "")
    language = language_of(call.headers, chosen.get("delaybridge-language", ""))
    serve = call.site.settings.serve
    frame = {
        "call": call,
        "base": call.base,
        "theme": theme if theme in _THEMES else "auto",
        "language": language,
        "namespace": call.site.settings.namespace,
        "may_write": call.may in (Scope.WRITE, Scope.ADMIN) and not serve.read_only,
        "may_administer": call.may is Scope.ADMIN and not serve.read_only,
        "may_see_settings": call.may is Scope.ADMIN,
        "has_session": bool(serve.token_file) and bool(call.who),
        "page": None,
        "snapshot": Snapshot(),
        "curl": curl(call, str(data.get("api", "/v1/stats"))),
    }
    text = render(template, language, {**frame, **data})
    headers = {**SAFE_HEADERS, "Content-Type": "text/html; charset=utf-8"}
    return Reply(text.encode(), status, headers)


def curl(call: Call, path: str) -> str:
    """The command that asks the API for the same."""
    asked = f"http://{call.headers.get('host', '127.0.0.1:8645')}{call.base}{path}"
    token = '-H "Authorization: Bearer $TOKEN" ' if call.site.settings.serve.token_file else ""
    return f"curl -sS {token}{shlex.quote(asked)}"


def refusal(call: Call, problem: Problem, page: ConsolePage | None = None) -> Reply:
    """A problem as a page: to the login, if that is what lacks. page: the one that has it."""
    if problem.status == 401:
        asked_for = quote(call.asked.removeprefix(call.base), safe="")
        return Reply(None, 303, {"Location": f"{call.base}/login?next={asked_for}"})
    name = _TEMPLATE_OF_CODE.get(problem.code, "problem")
    if name == "away":
        page = None  # it has nothing but what it says
    shown: dict[str, Any] = {"problem": problem, "page": page}
    if name == "absent":
        shown["told"] = call.site.events.told_of(segment(call.path["id"], "id"))
    reply = html_page(call, f"{name}.html", shown, problem.status)
    return reply._replace(headers={**reply.headers, **problem.headers})


def lead_to(call: Call, path: str, more: Mapping[str, str] = {}) -> Reply:
    """Lead to another page of the console. more: further headers."""
    there = {"Location": f"{call.base}{path}", "Cache-Control": "no-store"}
    return Reply(None, 303, {**there, **more})
