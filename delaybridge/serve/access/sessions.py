"""Sessions of browsers: a signed cookie stands for a token, which itself is never in a cookie.

The cookie has the name of a session's token, the session's number and the time when it ends, signed
with a secret that all servers of a namespace share in Redis, and with the token's digest: a token
that leaves the file ends its sessions. The numbers of those that were logged out are in Redis, too.
"""

from __future__ import annotations

import hashlib
import hmac
import logging
import re
import secrets
import time
from collections import OrderedDict
from collections.abc import Mapping
from typing import NamedTuple

from delaybridge.client.async_client import AsyncClient
from delaybridge.errors import StoreError, StoreUnavailable
from delaybridge.serve.access.tokens import Token, TokenFile
from delaybridge.serve.http.problems import Problem
from delaybridge.serve.stored import sessions
from delaybridge.settings.settings import Settings
from delaybridge.store.calls import Calls
from delaybridge.store.protocol import keys
from delaybridge.store.protocol.verbs import Steps

KEPT_S = 12 * 3600
READ_AGAIN_S, SILENT_S = 60.0, 5.0
GUARD = "x-delaybridge-console"  # a page of another site cannot set it
_VALUE = re.compile(r"([0-9a-f]{16})\.([0-9a-f]{16})\.([0-9]{1,12})\.([0-9a-f]{64})")
_ALIVE = 10_000  # sessions of which this process remembers that Redis did not know their end
_SECRET = re.compile(rb"[0-9a-f]{64}")
_SAFE = frozenset({"GET", "HEAD"})
_log = logging.getLogger("delaybridge")


class BrowserSession(NamedTuple):
    """What a cookie says. number: of this session. ends_s: when it ends by itself."""

    token: Token
    number: str
    ends_s: int


class Sessions:
    """Makes and checks the cookies of one server."""

    def __init__(self, settings: Settings) -> None:
        self._own = f"{settings.namespace} {settings.serve.base_path} ".encode()
        self._secret: bytes | None = None
        self._read_s = self._silent_until_s = 0.0
        self._ended: dict[str, int] = {}
        self._alive: OrderedDict[str, None] = OrderedDict()

    @property
    def cookie(self) -> str:
        """The name of the cookie. Cookies do not know ports: each secret has its own."""
        own = self._own + (self._secret or b"")
        return f"__Host-delaybridge-{hashlib.sha256(own).hexdigest()[:8]}"

    async def prepare(self, client: AsyncClient) -> None:
        """Read the secret, once a minute: a Redis that came back empty may have another one. What
        this process knows to have ended is written again: Redis may lack it.

        DelayBridgeError: Redis does not answer.
        """
        now_s = time.monotonic()
        if self._secret is not None and now_s - self._read_s < READ_AGAIN_S:
            return
        self._read_s = now_s
        kept, wall_s = self._secret or secrets.token_hex(32).encode(), time.time()
        self._ended = {each: ends_s for each, ends_s in self._ended.items() if ends_s > wall_s}
        try:
            self._secret = await client.run(lambda calls: _shared(calls, kept, self._ended))
        except StoreUnavailable:
            if self._secret is None:
                raise
        except StoreError as exc:  # it may not be written, or was not written by delaybridge
            if self._secret is None:
                _log.warning("sessions end with this process: %s", exc)
                self._secret = kept

    def value(self, token: Token) -> str:
        """The content of a cookie for a session that begins now."""
        began = BrowserSession(token, secrets.token_hex(8), int(time.time()) + KEPT_S)
        return f"{_name(token)}.{began.number}.{began.ends_s}.{self._signature(began)}"

    def find(self, headers: Mapping[str, str], tokens: TokenFile) -> Token | None:
        """The token of the session that a request's cookie belongs to."""
        found = self._read(headers, tokens)
        return None if found is None or found.number in self._ended else found.token

    async def check(
        self, client: AsyncClient, headers: Mapping[str, str], tokens: TokenFile
    ) -> None:
        """Look whether the session of a request was ended, at whichever server, before `find`.

        While Redis is silent, those go on that it did not know as ended when it was asked last; and
        then none waits for it for some seconds. DelayBridgeError: it was never asked.
        """
        session = self._read(headers, tokens)
        if session is None or session.number in self._ended:
            return
        is_known = session.number in self._alive
        if is_known and time.monotonic() < self._silent_until_s:
            return
        try:
            has_ended = await client.run(lambda calls: _has_ended(calls, session.number))
        except StoreUnavailable:
            self._silent_until_s = time.monotonic() + SILENT_S
            if not is_known:
                raise
            return
        if has_ended:
            self._ended[session.number] = session.ends_s
        self._alive[session.number] = None
        if len(self._alive) > _ALIVE:
            self._alive.popitem(last=False)

    async def end(self, client: AsyncClient, headers: Mapping[str, str], tokens: TokenFile) -> None:
        """End the session of a request, for all servers.

        DelayBridgeError: Redis does not know; this process does, and tells it again.
        """
        await self.prepare(client)
        session = self._read(headers, tokens)
        if session is not None:
            self._ended[session.number] = session.ends_s
            one = {session.number: session.ends_s}
            await client.run(lambda calls: _end(calls, one))

    def _read(self, headers: Mapping[str, str], tokens: TokenFile) -> BrowserSession | None:
        """The session that a request's cookie belongs to, whether or not it was ended."""
        found = _VALUE.fullmatch(cookies(headers).get(self.cookie, ""))
        if found is None or self._secret is None:
            return None
        token = next((each for each in tokens.all() if _name(each) == found[1]), None)
        if token is None or not time.time() < int(found[3]):
            return None
        session = BrowserSession(token, found[2], int(found[3]))
        return session if hmac.compare_digest(self._signature(session), found[4]) else None

    def _signature(self, session: BrowserSession) -> str:
        assert self._secret is not None
        signed = b"%s %d %s" % (session.number.encode(), session.ends_s, session.token.digest)
        return hmac.new(self._secret, signed, hashlib.sha256).hexdigest()


def check_guard(method: str, headers: Mapping[str, str]) -> None:
    """A request with a cookie that changes something comes from a page of the console.

    Problem 403. Browsers say where a request comes from; the header is for those that do not.
    """
    if method in _SAFE:
        return
    if is_foreign(headers) or GUARD not in headers:
        raise Problem(403, "foreign_origin", "only a page of this console may do that")


def is_foreign(headers: Mapping[str, str]) -> bool:
    """Whether the browser says that the request does not come from a page of this server."""
    return headers.get("sec-fetch-site", "same-origin") != "same-origin"


def cookies(headers: Mapping[str, str]) -> dict[str, str]:
    """The cookies of a request, by name."""
    pairs = (pair.partition("=") for pair in headers.get("cookie", "").split(";"))
    return {name.strip(): value.strip() for name, _, value in pairs}


def _name(token: Token) -> str:
    """What a cookie says of a token; the digest does not follow from it."""
    return hashlib.sha256(b"session " + token.digest).hexdigest()[:16]


def _shared(calls: Calls, kept: bytes, ended: Mapping[str, int]) -> Steps[bytes]:
    """The secret of all servers: this one, if there is none."""
    yield from calls.open()
    keep = sessions.keep(calls.namespace, kept.decode())
    _, found = yield [keep, sessions.read(calls.namespace)]
    if not _SECRET.fullmatch(found or b""):
        raise StoreError(f"{keys.session_secret(calls.namespace)} is not what delaybridge wrote")
    if ended:
        yield from _end(calls, ended)
    return bytes(found)


def _end(calls: Calls, ended: Mapping[str, int]) -> Steps[None]:
    yield from calls.open()
    # Much later than at its end: the clock of another server may be behind.
    yield sessions.end(calls.namespace, ended, int(time.time()) - KEPT_S)


def _has_ended(calls: Calls, number: str) -> Steps[bool]:
    (found,) = yield [sessions.has_ended(calls.namespace, number)]
    return bool(found)
