"""Bad requests of the HTTP API, row by row: the status, the code, and nothing is stored."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from urllib.parse import quote

import httpx
import pytest
import pytest_asyncio

from delaybridge.store.messages.scheduling import Patience
from tests.rigs.api import api
from tests.rigs.bad_input import (
    BROKERS,
    CREATED,
    JSON,
    MESSAGE,
    nothing_is_stored,
    post,
    strict_api,
)
from tests.rigs.bucket import Owner

pytestmark = pytest.mark.asyncio(loop_scope="module")

DEEP = 100_000
WIDE = "{" + ", ".join(f'"k{n}": 1' for n in range(100_000)) + "}"
# The whole request, its status and its code.
TEXTS: dict[str, tuple[str | bytes, int, str]] = {
    "H-33": ("", 400, "bad_json"),
    "H-33 spaces": (" \n", 400, "bad_json"),
    "H-34": ("destination=kafka:orders", 400, "bad_json"),
    "H-35 list": (f"[{MESSAGE}]", 422, "bad_value"),
    "H-35 text": ('"x"', 422, "bad_value"),
    "H-35 null": ("null", 422, "bad_value"),
    "H-36 garbage": (f"{MESSAGE} x", 400, "bad_json"),
    "H-36 two": (MESSAGE * 2, 400, "bad_json"),
    "H-37 comma": (MESSAGE.replace("}", ",}"), 400, "bad_json"),
    "H-37 comment": (MESSAGE.replace("{", "{ // x\n"), 400, "bad_json"),
    "H-37 quotes": (MESSAGE.replace('"', "'"), 400, "bad_json"),
    "H-38": (MESSAGE.replace("}", ', "delay": "1s"}'), 400, "bad_json"),
    "H-38 blank": (MESSAGE.replace("}", ', "delay" : "1s"}'), 400, "bad_json"),
    "H-38 escaped": (MESSAGE.replace("}", ', "\\u0064elay": "1s"}'), 400, "bad_json"),
    "H-38 in a body": (
        MESSAGE.replace('"body": "x"', '"body_json": [{"h": 1, "h": 2}]'),
        400,
        "bad_json",
    ),
    "H-38 inner": (MESSAGE.replace("}", ', "headers": {"a": "1", "a": "2"}}'), 400, "bad_json"),
    "H-39": (MESSAGE.replace('"x"', "[" * DEEP + "]" * DEEP), 400, "bad_json"),
    "H-39 objects": ('{"a":' * (DEEP // 5) + "1" + "}" * (DEEP // 5), 400, "bad_json"),
    "H-40": (MESSAGE.replace('"15m"', "NaN"), 400, "bad_json"),
    "H-41": (WIDE, 413, "body_too_large"),
    "H-42": (MESSAGE.replace('"x"', "9" * 100_000), 422, "bad_body"),
    "H-43": (MESSAGE.encode().replace(b"x", b"\xff\xfe"), 400, "bad_json"),
    "H-45": (MESSAGE.replace('"x"', '"\\ud800"'), 400, "bad_json"),
    "H-46": (MESSAGE.replace("delay", "dely"), 422, "unknown_field"),
    "H-47": (MESSAGE.replace("delay", "Delay"), 422, "unknown_field"),
    "H-48 proto": (MESSAGE.replace("}", ', "__proto__": {}}'), 422, "unknown_field"),
    "H-48 class": (MESSAGE.replace("}", ', "__class__": "x"}'), 422, "unknown_field"),
    "H-49": (MESSAGE.replace("}", ', "properties": "x"}'), 422, "bad_property"),
    "H-50": (MESSAGE.replace('"kafka:orders"', "null"), 422, "bad_destination"),
    "H-50 missing": ('{"body": "x", "delay": "1s"}', 422, "bad_value"),
}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def http(redis_url: str) -> AsyncIterator[httpx.AsyncClient]:
    async with strict_api(redis_url) as client:
        yield client


@pytest.mark.parametrize("name", TEXTS)
async def test_json(http: httpx.AsyncClient, name: str) -> None:
    text, status, code = TEXTS[name]
    answer = await post(http, text)
    assert (answer.status_code, answer.json()["code"]) == (status, code), answer.text
    await nothing_is_stored(http)


async def test_h44_a_byte_order_mark_is_skipped(http: httpx.AsyncClient) -> None:
    made = await post(http, b"\xef\xbb\xbf" + MESSAGE.encode())
    assert made.status_code == CREATED
    assert (await http.delete(f"/v1/messages/{made.json()['id']}")).status_code == 200


async def test_h46_a_near_miss_is_named(http: httpx.AsyncClient) -> None:
    assert "did you mean `delay`" in (await post(http, TEXTS["H-46"][0])).json()["detail"]
    assert "did you mean `delay`" in (await post(http, TEXTS["H-47"][0])).json()["detail"]
    for path in ("/v1/message", "/v1/messages/", "/api/v1/messages"):
        assert "did you mean /v1/messages?" in (await http.get(path)).json()["detail"]


@pytest.mark.parametrize(
    ("name", "text", "status", "code"),
    [
        ("H-51", '{"messages": []}', 422, "batch_empty"),
        ("H-52", f'{{"messages": [{",".join([MESSAGE] * 1001)}]}}', 413, "batch_too_large"),
        ("H-52 type", '{"messages": {}}', 422, "bad_value"),
    ],
)
async def test_batches(
    http: httpx.AsyncClient, name: str, text: str, status: int, code: str
) -> None:
    answer = await post(http, text, ":batch")
    assert (answer.status_code, answer.json()["code"]) == (status, code)
    await nothing_is_stored(http)


async def test_i21_i22_i23_an_id_again(http: httpx.AsyncClient) -> None:
    same = MESSAGE.replace("}", ', "id": "again"}')
    for _ in range(2):
        assert (await post(http, same)).status_code == CREATED
        found = await post(http, same)
        assert (found.status_code, found.json()["duplicate"]) == (200, True)
        other = await post(http, same.replace('"x"', '"y"'))
        assert (other.status_code, other.json()["code"]) == (409, "conflict")
        assert (await http.delete("/v1/messages/again")).status_code == 200
    await nothing_is_stored(http)


@pytest.mark.parametrize(("method", "path"), [("DELETE", ""), ("PATCH", ""), ("POST", ":publish")])
async def test_h56_an_unknown_message(http: httpx.AsyncClient, method: str, path: str) -> None:
    body = {"json": {"delay": "1s"}} if method == "PATCH" else {}
    answer = await http.request(method, f"/v1/messages/none{path}", **body)
    assert (answer.status_code, answer.json()["code"]) == (404, "unknown")


@pytest.mark.parametrize("to", [{"due": "2020-01-01T00:00:00Z"}, {"by": "-36500d"}])
async def test_h58_rescheduled_into_the_past_is_due_now(
    http: httpx.AsyncClient, to: dict[str, str]
) -> None:
    await post(http, MESSAGE.replace("}", ', "id": "past"}'))
    moved = await http.patch("/v1/messages/past", json=to)
    assert (moved.status_code, moved.json()["result"]) == (200, "rescheduled")
    load = (await http.get("/v1/scaling")).json()
    assert load["due_now"] == 1
    assert load["overdue_seconds"] < 1000, "not for years: it was moved now"
    assert (await http.delete("/v1/messages/past")).status_code == 200


@pytest.mark.parametrize(
    ("query", "code"),
    [
        ("limit=-1", "bad_limit"), ("limit=0", "bad_limit"), ("limit=1000000000", "bad_limit"),
        ("limit=abc", "bad_limit"), ("limit=1.5", "bad_limit"), ("limit=", "bad_limit"),
        (f"limit={'9' * 5000}", "bad_limit"), ("cursor=x", "bad_cursor"), ("cursor=", "bad_cursor"),
        ("cursor=%C3%A9", "bad_cursor"), ("cursor=k8tB2QAAAAAAAAChYQA=", "bad_cursor"),
        ("state=gone", "bad_value"), ("due_from=tomorrow", "bad_time"),
        ("due_to_ms=x", "bad_value"), ("limit=1&limit=2", "bad_query"),
        ("limt=1", "unknown_field"), ("search=(a%2B)%2B%24", "unknown_field"),
    ],
)  # fmt: skip
async def test_h59_h60_lists(http: httpx.AsyncClient, query: str, code: str) -> None:
    answer = await http.get(f"/v1/messages?{query}")
    assert (answer.status_code, answer.json()["code"]) == (422, code), answer.text


@pytest.mark.parametrize(
    ("name", "path", "status"),
    [
        ("H-27", "/v1/messages/a%00b", 400), ("H-28", "/v1/messages/a%2Fb", 404),
        ("H-29", "/v1/messages/a%252Fb", 404), ("H-30", "/v1/messages/%c0%ae", 400),
        ("I11", "/v1/messages/%ff%fe", 400), ("escape", "/v1/messages/%2", 400),
        ("I1", "/v1/messages/", 404), ("I2", f"/v1/messages/{'x' * 256}", 422),
        ("I17", "/v1/messages/%2e%2e%2fetc", 404), ("dots", "/v1/messages/a%20", 422),
    ],
)  # fmt: skip
async def test_ids_in_paths(http: httpx.AsyncClient, name: str, path: str, status: int) -> None:
    for method in ("GET", "DELETE"):
        answer = await http.request(method, path)
        assert answer.status_code == status, answer.text
        assert answer.headers["content-type"] == "application/problem+json"


async def test_h29_is_decoded_once(http: httpx.AsyncClient) -> None:
    for id in ("%2F", "a/b", "100%", ".."):
        made = await post(http, MESSAGE.replace("}", f', "id": "{id}"}}'))
        assert made.status_code == CREATED
        path = f"/v1/messages/{quote(id, safe='')}".replace("..", "%2E%2E")
        assert (await http.get(path)).json()["id"] == id
        assert (await http.delete(path)).status_code == 200


async def test_b5_a_stream_without_a_length_is_cut_while_it_is_read(
    http: httpx.AsyncClient,
) -> None:
    async def stream() -> AsyncIterator[bytes]:
        for _ in range(64):
            yield MESSAGE.encode() + b" " * 2**16

    answer = await http.post("/v1/messages", content=stream(), headers=JSON)
    assert (answer.status_code, answer.json()["code"]) == (413, "body_too_large")
    await nothing_is_stored(http)


async def test_b12_a_full_namespace_takes_no_more(redis_url: str, namespace: str) -> None:
    limits = {"pending_messages": 2}
    async with api(redis_url, namespace, brokers=BROKERS, limits=limits) as http:
        for name in "ab":
            assert (await post(http, MESSAGE.replace("x", name))).status_code == CREATED
        for headers in (JSON, JSON | {"Idempotency-Key": "k"}):
            full = await http.post("/v1/messages", content=MESSAGE, headers=headers)
            assert (full.status_code, full.json()["code"]) == (507, "store_full")
            assert full.headers["Retry-After"]
        (item,) = (await post(http, f'{{"messages": [{MESSAGE}]}}', ":batch")).json()["items"]
        assert (item["status"], item["code"]) == (507, "store_full")


async def test_h56_a_message_in_flight(
    redis_url: str, namespace: str, owner_of: Callable[[str], Owner],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr(Patience, "pause_s", lambda patience: 0.0)  # its time is over
    async with api(redis_url, namespace, brokers=BROKERS) as http:
        message = MESSAGE.replace("}", ', "id": "flies"}').replace("15m", "0s")
        assert (await post(http, message)).status_code == CREATED
        owner = owner_of("flies")
        owner.fire(owner.claim()[0].score)
        path = "/v1/messages/flies"
        for answer in (
            await http.delete(path),
            await http.patch(path, json={"delay": "1h"}),
            await http.post(f"{path}:publish"),
            await post(http, message.replace("}", ', "on_conflict": "replace"}')),
        ):
            assert (answer.status_code, answer.json()["code"]) == (409, "in_flight")
