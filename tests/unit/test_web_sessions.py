"""Cookies of browsers' sessions: how long they count, and what ends them sooner."""

from __future__ import annotations

import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from delaybridge.errors import StoreUnavailable
from delaybridge.serve.access.sessions import Sessions
from delaybridge.serve.access.tokens import TokenFile
from delaybridge.settings.settings import Settings

FIRST, SECOND = "first-Zr7qK2mVx9TbWc4P", "second-Zr7qK2mVx9TbWc4P"
HALF_A_DAY_S = 12 * 3600


async def sessions(secret: bytes = b"a" * 64) -> Sessions:
    """Of a server whose Redis has this secret."""

    async def run(_: object) -> bytes:
        return secret

    made, client = Sessions(Settings.load()), SimpleNamespace(run=run)
    await made.prepare(client)  # type: ignore[arg-type]
    return made


@pytest.fixture
def tokens(tmp_path: Path) -> TokenFile:
    file = tmp_path / "tokens"
    file.write_text(f"{FIRST} read one\n{SECOND} admin two\n")
    return TokenFile(str(file))


async def test_a_session_ends_after_half_a_day(
    tokens: TokenFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = await sessions()
    one, two = tokens.all()
    cookie = {"cookie": f"a=b; {made.cookie}={made.value(two)}"}
    began_s = time.time()
    for after_s, found in ((0, two), (HALF_A_DAY_S - 60, two), (HALF_A_DAY_S + 60, None)):
        monkeypatch.setattr(time, "time", lambda now_s=began_s + after_s: now_s)
        assert made.find(cookie, tokens) == found


@pytest.mark.parametrize("place", [0, 1, 2, 3])
async def test_no_part_of_a_cookie_can_be_changed(tokens: TokenFile, place: int) -> None:
    made = await sessions()
    one, two = tokens.all()
    parts, others = made.value(one).split("."), made.value(two).split(".")
    others[2] = str(int(others[2]) + 3600)
    parts[place] = others[place]
    assert made.find({"cookie": f"{made.cookie}={'.'.join(parts)}"}, tokens) is None


async def test_another_secret_ends_all_sessions(tokens: TokenFile) -> None:
    before, after = await sessions(), await sessions(b"b" * 64)
    assert before.cookie != after.cookie
    value = before.value(tokens.all()[0])
    assert after.find({"cookie": f"{after.cookie}={value}"}, tokens) is None


async def test_a_session_ends_with_its_token(tokens: TokenFile, tmp_path: Path) -> None:
    made = await sessions()
    cookie: dict[str, Any] = {"cookie": f"{made.cookie}={made.value(tokens.all()[0])}"}
    assert made.find(cookie, tokens) is not None
    (tmp_path / "tokens").write_text(f"{SECOND} admin two\n")
    assert made.find(cookie, tokens) is None


async def test_while_redis_is_silent_no_session_that_it_knew_waits_for_it(
    tokens: TokenFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    now_s, asked, answers = 1000.0, 0, True

    async def run(_: object) -> bool:
        nonlocal asked
        asked += 1
        if not answers:
            raise StoreUnavailable("no answer")
        return False

    made, client = await sessions(), SimpleNamespace(run=run)
    known, new = [{"cookie": f"{made.cookie}={made.value(one)}"} for one in tokens.all()]
    monkeypatch.setattr(time, "monotonic", lambda: now_s)

    async def check(cookie: dict[str, str]) -> int:
        before = asked
        await made.check(client, cookie, tokens)  # type: ignore[arg-type]
        return asked - before

    assert await check(known) == 1
    answers = False
    assert [await check(known) for _ in range(3)] == [1, 0, 0]
    with pytest.raises(StoreUnavailable):
        await check(new)
    now_s += 6
    assert [await check(known) for _ in range(2)] == [1, 0]
    now_s, answers = now_s + 6, True
    assert [await check(each) for each in (known, known, new)] == [1, 1, 1]
