"""Sessions of browsers: a signed cookie stands for a token, which itself is never in a cookie.

The cookie has the name of a session's token and the time when it ends, signed with a secret that
all servers of a namespace share in Redis, and with the token's digest: a token that leaves the file
ends its sessions.
"""

from __future__ import annotations

import hashlib
import hmac
import logging
import re
import secrets
import time
from collections.abc import Mapping

from delaybridge.client.async_client import AsyncClient
from delaybridge.errors import StoreError, StoreUnavailable
from delaybridge.settings.settings import Settings
from delaybridge.store import keys, sessions
from delaybridge.store.calls import Calls
from delaybridge.store.command import Steps
from delaybridge.web.problems import Problem
from delaybridge.web.tokens import Token, TokenFile

KEPT_S = 12 * 3600
READ_AGAIN_S = 60.0
GUARD = "x-delaybridge-console"  # a page of another site cannot set it
_VALUE = re.compile(r"([0-9a-f]{16})\.([0-9]{1,12})\.([0-9a-f]{64})")
_SECRET = re.compile(rb"[0-9a-f]{64}")
_SAFE = frozenset({"GET", "HEAD"})
_log = logging.getLogger("delaybridge")


class Sessions:
    """Makes and checks the cookies of one server."""

    def __init__(self, settings: Settings) -> None:
        self._own = f"{settings.namespace} {settings.serve.base_path} ".encode()
        self._secret: bytes | None = None
        self._read_s = 0.0

    @property
    def cookie(self) -> str:
        """The name of the cookie. Cookies do not know ports: each secret has its own."""
        own = self._own + (self._secret or b"")
        return f"__Host-delaybridge-{hashlib.sha256(own).hexdigest()[:8]}"

    async def prepare(self, client: AsyncClient) -> None:
        """Read the secret, once a minute: a Redis that came back empty may have another one.

        DelayBridgeError: Redis does not answer.
        """
        now_s = time.monotonic()
        if self._secret is not None and now_s - self._read_s < READ_AGAIN_S:
            return
        self._read_s = now_s
        kept = self._secret or secrets.token_hex(32).encode()
        try:
            self._secret = await client.run(lambda calls: _shared(calls, kept))
        except StoreUnavailable:
            if self._secret is None:
                raise
        except StoreError as exc:  # it may not be written, or somebody wrote something else
            if self._secret is None:
                _log.warning("sessions end with this process: %s", exc)
                self._secret = kept

    def value(self, token: Token) -> str:
        """The content of a cookie for a session that begins now."""
        ends_s = int(time.time()) + KEPT_S
        return f"{_name(token)}.{ends_s}.{self._signature(token, ends_s)}"

    def find(self, headers: Mapping[str, str], tokens: TokenFile) -> Token | None:
        """The token of the session that a request's cookie belongs to."""
        found = _VALUE.fullmatch(cookies(headers).get(self.cookie, ""))
        if found is None or self._secret is None:
            return None
        name, ends_s, signature = found[1], int(found[2]), found[3]
        token = next((each for each in tokens.all() if _name(each) == name), None)
        if token is None or not time.time() < ends_s:
            return None
        return token if hmac.compare_digest(self._signature(token, ends_s), signature) else None

    def _signature(self, token: Token, ends_s: int) -> str:
        assert self._secret is not None
        signed = b"%d %s" % (ends_s, token.digest)
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


def _shared(calls: Calls, kept: bytes) -> Steps[bytes]:
    """The secret of all servers: this one, if there is none."""
    yield from calls.open()
    keep = sessions.keep(calls.namespace, kept.decode())
    _, found = yield [keep, sessions.read(calls.namespace)]
    if not _SECRET.fullmatch(found or b""):
        raise StoreError(f"{keys.session_secret(calls.namespace)} is not what delaybridge wrote")
    return bytes(found)
