"""The token file: who may do what. Only SHA-256 of tokens is kept in memory."""

from __future__ import annotations

import hashlib
import hmac
import logging
import os
import re
import secrets
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import NamedTuple

from delaybridge.client.verbs import Scope
from delaybridge.errors import ConfigError
from delaybridge.serve.access.guessing import weakness

_NAME = re.compile(r"[A-Za-z0-9._-]{1,64}")
_HASHED = re.compile(r"sha256:([0-9a-f]{64})")
_NAME_FORM = "a name has 1 to 64 of a-z A-Z 0-9 . _ -"
_FORM = "TOKEN [read|write|admin [NAME [TENANT]]]"
_REMEDY = "make one with: delaybridge serve token new"
_log = logging.getLogger("delaybridge")


class Token(NamedTuple):
    """digest: SHA-256 of the token. name: in the audit log. tenant: whose messages it sees and
    changes; empty: everybody's."""

    digest: bytes
    scope: Scope
    name: str
    tenant: str = ""


_Faults = type[ConfigError] | tuple[()]


class TokenFile:
    """The tokens of a file, which may change at any time.

    If the file is gone or has no token, no request is allowed. One with a fault changes nothing:
    the tokens from before count until it is mended, and the log says so.
    """

    def __init__(self, file: str, tenants: Collection[str] = (), *, again: bool = False) -> None:
        """tenants: those that a token may have. ConfigError: the file cannot be read, has a fault
        or no token.

        again: the server was started with this file before, and starts one more process: what has a
        fault now counts for nothing in it, and the rest does.
        """
        self._file, self._tenants = Path(file), tenants
        self._strong: dict[bytes, bool] = {}  # by the digest of those that were used
        self._seen = self._look()
        try:
            self._tokens = _tokens_of(self._file, tenants, ConfigError if again else ())
        except ConfigError as exc:
            if not again:
                raise
            self._tokens = []
            _log.error("%s; no token counts in this process", exc)
        if not (self._tokens or again):
            raise ConfigError(f"serve.token_file: {file} has no token; {_REMEDY}")

    def find(self, text: str) -> Token | None:
        """The token that reads so, as the file is now."""
        digest = hashlib.sha256(text.encode("latin-1", "replace")).digest()
        # All are compared: how long it takes does not say which one was nearly right.
        found = [each for each in self.all() if hmac.compare_digest(each.digest, digest)]
        return found[0] if found and self._is_strong(found[0], text) else None

    def _is_strong(self, token: Token, text: str) -> bool:
        """Whether it is hard to guess; of a digest that is known only when the token is used."""
        is_strong = self._strong.get(token.digest)
        if is_strong is None:
            weak = weakness(text)
            is_strong = self._strong[token.digest] = weak is None
            if weak:
                _log.error("serve.token_file: %s is refused: %s; %s", token.name, weak, _REMEDY)
        return is_strong

    def all(self) -> list[Token]:
        """The tokens, as the file is now."""
        if (seen := self._look()) != self._seen:
            self._seen = seen
            self._reread()
        return self._tokens

    def _look(self) -> tuple[int, ...]:
        try:
            status = self._file.stat()
        except OSError:
            return ()
        return status.st_ino, status.st_size, status.st_mtime_ns

    def _reread(self) -> None:
        try:
            # The file may be ahead of the settings.
            found = _tokens_of(self._file, self._tenants, _UnknownTenant) if self._seen else []
        except ConfigError as exc:
            _log.error("%s; the tokens from before still count", exc)
        else:
            self._tokens = found
            _log.warning("serve.token_file: read again, %d tokens", len(found))


class _UnknownTenant(ConfigError):
    """The settings do not have the tenant of a line."""


def _tokens_of(file: Path, tenants: Collection[str], left_out: _Faults = ()) -> list[Token]:
    """The tokens in a file, one a line; ConfigError names the line.

    left_out: faults that cost only their own line: others can be added and removed.
    """
    try:
        lines = file.read_text("ascii").splitlines()
    except UnicodeDecodeError:
        raise ConfigError(f"serve.token_file: {file}: give a file of ASCII text") from None
    except OSError as exc:
        raise ConfigError(f"serve.token_file: {file}: {exc.strerror}") from None
    return list(_tokens(lines, tenants, left_out))


def _tokens(lines: list[str], tenants: Collection[str], left_out: _Faults) -> Iterator[Token]:
    line_of: dict[bytes, int] = {}
    for number, line in enumerate(lines, start=1):
        words = line.split()
        if not words or words[0].startswith("#"):
            continue
        where = f"serve.token_file: line {number}"
        try:
            token = _token(words, where, tenants)
            if (first := line_of.setdefault(token.digest, number)) != number:
                raise ConfigError(f"{where}: has the token of line {first}; remove one of them")
        except left_out as exc:
            remedy = "it counts after a restart with the new tenants"
            _log.error("%s; %s", exc, remedy if isinstance(exc, _UnknownTenant) else "left out")
            continue
        yield token if token.name else token._replace(name=f"line-{number}")


def _token(words: list[str], where: str, tenants: Collection[str]) -> Token:
    """The token of one line; ConfigError."""
    text, scope, name, tenant, *more = (*words, "", "", "")[: max(4, len(words))]
    scope = scope or Scope.ADMIN
    if scope not in (Scope.READ, Scope.WRITE, Scope.ADMIN) or more:
        raise ConfigError(f"{where}: write {_FORM}")
    _check_names(name, tenant, tenants, f"{where}: ")
    return Token(_digest(text, where), Scope(scope), name, tenant)


def _check_names(name: str, tenant: str, tenants: Collection[str], where: str = "") -> None:
    if name and not _NAME.fullmatch(name):
        raise ConfigError(f"{where}{_NAME_FORM}")
    if tenant and tenant not in tenants:
        known = ", ".join(tenants) or "[]"
        raise _UnknownTenant(f"{where}{tenant[:40]!r} is not among tenants: {known}")


def _digest(text: str, where: str) -> bytes:
    """SHA-256 of a token that is hard to guess, or as the file has it."""
    if hashed := _HASHED.fullmatch(text.lower()):
        return bytes.fromhex(hashed[1])
    if text.startswith("sha256:"):
        raise ConfigError(f"{where}: after sha256: come 64 hexadecimal digits")
    if weak := weakness(text):
        raise ConfigError(f"{where}: {weak}; {_REMEDY}")
    return hashlib.sha256(text.encode()).digest()


def add_token(
    file: Path, scope: Scope, name: str, tenant: str = "", tenants: Collection[str] = ()
) -> str:
    """A new token, whose digest the file has now. ConfigError: it cannot be used; nothing is new.

    Servers that read the file know the token at once.
    """
    _check_names(name, tenant, tenants)
    if tenant and not name:
        raise ConfigError("before a tenant comes a name: SCOPE NAME TENANT")
    text, before = secrets.token_hex(32), b""
    if file.exists():
        _tokens_of(file, tenants)  # of a file with a fault servers would not read the new line
        before = file.read_bytes()
    line = f"sha256:{hashlib.sha256(text.encode()).hexdigest()} {scope} {name} {tenant}".rstrip()
    try:
        descriptor = os.open(file, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        with open(descriptor, "ab") as lines:
            lines.write(b"" if before.endswith(b"\n") or not before else b"\n")
            lines.write(f"{line}\n".encode())
    except OSError as exc:
        raise ConfigError(f"serve.token_file: {file}: {exc.strerror}") from None
    return text
