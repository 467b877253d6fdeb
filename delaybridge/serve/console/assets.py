"""Styles and scripts: files of the package, kept by browsers for as long as they are the same."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from functools import cache
from importlib.resources import files

from delaybridge.client.verbs import Scope
from delaybridge.serve.http.endpoint import Reply
from delaybridge.serve.http.problems import Problem
from delaybridge.serve.http.routes import Routes
from delaybridge.serve.shared.call import Call

_MEDIA = {
    "css": "text/css; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
}
routes = Routes()


@cache
def _contents() -> Mapping[str, bytes]:
    """The files that are served, by their names."""
    every = (files("delaybridge.serve.console") / "static").iterdir()
    return {one.name: one.read_bytes() for one in every if one.name.rpartition(".")[2] in _MEDIA}


@cache
def asset(name: str) -> str:
    """The path of a file below the base; a new version has another one."""
    return f"static/{hashlib.sha256(_contents()[name]).hexdigest()[:12]}/{name}"


@routes("GET /static/{hash}/{name}", "A file of the console", scope=Scope.OPEN)
async def serve_asset(call: Call) -> Reply:
    """A style, a script or a picture of the console."""
    name = call.path["name"]
    content = _contents().get(name)
    if content is None:
        raise Problem(404, "unknown", "there is no such file")
    # A page of another version asks for its own file; this one must not be kept in its place.
    is_own = asset(name) == f"static/{call.path['hash']}/{name}"
    headers = {
        "Content-Type": _MEDIA[name.rpartition(".")[2]],
        "Cache-Control": "public, max-age=31536000, immutable" if is_own else "no-store",
        "Content-Security-Policy": "default-src 'none'",
    }
    return Reply(content, 200, headers)
