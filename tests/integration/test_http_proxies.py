"""Behind a proxy: whose address counts, and where pages lead."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.rigs.api import api
from tests.rigs.sessions import TOKENS, token_file_in

HERE = ("127.0.0.1",)
ADMIN = {"Authorization": f"Bearer {TOKENS['admin']}"}
WRONG = {"Authorization": "Bearer guess-0123456789abcdef"}


def of(address: str) -> dict[str, str]:
    return {"X-Forwarded-For": address}


def server(redis_url: str, namespace: str, folder: Path, trusted: Any = HERE, **serve: Any) -> Any:
    file = str(token_file_in(folder))
    return api(redis_url, namespace, token_file=file, trusted_proxies=trusted, **serve)


@pytest.mark.parametrize("trusted", [HERE, ()], ids=["trusted", "not trusted"])
async def test_who_guesses_behind_a_proxy_waits_alone(
    redis_url: str, namespace: str, tmp_path: Path, trusted: Any
) -> None:
    async with server(redis_url, namespace, tmp_path, trusted) as http:
        for number in range(11):  # a client may write what it likes: the proxy adds its address
            said = of(f"1.1.1.{number}, 8.8.8.8")
            guessed = await http.get("/v1/workers", headers=WRONG | said)
        assert guessed.status_code == 429
        neighbour = await http.get("/v1/workers", headers=WRONG | of("8.8.8.8, 9.9.9.9"))
        assert neighbour.status_code == (401 if trusted else 429)
        # A right token counts, whatever others did who have its address.
        assert (await http.get("/v1/workers", headers=ADMIN | of("8.8.8.8"))).status_code == 200


async def test_the_audit_has_the_address_that_the_proxy_says(
    redis_url: str, namespace: str, tmp_path: Path
) -> None:
    async with server(redis_url, namespace, tmp_path) as http:
        await http.delete("/v1/dead/x", headers=ADMIN | of("8.8.8.8"))
        _, before = (await http.get("/v1/audit", headers=ADMIN)).json()["items"]
        assert before["from"] == "8.8.8.8"


@pytest.mark.parametrize("base_path", ["/", "/delay"])
async def test_pages_lead_to_the_path_that_the_proxy_took_off(
    redis_url: str, namespace: str, tmp_path: Path, base_path: str
) -> None:
    at = base_path.rstrip("/")
    async with server(redis_url, namespace, tmp_path, base_path=base_path) as http:
        said = ADMIN | {"X-Forwarded-Prefix": "/shop"}
        page = (await http.get(f"{at}/jobs", headers=said)).text
        assert f'href="/shop{at}/messages"' in page and f'hx-get="/shop{at}/jobs"' in page
        lost = await http.get(f"{at}/jobs", headers={"X-Forwarded-Prefix": "/shop"})
        assert lost.headers["location"] == f"/shop{at}/login?next=%2Fjobs"
        answer = await http.get(f"{at}/v1/messages/no", headers=said)
        assert answer.json()["code"] == "unknown"


async def test_a_prefix_that_nobody_may_say_changes_nothing(
    redis_url: str, namespace: str, tmp_path: Path
) -> None:
    async with server(redis_url, namespace, tmp_path, trusted=("10.0.0.0/8",)) as http:
        lost: httpx.Response = await http.get("/jobs", headers={"X-Forwarded-Prefix": "/shop"})
        assert lost.headers["location"] == "/login?next=%2Fjobs"
