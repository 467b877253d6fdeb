"""Tokens of each scope, and sessions of the console that begin with them."""

from __future__ import annotations

import re
from pathlib import Path
from urllib.parse import quote

import httpx

TOKENS = {
    scope: f"{scope}-Zr7qK2mVx9TbWc4P" for scope in ("read", "write", "admin")
}  # fmt: skip


def token_file_in(folder: Path) -> Path:
    file = folder / "tokens"
    file.write_text("".join(f"{text} {scope} {scope}\n" for scope, text in TOKENS.items()))
    return file


async def log_in(client: httpx.AsyncClient, scope: str, after: str = "/") -> dict[str, str]:
    """The headers of a browser with a session. httpx would not send such a cookie over HTTP."""
    form = f"token={TOKENS[scope]}&next={quote(after)}"
    answer = await client.post("/login", content=form)
    assert answer.status_code == 303 and answer.headers["location"] == after
    cookie = answer.headers["set-cookie"]
    assert re.fullmatch(
        r"__Host-delaybridge-\w{8}=\w{16}\.\w{16}\.\d+\.\w{64}; Max-Age=43200; "
        r"Path=/; HttpOnly; Secure; SameSite=Strict",
        cookie,
    )
    assert TOKENS[scope] not in cookie
    return {"cookie": cookie.partition(";")[0]}
