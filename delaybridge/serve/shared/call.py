"""A request as its handler gets it: checked, decoded and allowed."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from contextlib import AbstractContextManager
from typing import Any, NamedTuple

from delaybridge.client.async_client import AsyncClient
from delaybridge.client.verbs import Scope
from delaybridge.serve.shared.site import Site
from delaybridge.serve.shared.tenancy import TenantClient, verb_of


class Call(NamedTuple):
    """A request as a handler gets it: checked, decoded, allowed.

    path: the parameters in the path. query, body: instances of the endpoint's types, None if it
    has none. headers: by name in lower case. who: the name of the token, and may: its scope; empty
    and OPEN without a token. media: the content type of the body, without parameters. base: what
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

    def verb(self, name: str) -> Callable[..., Awaitable[Any]]:
        """The verb with this name in the client's table, as `dead.kick`, for this token."""
        return verb_of(self.client, name)

    def seat(self) -> AbstractContextManager[None]:
        """Keep a seat while it is answered, which takes long; Problem 429 or 503."""
        return self.site.seats.seat(self.tenant, self.digest)

    async def is_known(self) -> bool:
        """Whether its token or session, which was allowed, still is one."""
        return await self.site.access.knows(self.site.client, self.headers)

    def _within(self, client: AsyncClient) -> AsyncClient | TenantClient:
        return TenantClient(client, self.tenant) if self.tenant else client

    @property
    def may_read_bodies(self) -> bool:
        """Whether the token shows the content of messages."""
        return self.may in (Scope.WRITE, Scope.ADMIN)
