"""The application: finds the endpoint of a request, checks access, reads it, runs its handler."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Mapping
from http import HTTPStatus
from typing import Any

import msgspec
from starlette import routing
from starlette.types import ASGIApp, Message, Receive, Send
from starlette.types import Scope as Connection

from delaybridge.client.verbs import Scope
from delaybridge.errors import nearest
from delaybridge.serve.access.access import NOBODY
from delaybridge.serve.access.sessions import GUARD
from delaybridge.serve.access.tokens import Token
from delaybridge.serve.http.endpoint import Endpoint, Reply
from delaybridge.serve.http.json_text import decoded
from delaybridge.serve.http.problems import MEDIA, Problem, problem_of
from delaybridge.serve.http.proxies import Proxies
from delaybridge.serve.http.reading import (
    body_of,
    check_request,
    query_of,
    refuse_repeated,
    segment,
)
from delaybridge.serve.http.transport import Cycle
from delaybridge.serve.shared.audit import audited
from delaybridge.serve.shared.call import Call
from delaybridge.serve.shared.site import Site

_JSON = b"application/json"
_OF_JSON = b"content-type: application/json\r\n"
_WHO = "delaybridge.who"  # in the scope of a request: whom the access check has let in
_encode = msgspec.json.Encoder().encode
_REMEDY = "send less at once, or raise limits.body_bytes"


class App:
    """The ASGI application of one process."""

    def __init__(
        self, site: Site, endpoints: Iterable[Endpoint], no_page: Endpoint | None = None
    ) -> None:
        """no_page: answers an unknown path if the client accepts HTML."""
        by_path: dict[str, dict[str, Endpoint]] = {}
        for endpoint in endpoints:
            by_path.setdefault(endpoint.path, {})[endpoint.method] = endpoint
        # Without a parameter a path needs no search, and the busiest have none.
        self._fixed = {
            path: Resource(site, methods) for path, methods in by_path.items() if "{" not in path
        }
        table = [
            # Other methods of `/{id}:verb` are meant for an id that ends so.
            routing.Route(
                path, Resource(site, methods), methods=[*methods] if "}:" in path else None
            )
            for path, methods in by_path.items()
            if path not in self._fixed
        ]
        self._router = routing.Router(table, redirect_slashes=False, default=self._lost)
        self._site = site
        self._no_page = no_page and Resource(site, {"GET": no_page})
        self._base = site.settings.serve.base_path.rstrip("/")
        trusted = site.settings.serve.trusted_proxies
        self._proxies = Proxies(trusted) if trusted else None

    async def __call__(self, scope: Connection, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if self._proxies is not None:
            scope = self._proxies.original(scope)
        # As it was sent: in an id `/` is written `%2F`, and the router must not see it decoded.
        path = scope["raw_path"].decode("ascii", "replace").partition("?")[0]
        if path == self._base:
            there = {"Location": f"{self._site.base(scope)}/"}
            await _send(Reply(None, 308, there), send, "GET")
            return
        if not path.startswith(f"{self._base}/"):
            await self._lost(scope, receive, send)
            return
        path = path.removeprefix(self._base)
        if (resource := self._fixed.get(path)) is not None:
            scope["path_params"] = {}
            await resource(scope, receive, send)
            return
        # The router takes the root off again. Parameters of a host application are not ours.
        scope["path"], scope["path_params"] = scope.get("root_path", "") + path, {}
        await self._router(scope, receive, send)

    async def _lost(self, scope: Connection, receive: Receive, send: Send) -> None:
        """Answer an unknown path: with a page if the client accepts HTML, else with a problem."""
        wants_page = b"text/html" in dict(scope["headers"]).get(b"accept", b"")
        if self._no_page and wants_page and scope["method"] in ("GET", "HEAD"):
            scope["path_params"] = {}
            await self._no_page(scope, receive, send)
        else:
            near = nearest(scope["path"], (path for path in self._fixed if path.startswith("/v1/")))
            hint = f"did you mean {self._base}{near[0]}? " if near else ""
            what = f"there is no such path; {hint}see /openapi.json"
            await _send(_refusal(Problem(404, "not_found", what)), send, "GET")


class Resource:
    """The methods of one path, as an ASGI application."""

    def __init__(self, site: Site, methods: Mapping[str, Endpoint]) -> None:
        self._site, self._access, self._methods = site, site.access, dict(methods)
        self._path = next(iter(methods.values())).path
        usual, settings = (site.most_bytes, _REMEDY), site.settings
        self._sizes = {
            method: one.size(settings) if one.size else usual for method, one in methods.items()
        }
        self._most_dense = site.most_dense
        get = methods.get("GET")
        if get and (get.is_safe or get.scope in (Scope.OPEN, Scope.READ)):
            self._methods["HEAD"] = get  # those of some dialects change something

    async def __call__(self, scope: Connection, receive: Receive, send: Send) -> None:
        """Answer one request."""
        began_s = time.perf_counter()
        try:
            reply = await self._answer(scope, receive)
        except Exception as exc:
            reply = self._refused(scope, problem_of(exc))
        except asyncio.CancelledError:
            if not self._site.is_draining:
                raise
            what = "this server was told to stop meanwhile; see what was done, then send it again"
            reply = self._refused(scope, Problem(503, "draining", what))
        method = scope["method"]
        counted = method if method in self._methods else "other"
        if not isinstance(reply, Reply):
            if callable(reply):
                await self._stream(reply, counted, scope, receive, send)
                return
            reply = Reply(reply)
        await _send(reply, send, method)
        took_s = time.perf_counter() - began_s
        self._site.traffic.count(counted, self._path, reply.status, took_s)

    async def _stream(
        self, app: ASGIApp, counted: str, scope: Connection, receive: Receive, send: Send
    ) -> None:
        """Let an application of its own answer; if it fails before it does, answer why."""
        has_begun = False

        async def sending(message: Message) -> None:
            nonlocal has_begun
            if not has_begun:
                has_begun = True
                self._site.traffic.count(counted, self._path, message["status"], None)
            await send(message)

        try:
            await app(scope, receive, sending)
        except Exception as exc:
            if has_begun:
                raise
            await _send(self._refused(scope, problem_of(exc)), sending, scope["method"])

    def _refused(self, scope: Connection, problem: Problem) -> Reply:
        endpoint = self._methods.get(scope["method"])
        if endpoint is None or endpoint.refusal is None:
            return _refusal(problem)
        # A user who was let in keeps the navigation.
        call = self._call(scope, _headers(scope), scope.get("path_params", {}), None, None)
        return endpoint.refusal(call, problem)

    async def _answer(self, scope: Connection, receive: Receive) -> Any:
        endpoint, site = self._methods.get(scope["method"]), self._site
        headers = _headers(scope)
        if endpoint is None:
            raise _not_allowed(self._methods)
        if len(headers) < len(scope["headers"]):
            refuse_repeated(name for name, _ in scope["headers"])
        is_open = endpoint.scope is Scope.OPEN
        if site.is_draining and not is_open:
            raise _draining()
        address = scope["client"][0] if scope.get("client") else ""
        if not is_open and "cookie" in headers:
            await self._access.read_session(site.client, headers)
        who = self._access.check(endpoint, headers, scope["query_string"], address)
        scope[_WHO] = who
        check_request(scope["method"], headers, endpoint, site.settings.serve.allowed_hosts)
        path = {name: segment(text, name) for name, text in scope["path_params"].items()}
        query = endpoint.query and query_of(scope["query_string"], endpoint.query)
        body = await self._body(endpoint, headers, receive)
        call = self._call(scope, headers, path, query, body)
        try:
            if endpoint.is_audited:
                return await audited(call, endpoint.handler, f"{scope['method']} {call.asked}")
            return await endpoint.handler(call)
        finally:
            if GUARD in headers and scope["method"] != "GET":
                site.snapshots.renew()  # the page is about to show what that changed

    def _call(
        self, scope: Connection, headers: Mapping[str, str], path: Any, query: Any, body: Any
    ) -> Call:
        """The request; without a token if it was not let in."""
        media = headers.get("content-type", "")
        if media != "application/json":
            media = media.partition(";")[0].strip().lower()
        after = scope["query_string"]
        asked = scope["raw_path"].partition(b"?")[0] + (b"?" + after if after else b"")
        base, address = self._site.base(scope), scope["client"][0] if scope.get("client") else ""
        shown = scope.get("root_path", "") + asked.decode("ascii", "replace")
        who: Token = scope.get(_WHO) or NOBODY
        return Call(
            self._site, path, query, body, headers, who.name, who.scope, media, base, shown,
            address, who.tenant, who.digest,
        )  # fmt: skip

    async def _body(self, endpoint: Endpoint, headers: Mapping[str, str], receive: Receive) -> Any:
        if endpoint.body is None or endpoint.is_streamed:
            return None
        most, remedy = self._sizes[endpoint.method]
        raw = await body_of(receive, headers, most, remedy)
        if endpoint.body is bytes or (endpoint.is_raw and endpoint.is_raw(headers)):
            return raw
        return await decoded(raw, endpoint.body, most if endpoint.is_dense else self._most_dense)


def _headers(scope: Connection) -> dict[str, str]:
    return {k.decode("latin-1"): v.decode("latin-1") for k, v in scope["headers"]}


async def _send(reply: Reply, send: Send, method: str) -> None:
    content = reply.content
    if not isinstance(content, bytes):
        content = b"" if content is None else _encode(content)
        if (
            method == "POST"
            and not reply.headers
            and isinstance(cycle := getattr(send, "__self__", None), Cycle)
        ):
            length = b"content-length: %d\r\n" % len(content)
            await cycle.answer(reply.status, length + _OF_JSON if content else length, content)
            return
    headers = _sent_headers(reply, content, method)
    await send({"type": "http.response.start", "status": reply.status, "headers": headers})
    await send({"type": "http.response.body", "body": content})


def _sent_headers(reply: Reply, content: bytes, method: str) -> list[tuple[bytes, bytes]]:
    headers: list[tuple[bytes, bytes]] = []
    if reply.status != HTTPStatus.NOT_MODIFIED:
        headers.append((b"content-length", b"%d" % len(content)))
    if content:
        media = reply.headers.get("Content-Type")
        headers.append((b"content-type", media.encode() if media else _JSON))
    if method == "GET" or reply.headers.get("Content-Type", "").startswith("text/html"):
        # what browsers show and keep
        headers.append((b"x-content-type-options", b"nosniff"))
        if "Cache-Control" not in reply.headers:
            headers.append((b"cache-control", b"no-store"))
    for name, value in reply.headers.items():
        if name != "Content-Type":
            headers.append((name.lower().encode(), value.encode("latin-1", "replace")))
    return headers


def _refusal(problem: Problem) -> Reply:
    headers = {**problem.headers, "Content-Type": MEDIA}
    return Reply(problem.content, problem.status, headers)


def _draining() -> Problem:
    what = "this server is told to stop; send it again"
    return Problem(503, "draining", what, headers={"Retry-After": "1"})


def _not_allowed(methods: Mapping[str, Endpoint]) -> Problem:
    allowed = ", ".join(sorted(methods))
    return Problem(405, "method_not_allowed", f"use {allowed}", headers={"Allow": allowed})
