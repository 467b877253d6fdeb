"""What a dialect is, and what those here share: where the messages of a topic go."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from typing import Any, TypeVar

import msgspec

from delaybridge.errors import MessageError
from delaybridge.message import Answer
from delaybridge.serve.api.messages.shapes import too_late
from delaybridge.serve.http.endpoint import Endpoint, Handler, Routes
from delaybridge.serve.http.json_text import decoded
from delaybridge.serve.http.problems import Problem, problem_of
from delaybridge.serve.http.reading import is_of_another_site
from delaybridge.serve.shared.audit import audited
from delaybridge.serve.shared.call import Call

_TOPIC = re.compile(r"[A-Za-z0-9._-]{1,249}")
F = TypeVar("F", bound=Handler)
_FIELD = re.compile(r"\{(topic|subtopic)\}")


class Dialect:
    """The HTTP of another delay queue: requests, and how an error is answered.

    An entry point of the group `delaybridge.dialects` names one. A server whose `serve.compat` is
    the name of the entry point answers its requests, too. A handler gets a `Call`, whose
    `call.verb("cancel")` is a verb of the client for the token that asks.

        DIALECT = Dialect(lambda text: {"ok": False, "error": text})

        @DIALECT("POST /put", "Store a job", body=bytes)
        async def put(call: Call) -> dict[str, object]: ...
    """

    def __init__(self, refusal: Callable[[str], Any]) -> None:
        """refusal: makes the envelope of an error of its text; the status is 200 all the same."""
        self.refusal = refusal
        self._routes = Routes(is_for_tenants=True, answers={200: None})

    @property
    def endpoints(self) -> Sequence[Endpoint]:
        """Its endpoints, in the order of their handlers."""
        return self._routes.endpoints

    def __call__(
        self,
        request: str,
        summary: str = "",
        *,
        body: Any = None,
        is_noted: bool = False,
        **fields: Any,
    ) -> Callable[[F], F]:
        """A decorator for the handler of a request, as of `Routes`.

        body: bytes, or the type of a JSON body, whose faults are answered as all errors are.
        is_noted: in the audit; not so what a browser asks, which is refused.
        """

        def add(handler: F) -> F:
            @wraps(handler)
            async def run(call: Call) -> Any:
                try:
                    _refuse_browsers(call.headers)
                    if body not in (None, bytes):
                        job = await decoded(call.body, body, call.site.most_dense)
                        call = call._replace(body=job)
                    if is_noted:
                        return await audited(call, handler, f"GET {call.asked}")
                    return await handler(call)
                except Exception as exc:
                    return self.refused(exc)

            self._routes(request, summary, body=body and bytes, **fields)(run)
            return handler

        return add

    def refused(self, exc: Exception) -> Any:
        """The envelope of an error."""
        problem = problem_of(exc)
        return self.refusal(f"{problem.code}: {problem.detail}")


def _refuse_browsers(headers: Mapping[str, str]) -> None:
    """These dialects change things by GET, which a page in a browser must not do.

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
    """Cancel a job, also an unknown one; Problem if it is too late."""
    if not id:
        raise MessageError("bad_id", "id", "give the id of a job")
    if await call.verb("cancel")(id) is Answer.IN_FLIGHT:
        raise too_late(id, Answer.IN_FLIGHT)


async def put(call: Call, destination: str, body: bytes, id: str, **fields: Any) -> None:
    """Store a job; one with the same id that still waits is replaced. Problem if it is too late."""
    receipt = await call.client.schedule(destination, body, id=id, on_conflict="replace", **fields)
    if receipt.answer is Answer.IN_FLIGHT:
        raise too_late(id, Answer.IN_FLIGHT)


NO_PULL = Problem(
    501, "no_pull", "jobs are not fetched so: when due, they go to serve.compat_destination"
)
