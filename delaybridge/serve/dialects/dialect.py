"""What all dialects share: where a topic's messages go, and refusals in their own envelopes."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Mapping
from functools import wraps
from typing import Any

import msgspec

from delaybridge.errors import MessageError
from delaybridge.message import Answer
from delaybridge.serve.http.checks import is_of_another_site
from delaybridge.serve.http.endpoint import Handler, Reply
from delaybridge.serve.http.problems import Problem, problem_of
from delaybridge.serve.shared.audit import audited
from delaybridge.serve.shared.call import Call

_TOPIC = re.compile(r"[A-Za-z0-9._-]{1,249}")
_FIELD = re.compile(r"\{(topic|subtopic)\}")


def answers(refusal: Callable[[str], Any]) -> Callable[[Callable[[Call], Awaitable[Any]]], Handler]:
    """A handler whose errors are told as the original tells them: status 200, and an envelope."""

    def around(handler: Callable[[Call], Awaitable[Any]]) -> Handler:
        @wraps(handler)
        async def run(call: Call) -> Any:
            try:
                _refuse_browsers(call.headers)
                found = await handler(call)
                return found if callable(found) or isinstance(found, Reply) else Reply(found)
            except Exception as exc:
                problem = problem_of(exc)
                return Reply(refusal(f"{problem.code}: {problem.detail}"))

        return run

    return around


def noted(handler: Callable[[Call], Awaitable[Any]]) -> Handler:
    """The same, in the audit; within `answers`, so that what a browser asks leaves no record."""

    async def act(call: Call) -> Reply:
        return Reply(await handler(call))

    @wraps(handler)
    async def run(call: Call) -> Any:
        return await audited(call, act, f"GET {call.asked}")

    return run


def _refuse_browsers(headers: Mapping[str, str]) -> None:
    """These dialects change things by GET: a page in somebody's browser must not.

    Browsers that do not say `Sec-Fetch-Site` say where the page is.
    """
    if "sec-fetch-site" in headers or is_of_another_site(headers, "origin", "referer"):
        raise Problem(403, "forbidden", "these requests are for programs, not for browsers")


def destination_of(call: Call, topic: str, subtopic: str = "") -> str:
    """Where the messages of a topic go, as serve.compat_destination says; MessageError."""
    named = {"topic": topic, "subtopic": subtopic}
    for field, value in named.items():
        if not _TOPIC.fullmatch(value) and (value or field == "topic"):
            what = f"got {value[:80]!r}; use 1 to 249 of a-z A-Z 0-9 . _ -"
            raise MessageError("bad_destination", field, what)
    return _FIELD.sub(lambda found: named[found[1]], call.site.settings.serve.compat_destination)


def content_of(body: Any) -> bytes:
    """A job's body: text as it is, anything else as JSON."""
    if body is None:
        return b""
    return body.encode() if isinstance(body, str) else msgspec.json.encode(body)


async def drop(call: Call, id: str) -> None:
    """Cancel a job, also one that nobody knows; Problem if it is too late."""
    if not id:
        raise MessageError("bad_id", "id", "give the id of a job")
    if await call.verb("cancel")(id) is Answer.IN_FLIGHT:
        what = f"{id[:80]!r} was handed to the broker, or is about to be"
        raise Problem(409, "in_flight", what)


async def put(call: Call, destination: str, body: bytes, id: str, **fields: Any) -> None:
    """Store a job; one with the same id that still waits is replaced. Problem if it is too late."""
    receipt = await call.client.schedule(destination, body, id=id, on_conflict="replace", **fields)
    if receipt.answer is Answer.IN_FLIGHT:
        what = f"{id[:80]!r} was handed to the broker, or is about to be"
        raise Problem(409, "in_flight", what)


NO_PULL = Problem(
    501, "no_pull", "jobs are not fetched so: when due, they go to serve.compat_destination"
)
