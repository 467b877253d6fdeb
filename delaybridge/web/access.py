"""Access: who may do what. Tokens are kept as SHA-256 and compared in constant time."""

from __future__ import annotations

import hashlib
import hmac
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from delaybridge.errors import ConfigError
from delaybridge.web.endpoint import Scope
from delaybridge.web.problems import Problem

_ORDER = (Scope.OPEN, Scope.READ, Scope.WRITE, Scope.ADMIN)
_NAME = re.compile(r"[A-Za-z0-9._-]{1,64}")
_TOKEN_BYTES = 16  # at least
_CHALLENGE = {"WWW-Authenticate": 'Bearer realm="delaybridge"'}
_FORM = "TOKEN [read|write|admin [NAME]]"


class Token(NamedTuple):
    """digest: SHA-256 of the token. name: in the audit log."""

    digest: bytes
    scope: Scope
    name: str


class Access:
    """Decides for each request whether its token allows it. Without tokens everything is."""

    def __init__(self, tokens: list[Token], *, read_only: bool) -> None:
        """read_only: nothing may be changed, whatever a token says."""
        self._tokens, self._read_only = tokens, read_only

    def check(self, headers: Mapping[str, str], needed: Scope) -> Token:
        """Who asks; Problem 401 or 403."""
        if needed is Scope.OPEN and self._tokens and "authorization" not in headers:
            return _NOBODY
        who = self._who(headers)
        if who.scope is not Scope.ADMIN and _ORDER.index(who.scope) < _ORDER.index(needed):
            what = f"this token may only {who.scope}; it needs {needed}"
            raise Problem(403, "forbidden", what)
        if self._read_only and needed in (Scope.WRITE, Scope.ADMIN):
            raise Problem(403, "read_only", "this server changes nothing; use another one")
        return who

    def _who(self, headers: Mapping[str, str]) -> Token:
        if not self._tokens:
            return _ANYONE
        kind, _, text = headers.get("authorization", "").partition(" ")
        digest = hashlib.sha256(text.strip().encode("latin-1")).digest()
        # All are compared: how long it takes does not say which one was nearly right.
        found = [each for each in self._tokens if hmac.compare_digest(each.digest, digest)]
        if kind.lower() != "bearer" or not found:
            what = "send a token that this server knows, as Authorization: Bearer TOKEN"
            raise Problem(401, "unauthorized", what, headers=_CHALLENGE)
        return found[0]


_ANYONE = Token(b"", Scope.ADMIN, "anyone")
_NOBODY = Token(b"", Scope.OPEN, "")


def tokens_of(file: str) -> list[Token]:
    """The tokens in a file, one a line; ConfigError names the line."""
    if not file:
        return []
    try:
        lines = Path(file).read_text("ascii").splitlines()
    except (OSError, UnicodeDecodeError) as exc:
        raise ConfigError(f"serve.token_file: {file}: {exc}; give a file of ASCII text") from None
    found = list(_tokens(lines))
    if not found:
        raise ConfigError(f"serve.token_file: {file} has no token; write {_FORM}")
    return found


def _tokens(lines: list[str]) -> Iterator[Token]:
    for number, line in enumerate(lines, start=1):
        words = line.split()
        if not words or words[0].startswith("#"):
            continue
        text, scope, name, *more = [*words, "", ""] if len(words) < 3 else words
        where = f"serve.token_file: line {number}"
        if len(text) < _TOKEN_BYTES:
            what = f"the token has {len(text)} characters; use {_TOKEN_BYTES} random ones or more"
            raise ConfigError(f"{where}: {what}")
        scope = scope or Scope.ADMIN
        if scope not in (Scope.READ, Scope.WRITE, Scope.ADMIN) or any(more):
            raise ConfigError(f"{where}: write {_FORM}")
        if name and not _NAME.fullmatch(name):
            raise ConfigError(f"{where}: a name has 1 to 64 of a-z A-Z 0-9 . _ -")
        digest = hashlib.sha256(text.encode()).digest()
        yield Token(digest, Scope(scope), name or f"line-{number}")
