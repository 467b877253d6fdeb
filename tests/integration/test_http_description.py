"""The HTTP API describes itself: OpenAPI for programs, a page for people."""

from __future__ import annotations

import re

import httpx
from openapi_spec_validator import validate

from delaybridge.web.table import ENDPOINTS


async def test_the_description_is_openapi(http: httpx.AsyncClient) -> None:
    document = (await http.get("/openapi.json")).json()
    validate(document)
    ids = [one["operationId"] for path in document["paths"].values() for one in path.values()]
    assert len({*ids}) == len(ids)


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
