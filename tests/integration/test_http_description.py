"""The HTTP API describes itself: OpenAPI for programs, a page for people."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from openapi_spec_validator import validate

from delaybridge.serve.api.description import about
from delaybridge.serve.server.table import ENDPOINTS
from tests.rigs.api import api


async def test_the_description_is_openapi(http: httpx.AsyncClient) -> None:
    document = (await http.get("/openapi.json")).json()
    validate(document)
    ids = [one["operationId"] for path in document["paths"].values() for one in path.values()]
    assert len({*ids}) == len(ids)


def schemas(within: Any) -> Iterator[dict[str, Any]]:
    if isinstance(within, dict):
        yield within
        within = list(within.values())
    for each in within if isinstance(within, list) else ():
        yield from schemas(each)


async def test_the_description_has_words_that_every_generator_knows(
    http: httpx.AsyncClient,
) -> None:
    """The generators themselves are tried in tests/acceptance/test_generated_clients.py."""
    document = (await http.get("/openapi.json")).json()
    for operation in (one for path in document["paths"].values() for one in path.values()):
        assert re.fullmatch("[a-z]+(_[a-z]+)*", operation["operationId"])
        for answer in operation["responses"].values():
            assert len(answer.get("content", {})) <= 1  # else it is of both types
    for schema in schemas(document["components"]["schemas"]):
        assert schema.get("items") is not False
        assert "enum" not in schema or schema["type"] == "string"
        assert schema.get("type") != "integer" or schema["format"] == "int64"
        assert schema.get("type") != "object" or {"properties", "additionalProperties"} & {*schema}
        for field in schema.get("properties", {}).values():
            assert not isinstance(field, dict) or "default" not in field


async def test_the_page_shows_every_path_and_needs_nothing_else(http: httpx.AsyncClient) -> None:
    answer = await http.get("/docs")
    assert answer.headers["content-type"].startswith("text/html")
    policy = answer.headers["content-security-policy"]
    assert "script" not in policy and "frame-ancestors 'none'" in policy  # S4, S5
    assert answer.headers["x-content-type-options"] == "nosniff"
    for path in (await http.get("/openapi.json")).json()["paths"]:
        assert f"<code>{path}</code>" in answer.text
    assert re.findall(r'(?:src|href)="([^"]+)"', answer.text) == ["docs.css", "openapi.json"]
    assert (await http.get("/docs.css")).headers["content-type"] == "text/css"


def test_a_verb_comes_before_the_path_that_it_would_fit() -> None:
    paths = [endpoint.path for endpoint in ENDPOINTS]
    for path in paths:
        if "}:" in path:
            whole = path.rpartition(":")[0]
            assert whole not in paths or paths.index(path) < paths.index(whole)


async def test_the_descriptions_are_made_once_and_sent_to_whoever_lacks_them(
    http: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[Any] = []

    def counted(*args: Any) -> Any:
        made.append(args)
        return describe(*args)

    describe = about.description
    monkeypatch.setattr(about, "description", counted)
    for path in ("/openapi.json", "/docs") * 3:
        first = await http.get(path)
        tag = first.headers["etag"]
        again = await http.get(path, headers={"If-None-Match": f'W/"x", {tag}'})
        assert (again.status_code, again.content, again.headers["etag"]) == (304, b"", tag)
        other = await http.get(path, headers={"If-None-Match": '"x"'})
        assert (other.status_code, other.content) == (200, first.content)
        assert (await http.head(path)).headers["content-length"] == str(len(first.content))
    assert len(made) <= 1


async def test_the_description_names_what_stands_before_the_paths(
    redis_url: str, namespace: str, http: httpx.AsyncClient
) -> None:
    assert (await http.get("/openapi.json")).json()["servers"] == [{"url": "/"}]
    async with api(redis_url, namespace, base_path="/delay/") as below:
        document = (await below.get("/delay/openapi.json")).json()
        assert document["servers"] == [{"url": "/delay"}]
    assert (await http.get("/openapi.json")).json()["servers"] == [{"url": "/"}]
