"""What the management API shows of a delay exchange, and the commands that mend it."""

from __future__ import annotations

import asyncio
import json
import shlex
import socket
import threading
from collections.abc import Iterator, Mapping
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import pytest

from delaybridge.ingest.process import options_of, routes_of
from delaybridge.ingest.rabbitmq import management, remedies
from delaybridge.ingest.rabbitmq.management import Management, ManagementError
from delaybridge.ingest.rabbitmq.topology import BOUND_HEADERS, binding_arguments
from delaybridge.ingest.rabbitmq.watch import _survey, seen_by, surveyed
from delaybridge.ingest.routes import Route, parse_route
from delaybridge.publish import PublishOptions
from delaybridge.publish.rabbitmq.publisher import parameters_of
from delaybridge.settings.settings import Settings
from tests.rigs.waiting import DEADLINE_S
from tests.servers.process import LOOPBACK

ROUTE = Route("rabbitmq", "rabbitmq", "orders.delay", "orders")


def to(queue: str, **arguments: Any) -> dict[str, Any]:
    """A binding to a queue, as the API shows it."""
    about = {"destination_type": "queue", "destination": queue, "routing_key": ""}
    return {**about, "arguments": arguments}


OWN = to("orders.delay", **binding_arguments())
DIVERTS = {"type": "headers", "arguments": {"alternate-exchange": "orders"}}


class Answers(BaseHTTPRequestHandler):
    """A management API that gives the same answer each time to a path that ends like this."""

    given: Mapping[str, tuple[int, Any]] = {}

    def do_GET(self) -> None:
        path = self.path.partition("?")[0].removeprefix("/api/").replace("/%2F/", "/")
        status, answer = self.given.get(path, (404, {"error": "Object Not Found"}))
        self.send_response(status)
        self.end_headers()
        self.wfile.write(answer if isinstance(answer, bytes) else json.dumps(answer).encode())

    def log_message(self, *_: object) -> None:
        """Nothing."""


@pytest.fixture
def api() -> Iterator[Management]:
    server = HTTPServer(("127.0.0.1", 0), Answers)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    parameters = parameters_of("rabbitmq", "amqp://guest:guest@127.0.0.1/%2F", PublishOptions())
    yield Management(parameters, f"http://127.0.0.1:{server.server_port}")
    server.shutdown()
    thread.join()
    server.server_close()


async def seen(api: Management, monkeypatch: pytest.MonkeyPatch, **given: Any) -> list[str]:
    """given: the exchange, what it is bound to, the intake queue, that of expired messages, and the
    bindings that a conversion holds."""
    paths = {
        "exchange": "exchanges/orders.delay", "bound": "exchanges/orders.delay/bindings/source",
        "intake": "queues/orders.delay", "expired": "queues/orders.delay.expired",
        "held": "exchanges/orders.delay.moving/bindings/destination",
    }  # fmt: skip
    answers = {
        paths[name]: answer if isinstance(answer, tuple) else (200, answer)
        for name, answer in given.items()
    }
    monkeypatch.setattr(Answers, "given", {"exchanges/amq.direct": (200, {}), **answers})
    return await seen_by(api, ROUTE)


def queue(**definition: Any) -> dict[str, Any]:
    return {"policy": "all", "effective_policy_definition": definition}


async def test_an_exchange_that_does_not_exist_yet_has_no_fault(
    api: Management, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert await seen(api, monkeypatch) == []
    nothing = {"policy": None, "operator_policy": None, "effective_policy_definition": []}
    assert await seen(api, monkeypatch, bound=[OWN, OWN], intake=nothing) == []


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"intake": queue(expires=1)}, "expires"),
        ({"expired": queue(expires=1)}, "expires"),
        ({"intake": queue(overflow="drop-head")}, "overflow"),
        ({"intake": queue(**{"dead-letter-strategy": "at-most-once"})}, "dead-letter-strategy"),
        ({"expired": queue(**{"message-ttl": 1})}, "message-ttl"),
        ({"intake": queue(**{"message-ttl": 1, "max-length": 1})}, ""),
        ({"intake": queue(overflow="reject-publish", **{"alternate-exchange": "x"})}, ""),
    ],
)
async def test_a_policy_is_told_if_the_arguments_of_the_queue_do_not_win(
    api: Management, monkeypatch: pytest.MonkeyPatch, given: dict[str, Any], told: str
) -> None:
    faults = await seen(api, monkeypatch, **given)
    assert len(faults) == bool(told)
    assert all(told in fault and "set_policy" in fault for fault in faults)


@pytest.mark.parametrize(
    ("exchange", "told"), [(DIVERTS, 1), (DIVERTS | {"type": "topic"}, 0), (None, 0)]
)
async def test_the_intake_queue_has_its_own_binding_and_no_other(
    api: Management, monkeypatch: pytest.MonkeyPatch, exchange: Any, told: int
) -> None:
    """Of an exchange that diverts; one of an earlier form has others."""
    about = {} if exchange is None else {"exchange": exchange}
    later = to("orders.delay", **binding_arguments([*BOUND_HEADERS, "new"]))
    for bound, count in (([OWN], 0), ([later], 0), ([OWN, to("orders.delay", h=1)], told)):
        assert len(await seen(api, monkeypatch, **about, bound=bound)) == count
        assert len((await _survey(api, ROUTE, "")).faults) == count
    former = to("orders.delay", **binding_arguments(BOUND_HEADERS[1:]))
    for bound in ([], [former]):
        assert await seen(api, monkeypatch, **about, bound=bound) == []
        faults = (await _survey(api, ROUTE, "")).faults
        assert ["at once; start ingest" in fault for fault in faults] == [True] * told


async def test_a_conversion_that_was_interrupted_is_told_with_the_command_that_ends_it(
    api: Management, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = {"source": "first", "routing_key": "", "arguments": {}}
    (fault,) = await seen(api, monkeypatch, held=[held])
    assert "'first'" in fault and fault.endswith(
        "; run: delaybridge ingest rabbitmq --convert rabbitmq:orders.delay=orders"
    )


@pytest.mark.parametrize("names", ["orders.delay orders", "orders.delay shop", "a:b$(c).delay x=y"])
def test_the_command_that_converts_names_the_target(names: str) -> None:
    source, target = names.split()
    route = Route("eu", "rabbitmq", source, target)
    *_, text = shlex.split(remedies.convert(route))
    assert parse_route(text, {"eu": "rabbitmq", "us": "rabbitmq"}, "rabbitmq") == route


async def test_many_foreign_bindings_are_counted(
    api: Management, monkeypatch: pytest.MonkeyPatch
) -> None:
    bound = [to(f"q{n}") for n in range(9)]
    faults = await seen(api, monkeypatch, bound=[OWN, *bound, *bound])
    assert [f"'q{n}'" in fault for n, fault in enumerate(faults)] == [True] * 5 + [False]
    assert faults[-1] == "4 more queues or exchanges are bound to 'orders.delay'"


@pytest.mark.parametrize(
    "given",
    [
        {"bound": (404, {"error": "not RabbitMQ"})},
        {"bound": (200, b"")},
        {"bound": (200, b"<html>")},
        {"bound": (200, b"\xff")},
        {"bound": (200, b"[" * 100_000)},
        {"bound": (401, {})},
        {"bound": (500, b"")},
        {"bound": 7},
        {"bound": {"error": 1}},
        {"bound": [{"destination": "q"}]},
        {"bound": [None]},
        {"bound": [OWN | {"arguments": 7}]},
        {"intake": [1]},
        {"intake": "text"},
        {"intake": {"effective_policy_definition": "text"}},
        {"intake": {"effective_policy_definition": 7}},
        {"expired": None},
    ],
)
async def test_an_answer_that_makes_no_sense_shows_nothing(
    api: Management, monkeypatch: pytest.MonkeyPatch, given: dict[str, Any]
) -> None:
    with pytest.raises(ManagementError, match=r"http://127\.0\.0\.1"):
        await seen(api, monkeypatch, **given)


async def test_an_api_that_does_not_know_what_every_broker_has_shows_nothing(
    api: Management, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As one behind a proxy that decodes %2F."""
    monkeypatch.setattr(Answers, "given", {})
    with pytest.raises(ManagementError, match="decodes %2F"):
        await seen_by(api, ROUTE)


async def test_a_port_that_speaks_no_http_shows_nothing(api: Management) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:

        def greet() -> None:
            connection, _ = other.accept()
            with connection:
                connection.recv(4096)
                connection.sendall(b"AMQP\x00\x00\x09\x01\r\n\r\n")

        thread = threading.Thread(target=greet)
        thread.start()
        api._url = f"http://127.0.0.1:{other.getsockname()[1]}"
        with pytest.raises(ManagementError):
            await seen_by(api, ROUTE)
        thread.join()


@pytest.mark.parametrize("start", [b"HTTP/1.1 200 OK\r\nname: ", b"HTTP/1.1 200 OK\r\n\r\n[]"])
async def test_an_answer_that_trickles_has_no_more_time_than_another(
    api: Management, monkeypatch: pytest.MonkeyPatch, start: bytes
) -> None:
    monkeypatch.setattr(management, "_TIMEOUT_S", 0.2)
    trickled = asyncio.Event()

    async def trickle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(start)
        try:
            while True:
                writer.write(b" ")
                await writer.drain()
                await asyncio.sleep(0)
        except OSError:
            trickled.set()  # nobody reads it any more
        finally:
            writer.close()

    async with await asyncio.start_server(trickle, LOOPBACK, 0) as server:
        api._url = f"http://{LOOPBACK}:{server.sockets[0].getsockname()[1]}"
        with pytest.raises(ManagementError, match="no answer within"):
            await seen_by(api, ROUTE)
        async with asyncio.timeout(DEADLINE_S):
            await trickled.wait()


@pytest.mark.parametrize("vhost", ["/", "it's"])
def test_a_command_is_for_its_vhost_and_has_every_name_in_quotes(vhost: str) -> None:
    of = [] if vhost == "/" else ["-p", vhost]
    odd = Route("rabbitmq", "rabbitmq", "a b'c.delay", "x|y")
    commands = ["set_policy", "set_operator_policy"]
    lines = [shlex.split(line) for line in remedies.shield(vhost, odd, commands).split(" && ")]
    for line, command in zip(lines, commands, strict=True):
        assert line[: 2 + len(of)] == ["rabbitmqctl", command, *of]
        assert line[-2] == r"^a\ b'c\.delay(\.expired)?$"
        assert json.loads(line[-1])
    rights = shlex.split(remedies.rights(vhost, "u", [odd, ROUTE]))
    own = r"^(a\ b'c\.delay|orders\.delay)"
    assert rights == [
        "rabbitmqctl", "set_permissions", *of, "u", own, rf"{own}|^(x\|y|orders)$", own,
    ]  # fmt: skip
    (*_, code) = shlex.split(remedies.unbind(vhost, "orders.delay", "queue", 'x">>'))
    assert '<<"orders.delay">>' in code and "<<120,34,62,62>>" in code


async def test_an_api_is_asked_about_all_sources_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """It answers once it was asked about each: a silent one costs one time-out."""
    monkeypatch.setattr(management, "_TIMEOUT_S", DEADLINE_S)
    sources, asked, all_asked = 24, set[str](), asyncio.Event()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        path = (await reader.readuntil(b"\r\n\r\n")).split()[1].decode()
        asked.add(path)
        if len(asked) == sources:
            all_asked.set()
        await all_asked.wait()
        body = "[]" if "bindings" in path else "{}"
        writer.write(f"HTTP/1.0 200 OK\r\ncontent-length: {len(body)}\r\n\r\n{body}".encode())
        await writer.drain()
        writer.close()

    async with await asyncio.start_server(answer, LOOPBACK, 0) as server:
        url = f"http://{LOOPBACK}:{server.sockets[0].getsockname()[1]}"
        ingest = {"exchanges": [f"x{n}.delay" for n in range(sources)], "management": [url]}
        given = {"brokers": {"rabbitmq": "amqp://127.0.0.1"}, "ingest": ingest}
        settings = Settings.load(overrides=given)
        looks = await surveyed(options_of(settings, routes_of(settings)).values())
    assert [look.unseen for look in looks] == [""] * sources
