"""Publishing over HTTP: what each answer means, the signature, and where it may connect."""

from __future__ import annotations

import base64
import hashlib
import hmac
import socket
import time
from collections.abc import AsyncIterator, Iterator
from email.utils import formatdate
from ipaddress import ip_address
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from delaybridge import AsyncClient
from delaybridge.accept import destination
from delaybridge.errors import ConfigError, MessageError, PublishUnavailable
from delaybridge.publish import Fault, HttpOptions, PublishOptions, Verdict
from delaybridge.publishers.http import addresses
from delaybridge.publishers.http.addresses import AddressRefused, PublicResolver, is_public
from delaybridge.publishers.http.outcomes import wait_ms
from delaybridge.publishers.http.signature import signatures
from tests.rigs.broker import connect_to, quick
from tests.rigs.broker_http import HttpRig
from tests.rigs.crew import CALM, Arrived, Crew
from tests.rigs.stall import Stall
from tests.rigs.waiting import until_async

# What some host takes for `..`, for a slash, or for the end.
ODD_PATHS = [
    "..;/x", "a/..;x=y/b", "a/.;/b", "a/;/b", "a%5Cb", "a/..%5C..%5Cb", "%252e%252e/b", "a%25b",
    "a/..%3B/b", "a%00", "a%00b/c", "a%0d%0aX:y", "a?b%00", "%c0%ae%c0%ae/x", "a/%ff",
]  # fmt: skip
SECRET = "whsec_" + base64.b64encode(b"0123456789abcdef").decode()


@pytest.fixture(scope="module")
def broker() -> Iterator[HttpRig]:
    made = HttpRig()
    yield made
    made.close()


@pytest.fixture
async def rig(broker: HttpRig) -> AsyncIterator[HttpRig]:
    async with broker:
        yield broker


@pytest.mark.parametrize(
    ("status", "verdict", "fault"),
    [
        (200, Verdict.CONFIRMED, Fault.MESSAGE),
        (204, Verdict.CONFIRMED, Fault.MESSAGE),
        (301, Verdict.UNKNOWN, Fault.MESSAGE),
        (400, Verdict.REFUSED, Fault.MESSAGE),
        (401, Verdict.REFUSED, Fault.MESSAGE),
        (404, Verdict.REFUSED, Fault.MESSAGE),
        (408, Verdict.UNKNOWN, Fault.MESSAGE),
        (410, Verdict.REFUSED, Fault.MESSAGE),
        (429, Verdict.UNKNOWN, Fault.DESTINATION),
        (500, Verdict.UNKNOWN, Fault.MESSAGE),
        (503, Verdict.UNKNOWN, Fault.DESTINATION),
        (599, Verdict.UNKNOWN, Fault.MESSAGE),
    ],
)
async def test_what_a_status_means(
    rig: HttpRig, status: int, verdict: Verdict, fault: Fault
) -> None:
    headers = {"Retry-After": "7", "Location": "http://169.254.169.254/"}
    path = rig.node.make(f"status-{status}", status=status, headers=headers)
    async with rig.connected() as (publisher, sink):
        (one,) = rig.deliveries(rig.destination(path), 1)
        await sink.publish([one])
        outcome = sink.outcomes[one]
        assert outcome.verdict is verdict
        if verdict is not Verdict.CONFIRMED:
            assert outcome.fault is fault
            assert outcome.answered == (verdict is Verdict.REFUSED or status == 500)
            assert outcome.reason.startswith(f"http_{status}: ")
        assert outcome.wait_ms == (7000 if verdict is Verdict.UNKNOWN else 0)
    assert len(rig.node.got(path)) == 1  # no redirect is followed


@pytest.mark.parametrize(
    ("text", "least", "most"),
    [
        ("120", 120_000, 120_000),
        ("0", 0, 0),
        ("9999999999999", 86_400_000, 86_400_000),
        ("in an hour", 3_000_000, 3_600_000),
        ("Wed, 21 Oct 2015 07:28:00 GMT", 0, 0),
        ("1.5", 1500, 1500),
        ("9" * 5000, 86_400_000, 86_400_000),
        ("Fri, 31 Dec 9999 23:59:59 GMT", 86_400_000, 86_400_000),
        ("Mon, 01 Jan 99999999999999999999 00:00:00 GMT", 0, 0),
        ("Mon, 01 Jan 0001 00:00:00 -0000", 0, 0),
        ("Mon, 01 Jan 2035 99:99:99 +9999999999", 0, 0),
        ("soon", 0, 0),
        ("-5", 0, 0),
        ("-5.5", 0, 0),
        ("1e3", 0, 0),
        ("inf", 0, 0),
        ("nan", 0, 0),
        ("٥", 0, 0),
        ("\udc80", 0, 0),
        (None, 0, 0),
    ],
)
def test_how_long_an_answer_asks_to_wait(text: str | None, least: int, most: int) -> None:
    if text == "in an hour":
        text = formatdate(time.time() + 3600, usegmt=True)
    assert least <= wait_ms(text) <= most


async def test_an_endless_answer_is_cut_off(rig: HttpRig) -> None:
    large = rig.node.make("large", bytes=10**9)
    dripping = rig.node.make("drip", bytes=10**9, drip_s=0.05)
    async with rig.connected() as (publisher, sink):
        both = [rig.delivery(rig.destination(path)) for path in (large, dripping)]
        await sink.publish(both)
        assert sink.verdicts(both) == {Verdict.CONFIRMED}


async def test_an_answer_that_does_not_come_is_unknown_and_holds_up_no_other(rig: HttpRig) -> None:
    slow, fast = rig.node.make("slow", wait_s=3600), rig.node.make("fast")
    stuck = rig.delivery(rig.destination(slow))
    async with rig.connected() as (publisher, sink):
        publisher.publish([stuck])
        await sink.publish(rig.deliveries(rig.destination(fast), 20))
        assert stuck not in sink.outcomes
    async with rig.connected(quick(rig.options)) as (publisher, sink):
        await sink.confirm_again(rig, rig.destination(fast))  # over a connection that is still open
        await sink.publish([stuck])
        assert sink.outcomes[stuck].verdict is Verdict.UNKNOWN
        assert sink.outcomes[stuck].reason.startswith("confirm_timeout")
        assert publisher.unavailable is None


async def test_messages_of_one_key_go_one_after_the_other(rig: HttpRig) -> None:
    path = rig.node.make("keyed", wait_s=0.02)
    async with rig.connected() as (publisher, sink):
        to = rig.destination(path)
        made = [
            rig.delivery(to, f"{key} {number:03}".encode(), key=key.encode())
            for number in range(20)
            for key in ("a", "b", "c")
        ]
        await sink.publish(made)
    got = rig.node.got(path)
    for key in ("a", "b", "c"):
        of_key = [one for one in got if one["body"].startswith(key.encode())]
        assert [one["body"].decode() for one in of_key] == [f"{key} {n:03}" for n in range(20)]
        # The receiver answers each after 20 ms, and takes the next one only then.
        assert all(b["at_ms"] - a["at_ms"] >= 19 for a, b in pairwise(of_key))
    keys = [one["body"][:1] for one in got]
    assert keys != sorted(keys)  # but other keys wait for none of them


def test_the_page_shows_how_to_verify_a_signature() -> None:
    page = (Path(__file__).parents[2] / "docs/destinations.md").read_text()
    program = page.split("## HTTP: webhooks")[1].split("```python\n")[1].split("```")[0]
    space: dict[str, Any] = {}
    exec(program, space)
    now_s = int(time.time())
    signed = signatures([b"0123456789abcdef", b"other"], "o-1", now_s, b"body")
    headers = {"webhook-id": "o-1", "webhook-timestamp": str(now_s), "webhook-signature": signed}
    assert space["is_genuine"](b"0123456789abcdef", headers, b"body")
    assert not space["is_genuine"](b"0123456789abcdef", headers, b"other body")
    assert not space["is_genuine"](b"fedcba9876543210", headers, b"body")
    assert not space["is_genuine"](b"other", headers | {"webhook-timestamp": "1"}, b"body")


async def test_headers_and_signature_arrive(rig: HttpRig, tmp_path: Path) -> None:
    file = tmp_path / "secrets"
    file.write_text(f"{SECRET}\nan-older-secret-of-enough-bytes\n")
    options = PublishOptions(http=HttpOptions(allow_private=True, secret_file=str(file)))
    path = rig.node.make("signed")
    async with rig.connected(options) as (publisher, sink):
        headers = (("X-Order", b"42"), ("content-type", b"application/json"))
        one = rig.delivery(rig.destination(f"{path}?a=b%2Fc"), b'{"a": 1}', headers=headers)
        await sink.publish([one])
    (got,) = rig.node.got(path)
    found = got["headers"]
    assert got["query"] == "a=b/c"
    assert (found["x-order"], found["content-type"]) == ("42", "application/json")
    assert found["delaybridge-due-ms"] == str(one.due_ms)
    assert abs(int(found["webhook-timestamp"]) - time.time()) < 60
    signed = f"{found['webhook-id']}.{found['webhook-timestamp']}.".encode() + got["body"]
    for secret, text in zip(
        (b"0123456789abcdef", b"an-older-secret-of-enough-bytes"),
        found["webhook-signature"].split(),
        strict=True,
    ):
        digest = hmac.digest(secret, signed, hashlib.sha256)
        assert text == f"v1,{base64.b64encode(digest).decode()}"


@pytest.mark.parametrize(
    "address",
    [
        *("127.0.0.1", "10.0.0.1", "172.16.0.1", "192.168.1.1", "169.254.169.254", "0.0.0.0"),
        *("100.64.0.1", "192.0.0.1", "198.18.0.1", "224.0.0.1", "240.0.0.1", "255.255.255.255"),
        *("::1", "::", "fe80::1", "fc00::1", "ff02::1", "::ffff:127.0.0.1", "::ffff:10.0.0.1"),
        *("64:ff9b::7f00:1", "64:ff9b::a9fe:a9fe", "2002:7f00:1::", "fec0::1", "2001:db8::1"),
    ],
)
def test_s18_addresses_that_are_refused(address: str) -> None:
    assert not is_public(ip_address(address))


@pytest.mark.parametrize(
    "address", ["1.1.1.1", "93.184.216.34", "2606:4700::1", "64:ff9b::101:101"]
)
def test_s18_addresses_that_are_allowed(address: str) -> None:
    assert is_public(ip_address(address))


@pytest.mark.parametrize("host", ["localhost", "2130706433", "0x7f.1", "127.1"])
async def test_s18_other_spellings_of_a_local_address(host: str) -> None:
    with pytest.raises(AddressRefused):
        await PublicResolver().resolve(host, 80)


async def test_s18_a_name_with_one_private_address_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def both(*_: Any, **__: Any) -> list[Any]:
        kind = (socket.AF_INET, socket.SOCK_STREAM, 6, "")
        return [(*kind, (address, 443)) for address in ("1.1.1.1", "10.0.0.1")]

    class Loop:
        getaddrinfo = staticmethod(both)

    monkeypatch.setattr(addresses.asyncio, "get_running_loop", Loop)
    with pytest.raises(AddressRefused):
        await PublicResolver().resolve("rebinding.example", 443)


@pytest.mark.parametrize(
    "url",
    [
        "https://127.0.0.1/x", "https://[::1]/x", "https://169.254.169.254/latest",
        "http://example.com/x", "https://[::ffff:10.0.0.1]/x",
    ],
)  # fmt: skip
def test_s18_a_broker_that_is_not_public_is_a_wrong_setting(url: str) -> None:
    with pytest.raises(ConfigError, match="http.allow_private"):
        connect_to("hook", url, PublishOptions())


async def test_a_password_file_is_read_for_each_post(rig: HttpRig, tmp_path: Path) -> None:
    path, file = rig.node.make("auth"), tmp_path / "password"
    url = f"{rig.url()}?password_file={file}".replace("://", "://user@")
    file.write_text("one\n")
    async with rig.connected(url=url) as (publisher, sink):
        for password in ("one", "two"):
            file.write_text(password)
            made = rig.deliveries(rig.destination(path), 1)
            await sink.publish(made)
        file.unlink()
        made = rig.deliveries(rig.destination(path), 1)
        await sink.publish(made)
        assert sink.outcomes[made[0]].fault is Fault.BROKER
        assert "password_file" in sink.outcomes[made[0]].reason
    sent = [one["headers"]["authorization"] for one in rig.node.got(path)]
    assert sent == [f"Basic {base64.b64encode(b'user:' + p).decode()}" for p in (b"one", b"two")]


async def test_s18_a_name_that_leads_home_is_never_connected_to(rig: HttpRig) -> None:
    made, _ = connect_to("h", f"https://localhost:{rig.proxy_port}/base", PublishOptions())
    with pytest.raises(PublishUnavailable, match="not a public address"):
        await made.connect()
    await made.close(0)


@pytest.mark.parametrize(
    "path",
    [
        "", "/x", "a//b", "../x", "a/../b", "a/%2e%2e/b", "%2E%2E", ".", "a b", "a\nb", "a#b",
        "//evil.example/x", "http://evil.example", "a%zz", "a%", "é", "a\\b", "a/%2F../b",
        *ODD_PATHS,
    ],
)  # fmt: skip
async def test_d6_a_path_never_leads_elsewhere(redis_url: str, namespace: str, path: str) -> None:
    brokers = {"hook": "https://example.com/base"}
    async with AsyncClient(redis_url, namespace=namespace, brokers=brokers) as client:
        with pytest.raises(MessageError):
            await client.schedule(f"hook:{path}", "x", delay="1h")


async def test_d6_a_stored_path_that_leads_elsewhere_is_not_posted_to(rig: HttpRig) -> None:
    async with rig.connected() as (publisher, sink):
        made = [rig.delivery(rig.destination(path)) for path in ODD_PATHS]
        await sink.publish(made)
        outcomes = {sink.outcomes[one] for one in made}
        assert {each.verdict for each in outcomes} == {Verdict.REFUSED}
        assert {each.reason.partition(":")[0] for each in outcomes} == {"bad_destination"}
        assert "bad_destination" in str(await publisher.check(rig.destination("a/..;/b")))


@pytest.mark.parametrize(
    ("headers", "code"),
    [
        ({"a b": "x"}, "bad_header"),
        ({"a": "x\r\ny: z"}, "bad_header"),
        ({"a": b"x\ny"}, "bad_header"),
        ({"Host": "evil"}, "reserved_header"),
        ({"content-length": "3"}, "reserved_header"),
        ({"Webhook-Signature": "v1,x"}, "reserved_header"),
        ({"a": None}, "unsupported_header_type"),
        ({"a": 1}, "unsupported_header_type"),
    ],
)
async def test_headers_that_http_does_not_take(
    redis_url: str, namespace: str, headers: dict[str, Any], code: str
) -> None:
    brokers = {"hook": "https://example.com/base"}
    async with AsyncClient(redis_url, namespace=namespace, brokers=brokers) as client:
        with pytest.raises(MessageError) as refused:
            await client.schedule("hook:x", "y", delay="1h", headers=headers)
        assert refused.value.code == code


def test_weak_secrets_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "secrets"
    for text in ("", "short", "whsec_!!!", "whsec_c2hvcnQ="):
        file.write_text(text)
        options = PublishOptions(http=HttpOptions(secret_file=str(file)))
        with pytest.raises(ConfigError, match="http.secret_file"):
            connect_to("h", "https://example.com", options)


async def test_a_large_delivery_and_a_null_body(rig: HttpRig) -> None:
    path = rig.node.make("sizes")
    async with rig.connected() as (publisher, sink):
        to = rig.destination(path)
        null: Any = None
        await sink.publish([rig.delivery(to, bytes(2**20)), rig.delivery(to, null)])
    assert sorted(len(one["body"]) for one in rig.node.got(path)) == [0, 2**20]


async def test_d6_a_worker_gives_up_a_stored_path_that_leads_elsewhere(
    redis_url: str, namespace: str, crew: Crew, monkeypatch: pytest.MonkeyPatch
) -> None:
    brokers = {"hook": "http://127.0.0.1:1/base", "memory": "memory://"}
    async with AsyncClient(redis_url, namespace=namespace, brokers=brokers) as client:
        with monkeypatch.context() as unchecked:  # as an earlier version stored it
            unchecked.setattr(destination, "check_path", lambda path: None)
            plan = {"max_attempts": 1}
            made = await client.schedule("hook:a/..;/b", "x", delay=0, retry=plan)
        crew.start(brokers=brokers, http={"allow_private": True}, lease=CALM)

        async def reason() -> str | None:
            found = await client.get(made.id)
            return None if found is None else found.reason

        assert "..;" in str(await until_async(reason, "it is dead"))


async def test_a_message_is_posted_when_it_is_due(
    rig: HttpRig, redis_url: str, namespace: str, crew: Crew, arrived: Arrived, stall: Stall
) -> None:
    refusing = rig.node.make("later", status=503, headers={"Retry-After": "2"}, first=1)
    path = rig.node.make("due")
    brokers = {"hook": rig.url(), "memory": "memory://"}
    async with AsyncClient(redis_url, namespace=namespace, brokers=brokers) as client:
        crew.start(brokers=brokers, http={"allow_private": True}, lease=CALM)
        one, control = [
            await client.schedule(to, "x", delay="300ms") for to in (f"hook:{path}", "memory:q")
        ]
        two = await client.schedule(f"hook:{refusing}", "y", delay="300ms")

        async def are_gone() -> bool:
            return not any([await client.get(each.id) for each in (one, two, control)])

        await until_async(are_gone, "both are delivered")
    (got,) = rig.node.got(path)
    assert got["headers"]["delaybridge-id"] == one.id
    assert 0 <= got["at_ms"] - one.due_ms < max(arrived.late_ms) + 1000 + stall.worst_ms
    first, second = rig.node.got(refusing)
    assert second["at_ms"] - first["at_ms"] >= 2000  # as Retry-After asks
    assert second["headers"]["delaybridge-attempt"] == "2"
