"""The signature of a POST, as Standard Webhooks define it (standardwebhooks.com, version 1).

The receiver computes the same with the secret that both know; libraries for that exist in most
languages.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
from pathlib import Path

from delaybridge.errors import ConfigError

_PREFIX = "whsec_"
_LEAST_BYTES = 16


def secrets_of(file: str) -> list[bytes]:
    """The secrets in a file, one a line, the newest first; ConfigError if one is weak.

    Several at once let receivers change to a new one at any time. `whsec_` and base64, or text.
    """
    if not file:
        return []
    try:
        lines = Path(file).read_text().split()
    except (OSError, UnicodeDecodeError) as exc:
        raise ConfigError(f"http.secret_file: {file}: {exc}; give a file with a secret") from None
    found = [_secret(line) for line in lines]
    if not found or min(map(len, found)) < _LEAST_BYTES:
        what = f"a secret has {_LEAST_BYTES} bytes or more, one a line"
        raise ConfigError(f"http.secret_file: {file}: {what}")
    return found


def _secret(text: str) -> bytes:
    if not text.startswith(_PREFIX):
        return text.encode()
    try:
        return base64.b64decode(text.removeprefix(_PREFIX), validate=True)
    except binascii.Error:
        return b""


def signatures(secrets: list[bytes], id: str, at_s: int, body: bytes) -> str:
    """The value of `webhook-signature`: one signature for each secret."""
    signed = f"{id}.{at_s}.".encode() + body
    digests = (hmac.digest(secret, signed, hashlib.sha256) for secret in secrets)
    return " ".join(f"v1,{base64.b64encode(digest).decode()}" for digest in digests)
