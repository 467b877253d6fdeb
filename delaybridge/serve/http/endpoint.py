"""Endpoints: which request runs which handler, and what a handler gets and gives."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any, NamedTuple

from delaybridge.serve.http.tenancy import TenantClient

if TYPE_CHECKING:
    from starlette.types import ASGIApp

    from delaybridge.client.async_client import AsyncClient
    from delaybridge.serve.http.problems import Problem
    from delaybridge.serve.server.shared import Site
    from delaybridge.settings.settings import Settings


class Scope(StrEnum):
    """What a token allows; each includes those before it."""

    OPEN = "open"  # without a token
    READ = "read"
    WRITE = "write"
    ADMIN = "admin"


class Call(NamedTuple):
    """A request as a handler gets it: checked, decoded, allowed.

    path: the parameters in the path. query, body: instances of the endpoint's types, None if it
    has none. headers: by name in lower case. who: the name of the token, and may: its scope; empty
    and OPEN if nobody knows. media: the content type of the body, without parameters. base: what
    stands before the paths of this server, as /delay; empty if nothing does. asked: path and query
    as they were sent. address: the client's. tenant: whose messages the token
    sees and changes; empty: everybody's. digest: SHA-256 of the token; empty if there is none.
    """

    site: Site
    path: Mapping[str, str]
    query: Any
    body: Any
    headers: Mapping[str, str]
    who: str
    may: Scope
    media: str
    base: str
    asked: str
    address: str
    tenant: str = ""
    digest: bytes = b""

    @property
    def client(self) -> AsyncClient | TenantClient:
        """What the token may do with messages."""
        return self._within(self.site.client)

    @property
    def patient(self) -> AsyncClient | TenantClient:
        """The same, with a client that waits longer for Redis."""
        return self._within(self.site.patient)

    def _within(self, client: AsyncClient) -> AsyncClient | TenantClient:
        return TenantClient(client, self.tenant) if self.tenant else client

    @property
    def may_read_bodies(self) -> bool:
        """Whether the token shows the content of messages."""
        return self.may in (Scope.WRITE, Scope.ADMIN)


class Reply(NamedTuple):
    """What a handler gives: content that msgspec encodes as JSON; bytes as they are, with their
    Content-Type among the headers; or None for no content."""

    content: Any
    status: int = 200
    headers: Mapping[str, str] = {}


Handler = Callable[[Call], Awaitable["Reply | ASGIApp"]]
"""Its result may also be an ASGI application, which answers by itself: a stream, another type."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """One method of one path.

    path: as `/v1/messages/{id}:publish`; a parameter stands for one segment, or a part of it. body:
    the type of a JSON body; bytes: the handler reads the body itself. query: a struct with the
    parameters after the question mark. answers: status -> the type of its content. size: the most
    bytes of the body, and what helps if there are more; by default those of a message. is_dense:
    the body may have any number of short values. is_raw: whether the handler of a request with
    these headers gets the bytes of the body.
    is_audited: noted before and after in the audit; if that is impossible, not done.
    is_for_tenants: a token of a tenant may use it, because it shows and changes only its own.
    is_safe: it changes nothing, although it needs more than READ. The method does not tell:
    dialects use GET.
    refusal: how a problem is shown, unless as JSON; its call has neither query nor body.
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
    is_audited: bool = False
    is_for_tenants: bool = False
    is_safe: bool = False
    refusal: Callable[[Call, Problem], Reply] | None = None
