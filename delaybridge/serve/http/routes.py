"""Routes: a handler is written below the request that it answers."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from delaybridge.client.verbs import Scope
from delaybridge.serve.http.endpoint import Endpoint

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
        summary: str,
        *,
        answer: Any = None,
        fails: Iterable[int] = (),
        **fields: Any,
    ) -> Callable[[F], F]:
        """A decorator for the handler of a request.

        request: as `GET /v1/jobs/{id}`. fields: of the endpoint. By default a token needs READ for
        GET and WRITE for the others. answer: the type of the content with the status 200; by
        default what the handler returns. fails: statuses of problems that clients should expect.
        """
        method, _, path = request.partition(" ")
        made = {"scope": Scope.READ if method == "GET" else Scope.WRITE, **self._common, **fields}

        def add(handler: F) -> F:
            if "answers" not in made:
                kind = answer or inspect.get_annotations(handler, eval_str=True)["return"]
                made["answers"] = {200: kind} | dict.fromkeys(fails)
            endpoint = Endpoint(method=method, path=path, handler=handler, summary=summary, **made)
            self.endpoints.append(endpoint)
            return handler

        return add
