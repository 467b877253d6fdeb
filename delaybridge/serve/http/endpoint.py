"""Endpoints: which request runs which handler, and what a handler answers."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from delaybridge.client.verbs import Scope, Verb

if TYPE_CHECKING:
    from delaybridge.serve.http.problems import Problem
    from delaybridge.settings.settings import Settings


class Reply(NamedTuple):
    """What a handler gives: content that msgspec encodes as JSON; bytes as they are, with their
    Content-Type among the headers; or None for no content."""

    content: Any
    status: int = 200
    headers: Mapping[str, str] = {}


Handler = Callable[[Any], Awaitable[Any]]
"""Takes a `Call` and gives a Reply; or its content alone, if the status is 200; or an ASGI
application, which answers by itself: a stream, another type."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """One method of one path.

    path: as `/v1/messages/{id}:publish`; a parameter stands for one segment, or a part of it. body:
    the type of a JSON body; bytes: the handler reads the body itself. query: a struct with the
    parameters after the question mark. answers: status -> the type of its content. size: the most
    bytes of the body, and what helps if there are more; by default those of a message. is_dense:
    the body may have any number of short values. is_raw: whether the handler of a request with
    these headers gets the bytes of the body. is_streamed: the body is lines of JSON of any number,
    and is not read for the handler: its application receives it.
    is_audited: noted before and after in the audit; if that is impossible, not done.
    is_for_tenants: a token of a tenant may use it, because it shows and changes only its own.
    is_safe: it changes nothing, although it needs more than READ. The method does not tell:
    dialects use GET.
    refusal: how a problem is shown, unless as JSON; its call has neither query nor body.
    media: the content type of its answers.
    """

    method: str
    path: str
    scope: Scope
    handler: Handler
    summary: str
    body: Any = None
    query: Any = None
    answers: Mapping[int, Any] = field(default_factory=lambda: {200: None})
    size: Callable[[Settings], tuple[int, str]] | None = None
    is_dense: bool = False
    is_raw: Callable[[Mapping[str, str]], bool] | None = None
    is_streamed: bool = False
    is_audited: bool = False
    is_for_tenants: bool = False
    is_safe: bool = False
    refusal: Callable[[Any, Problem], Reply] | None = None
    media: str = "application/json"


F = TypeVar("F", bound=Callable[..., Any])


class Routes:
    """The endpoints of a module, in the order of their handlers: the first that fits a request
    answers it."""

    def __init__(self, **common: Any) -> None:
        """common: fields of all its endpoints, as `is_for_tenants`."""
        self.endpoints: list[Endpoint] = []
        self._common = common

    def __call__(
        self,
        request: str,
        what: str | Verb[..., Any],
        *,
        answer: Any = None,
        fails: Iterable[int] = (),
        **fields: Any,
    ) -> Callable[[F], F]:
        """A decorator for the handler of a request.

        request: as `GET /v1/jobs/{id}`. what: the summary; or a row of the client's table, which
        says also the scope, and whether it is audited. fields: of the endpoint. By default a token
        needs READ for GET and WRITE for the others. answer: the type of the content with the status
        200; by default what the handler returns. fails: statuses of problems that clients should
        expect.
        """
        method, _, path = request.partition(" ")
        made = {"scope": Scope.READ if method == "GET" else Scope.WRITE, **self._common}
        if isinstance(what, Verb):
            made |= {"summary": what.help, "scope": what.scope, "is_audited": what.is_audited}
        else:
            made["summary"] = what
        made |= fields

        def add(handler: F) -> F:
            if "answers" not in made:
                kind = answer or inspect.get_annotations(handler, eval_str=True)["return"]
                made["answers"] = {200: kind} | dict.fromkeys(fails)
            self.endpoints.append(Endpoint(method=method, path=path, handler=handler, **made))
            return handler

        return add
