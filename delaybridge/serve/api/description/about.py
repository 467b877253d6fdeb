"""What the API says of itself: /openapi.json for programs, /docs for people."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import cache
from html import escape
from typing import Any
from zlib import crc32

import msgspec

from delaybridge import __version__
from delaybridge.client.verbs import Scope
from delaybridge.serve.api.description.openapi import description, description_of, with_base
from delaybridge.serve.http.endpoint import Endpoint, Reply, Routes
from delaybridge.serve.shared.call import Call

_SAFE = {
    "Content-Security-Policy": "default-src 'none'; style-src 'self'; img-src 'self'; "
    "frame-ancestors 'none'; base-uri 'none'; form-action 'self'",
    "Cache-Control": "no-cache",
}


def endpoints_about(others: Iterable[Endpoint]) -> list[Endpoint]:
    """The endpoints that describe the others. Each description is made once."""
    listed = tuple(others)
    document = cache(lambda: description(listed))
    for_programs = cache(lambda: msgspec.json.encode(document()))
    for_people = cache(lambda: page(document(), listed).encode())
    routes = Routes(scope=Scope.OPEN, answers={200: None})

    @routes("GET /openapi.json", "This API for programs")
    async def openapi(call: Call) -> Reply:
        """The description of this API in OpenAPI 3.1."""
        content = with_base(for_programs(), call.base)
        return _unless_known(call, content, {"Cache-Control": "no-cache"})

    @routes("GET /docs", "This API for people")
    async def docs(call: Call) -> Reply:
        """This API as a page."""
        headers = {**_SAFE, "Content-Type": "text/html; charset=utf-8"}
        return _unless_known(call, for_people(), headers)

    @routes("GET /docs.css", "The style of that page")
    async def style(call: Call) -> Reply:
        """The style of that page."""
        return Reply(STYLE.encode(), 200, {**_SAFE, "Content-Type": "text/css"})

    return routes.endpoints


def _unless_known(call: Call, content: bytes, headers: dict[str, str]) -> Reply:
    """The content; 304 if the client has the same."""
    tag = f'"{crc32(content):08x}-{__version__}"'
    headers = {"Content-Type": "application/json", **headers, "ETag": tag}
    if tag in call.headers.get("if-none-match", ""):
        return Reply(None, 304, headers)
    return Reply(content, 200, headers)


STYLE = """
:root { color-scheme: light dark; }
body { font: 16px/1.5 system-ui, sans-serif; max-width: 50rem; margin: 2rem auto; padding: 0 1rem; }
h2 { margin-top: 2.5rem; border-bottom: 1px solid #8886; }
summary { cursor: pointer; padding: .25rem 0; }
code, pre, .method { font-family: ui-monospace, monospace; font-size: .9em; }
.method { display: inline-block; width: 4.5em; font-weight: 600; }
.scope { float: right; opacity: .7; font-size: .85em; }
pre { background: #8881; padding: .75rem; overflow-x: auto; }
table { border-collapse: collapse; font-size: .9em; }
td, th { text-align: left; vertical-align: top; padding: .15rem 1rem .15rem 0; }
"""
_INTRODUCTION = """
<p>Publish a message now, have it arrive on a RabbitMQ exchange or a Kafka topic later. The same
for programs: <a href="openapi.json">openapi.json</a>. Errors are
<code>application/problem+json</code>: <code>code</code> is a word for programs, <code>at</code> the
place in the request. With tokens, send <code>Authorization: Bearer TOKEN</code>; beside each path
is what the token must allow.</p>
"""


def page(document: dict[str, Any], endpoints: Iterable[Endpoint]) -> str:
    """The page as HTML. document: the description of the endpoints."""
    by_tag: dict[str, list[str]] = {}
    for endpoint in endpoints:
        operation = document["paths"][endpoint.path][endpoint.method.lower()]
        shown = "".join(_endpoint(endpoint, operation, document))
        by_tag.setdefault(operation["tags"][0], []).append(shown)
    sections = "".join(f"<h2>{escape(tag)}</h2>{''.join(all)}" for tag, all in by_tag.items())
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width">'
        f'<title>delaybridge {__version__}</title><link rel="stylesheet" href="docs.css"></head>'
        f"<body><h1>delaybridge {__version__}</h1>{_INTRODUCTION}{sections}</body></html>"
    )


def _endpoint(
    endpoint: Endpoint, operation: dict[str, Any], document: dict[str, Any]
) -> Iterator[str]:
    yield f'<details><summary><span class="scope">{endpoint.scope}</span>'
    yield f'<span class="method">{endpoint.method}</span><code>{escape(endpoint.path)}</code><br>'
    yield f"{escape(endpoint.summary)}</summary><p>{escape(description_of(endpoint))}</p>"
    if rows := [_row(p["name"], p["schema"]) for p in operation.get("parameters", ())]:
        yield f"<h4>Parameters</h4><table>{''.join(rows)}</table>"
    for content in operation.get("requestBody", {}).get("content", {}).values():
        yield from _struct("Body", content["schema"], document)
    for status, response in operation["responses"].items():
        for content in response.get("content", {}).values():
            if status < "300":
                yield from _struct(f"Answer {status}", content["schema"], document)
    yield "</details>"


def _struct(title: str, schema: dict[str, Any], document: dict[str, Any]) -> Iterator[str]:
    """A table of the fields of a struct."""
    name = schema.get("$ref", "").rpartition("/")[2]
    found = document["components"]["schemas"].get(name)
    if found is None:
        return
    yield f"<h4>{title}</h4><p>{escape(found.get('description', ''))}</p><table>"
    for field, kind in found.get("properties", {}).items():
        yield _row(field, kind, is_required=field in found.get("required", ()))
    yield "</table>"


def _row(name: str, schema: dict[str, Any], *, is_required: bool = False) -> str:
    mark = " *" if is_required else ""
    return f"<tr><td><code>{escape(name)}</code>{mark}</td><td>{escape(_kind(schema))}</td></tr>"


def _kind(schema: dict[str, Any]) -> str:
    """A type in words: `text or null`, `list of numbers`."""
    if "anyOf" in schema:
        return " or ".join(_kind(each) for each in schema["anyOf"])
    if "$ref" in schema:
        return str(schema["$ref"].rpartition("/")[2])
    if "enum" in schema:
        return ", ".join(map(str, schema["enum"]))
    kind = str(schema.get("type", "any"))
    return f"{kind} of {_kind(schema['items'])}" if "items" in schema and schema["items"] else kind
