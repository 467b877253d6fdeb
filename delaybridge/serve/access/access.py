"""Access: which requests are allowed."""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from contextlib import suppress

from delaybridge.client.async_client import AsyncClient
from delaybridge.client.verbs import Scope
from delaybridge.errors import DelayBridgeError, printable
from delaybridge.serve.access.sessions import Sessions, check_guard
from delaybridge.serve.access.throttle import Failures, Pace
from delaybridge.serve.access.tokens import Token, TokenFile
from delaybridge.serve.http.endpoint import Endpoint
from delaybridge.serve.http.problems import Problem
from delaybridge.settings.settings import Settings

_ORDER = (Scope.OPEN, Scope.READ, Scope.WRITE, Scope.ADMIN)
_CHALLENGE = {"WWW-Authenticate": 'Bearer realm="delaybridge"'}
_IN_QUERY = re.compile(
    rb"(?:^|&)(?:access_?token|token|api_?key|auth|authorization|bearer)=", re.IGNORECASE
)
_LOGINS = 5.0  # a second of one token: the end of each session is kept for half a day
_log = logging.getLogger("delaybridge")
_ANYONE = Token(b"", Scope.ADMIN, "anyone")
NOBODY = Token(b"", Scope.OPEN, "")
"""Who was not let in, or needs no token."""


class Access:
    """Decides for each request whether its token allows it. Without a token file everything is."""

    def __init__(self, all_settings: Settings, *, again: bool = False) -> None:
        """ConfigError: the token file cannot be used. again: as of `TokenFile`."""
        settings = all_settings.serve
        file, tenants = settings.token_file, all_settings.tenants
        self._file = TokenFile(file, tenants, again=again) if file else None
        self.sessions = Sessions(all_settings)
        self._read_only = settings.read_only
        self._failures, self._pace = Failures(), Pace(settings.rate)
        self._logins = Pace(_LOGINS)

    def check(
        self, endpoint: Endpoint, headers: Mapping[str, str], query: bytes, address: str
    ) -> Token:
        """Who asks; Problem 400, 401, 403 or 429."""
        if query and _IN_QUERY.search(query):
            what = "a token in a URL ends up in logs: use a new one, as Authorization: Bearer TOKEN"
            raise Problem(400, "token_in_query", what)
        needed = endpoint.scope
        if needed is Scope.OPEN and "authorization" not in headers:
            return _ANYONE if self._file is None else NOBODY
        who = self._who(endpoint.method, headers, address)
        if _ORDER.index(who.scope) < _ORDER.index(needed):
            what = f"this token may only {who.scope}; it needs {needed}"
            raise Problem(403, "forbidden", what)
        _check_tenant(endpoint, who)
        if self._read_only and needed in (Scope.WRITE, Scope.ADMIN) and not endpoint.is_safe:
            raise Problem(403, "read_only", "this server changes nothing; use another one")
        if wait_s := self._pace.wait_s(who.name):
            raise _too_many(wait_s, "more requests than serve.rate allows a token")
        return who

    async def read_session(self, client: AsyncClient, headers: Mapping[str, str]) -> None:
        """Ask Redis what it knows of a request's session, before `check`. DelayBridgeError."""
        if self._file is not None and "cookie" in headers and "authorization" not in headers:
            await self.sessions.prepare(client)
            await self.sessions.check(client, headers, self._file)

    def wait_s(self, name: str) -> int:
        """Count a part of a long request of this token. 0: it may go on; else in how many seconds
        the next may."""
        return self._pace.wait_s(name)

    def asks_tokens(self) -> bool:
        """Whether there is a token file."""
        return self._file is not None

    async def knows(self, client: AsyncClient, headers: Mapping[str, str]) -> bool:
        """Whether the session or token of a request that was allowed still is one."""
        if self._file is None:
            return True
        with suppress(DelayBridgeError):  # a silent Redis ends no session
            await self.read_session(client, headers)
        kind, _, text = headers.get("authorization", "").partition(" ")
        if kind:
            return kind.lower() == "bearer" and self._file.find(text.strip()) is not None
        return self.sessions.find(headers, self._file) is not None

    def log_in(self, text: str, address: str) -> str:
        """The cookie of a new session for this token; Problem 401 or 429."""
        who = self._who("GET", {"authorization": f"Bearer {text}"}, address)
        if who.tenant:
            raise _not_for_tenants(who)
        if wait_s := self._logins.wait_s(who.name):
            raise _too_many(wait_s, "too many logins with this token")
        return self.sessions.value(who)

    async def log_out(self, client: AsyncClient, headers: Mapping[str, str]) -> None:
        """End the session of a request, if it has one. DelayBridgeError."""
        if self._file is not None:
            await self.sessions.end(client, headers, self._file)

    def _who(self, method: str, headers: Mapping[str, str], address: str) -> Token:
        """A right token counts whatever its address did: others may share that address."""
        if self._file is None:
            return _ANYONE
        if "authorization" not in headers and (own := self.sessions.find(headers, self._file)):
            check_guard(method, headers)
            return own
        kind, _, text = headers.get("authorization", "").partition(" ")
        is_bearer = kind.lower() == "bearer"
        if is_bearer and (found := self._file.find(text.strip())):
            return found
        if "authorization" in headers:
            wait_s = self._failures.failed(address)
            if wait_s:
                raise _too_many(wait_s, "too many wrong tokens from this address")
            _log.warning("a wrong token from %s", printable(address))
        what = "send a token that this server knows, as Authorization: Bearer TOKEN"
        raise Problem(401, "unauthorized", what, headers=_CHALLENGE)


def _check_tenant(endpoint: Endpoint, who: Token) -> None:
    """Problem 403 if a token of a tenant would see or change what is not its own."""
    if who.tenant and not endpoint.is_for_tenants and endpoint.scope is not Scope.OPEN:
        raise _not_for_tenants(who)


def _not_for_tenants(who: Token) -> Problem:
    what = f"this token is of tenant {who.tenant}; that is for tokens of no tenant"
    return Problem(403, "forbidden", what)


def _too_many(wait_s: int, what: str) -> Problem:
    later = {"Retry-After": str(wait_s)}
    return Problem(429, "too_many_requests", f"{what}; try again in {wait_s} s", headers=later)
