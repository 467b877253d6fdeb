"""Any request to the HTTP API: a documented answer of the documented type, never a fault.

The requests are made from the API's own description.
"""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, settings
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi import checks

from delaybridge.serve.api.description.openapi import description
from delaybridge.serve.server.serving import answer_on, listener
from delaybridge.serve.server.table import ENDPOINTS
from delaybridge.settings.settings import Settings
from tests.rigs.api import PATIENT
from tests.rigs.waiting import DEADLINE_S

ENDLESS = {"/v1/events", "/live"}


def _document() -> dict[str, Any]:
    """The description without tokens, which have tests of their own, and without what it says more
    narrowly than the API refuses: integers of 64 bits, headers, which may be pairs, and each
    message of a batch, which is refused by itself."""
    found = description(
        # Pages for people are no part of the API.
        each
        for each in ENDPOINTS
        if each.path not in ENDLESS and each.refusal is None and not each.path.startswith("/static")
    )
    for operation in (one for path in found["paths"].values() for one in path.values()):
        del operation["security"]
    models = found["components"]["schemas"]
    models["Batch"]["properties"]["messages"]["items"] = models["NewMessage"]["properties"][
        "headers"
    ] = {}
    return json.loads(json.dumps(found).replace('"format": "int64"', '"format": ""'))


SCHEMA = schemathesis.openapi.from_dict(_document())
EXAMPLES = 1000 if settings().max_examples > 1000 else 3  # make fuzz: many
CHECKS = [
    not_a_server_error,
    checks.status_code_conformance,
    checks.content_type_conformance,
    checks.response_schema_conformance,
    checks.response_headers_conformance,
    checks.negative_data_rejection,
    checks.unsupported_method,
]


@pytest.fixture(scope="module")
def url(redis_url: str) -> Iterator[str]:
    """The API in a thread of its own."""
    given = {
        "redis": {"url": redis_url},
        "namespace": "fuzz-http",
        "brokers": {"memory": "memory://"},
    }
    loaded = Settings.load(overrides=given)
    loop = asyncio.new_event_loop()
    with listener("127.0.0.1", 0) as sock:
        serving = loop.create_task(answer_on(sock, loaded, **PATIENT))
        work = asyncio.wait([serving])
        thread = threading.Thread(target=loop.run_until_complete, args=[work], daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{sock.getsockname()[1]}"
        finally:
            loop.call_soon_threadsafe(serving.cancel)
            thread.join(DEADLINE_S)
            loop.close()  # raises if it still runs: no time-out covers the end of a fixture


@SCHEMA.parametrize()
@settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=[*HealthCheck])
def test_every_answer_is_as_described(case: Any, url: str) -> None:
    case.call_and_validate(base_url=url, checks=CHECKS, timeout=DEADLINE_S)
