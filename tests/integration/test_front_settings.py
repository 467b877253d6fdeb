"""What operators set at a front: limits, nodes, TLS, addresses; and how it ends."""

from __future__ import annotations

import ipaddress
import resource
import socket
import ssl
import struct
from collections.abc import Iterator
from contextlib import ExitStack, suppress

import pika
import psutil
import pytest

from delaybridge.errors import ConfigError
from delaybridge.front import handshake
from delaybridge.front.front import tls_of
from delaybridge.settings.settings import Settings
from tests.rigs import raw_amqp as amqp
from tests.rigs.bridge import rabbitmq_channel
from tests.rigs.certificates import Certificates, make
from tests.rigs.fronts import FakeBroker, Fronting, FrontProcess, Pair, read, read_all
from tests.rigs.raw_amqp import Ended, RawClient
from tests.rigs.waiting import until
from tests.servers.process import LOOPBACK, free_port

NO_REDIS = "redis://127.0.0.1:1/0"


@pytest.fixture
def broker() -> Iterator[FakeBroker]:
    with FakeBroker() as broker:
        yield broker


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return make(tmp_path_factory.mktemp("tls"), "IP:127.0.0.1,DNS:localhost")


def start(mechanisms: bytes) -> bytes:
    return amqp.method(
        0, amqp.START, b"\0\x09" + amqp.table() + amqp.long(mechanisms) + b"\0\0\0\0"
    )


# How many


def test_above_the_limit_of_connections_a_client_is_closed_at_once(rabbitmq_url: str) -> None:
    with Fronting(NO_REDIS, rabbitmq_url, "front", connections=1) as front:
        until(lambda: front.has_accepted and front.connections == 0, "the rig's own is closed")
        with amqp.opened(front.port) as first:
            with pytest.raises(OSError), RawClient(front.port) as second:
                second.open()
            assert first.call(1, amqp.CONFIRM, b"\0").id == (85, 11)


def test_no_more_clients_are_let_in_than_the_system_has_sockets_for(
    rabbitmq_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    had = [(64, 104)]
    monkeypatch.setattr(resource, "getrlimit", lambda which: had[-1])
    monkeypatch.setattr(resource, "setrlimit", lambda which, limits: had.append(limits))
    with Fronting(NO_REDIS, rabbitmq_url, "front", connections=1000) as front:
        until(lambda: front.has_accepted and front.connections == 0, "the rig's own is closed")
        with amqp.opened(front.port), amqp.opened(front.port):
            with pytest.raises(OSError), RawClient(front.port) as third:
                third.open()
    assert had[1:] == [(104, 104)]


def test_channels_are_limited_by_what_client_and_broker_agree_on(rabbitmq_url: str) -> None:
    with (
        Fronting(NO_REDIS, rabbitmq_url, "front", channels=2) as front,
        RawClient(front.port) as client,
    ):
        client.open()
        for channel in (1, 2):
            client.open_channel(channel)
        assert client.call(3, amqp.CHANNEL_OPEN, b"\0").code == 530


# Where to


def test_a_node_that_refuses_is_passed_over(rabbitmq_url: str) -> None:
    port = pika.URLParameters(rabbitmq_url).port
    nodes = [f"{LOOPBACK}:{free_port()}", f"{LOOPBACK}:{port}"]
    with Fronting(NO_REDIS, rabbitmq_url, "front", nodes=nodes) as front:
        for _ in range(2):
            with amqp.opened(front.port) as client:
                assert client.call(1, amqp.CONFIRM, b"\0").id == (85, 11)


def test_while_no_node_answers_clients_are_closed_and_later_they_are_not(rabbitmq_url: str) -> None:
    port = free_port()
    with Fronting(NO_REDIS, f"amqp://{LOOPBACK}:{port}", "front") as front:
        with pytest.raises(OSError), RawClient(front.port) as client:
            client.open()
        with FakeBroker(port=port) as broker, RawClient(front.port) as client:
            client.sock.sendall(amqp.PROTOCOL)
            assert read(broker.accept(), 8) == amqp.PROTOCOL


# Who


def test_guest_from_another_host_is_refused_as_by_the_broker(
    rabbitmq_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(handshake, "_is_loopback", lambda host: False)
    login = amqp.table(LOGIN="guest", PASSWORD="guest")[4:]
    twice = amqp.long(login + amqp.table(LOGIN="another")[4:])
    with Fronting(NO_REDIS, rabbitmq_url, "front", other_protocols="pass") as front:
        for mechanism, response in (
            ("PLAIN", amqp.long(b"\0guest\0guest")),
            ("AMQPLAIN", amqp.long(login)),
            ("AMQPLAIN", twice),
            ("AMQPLAIN", amqp.long(b"\xff")),
        ):
            with RawClient(front.port) as client:
                client.sock.sendall(amqp.PROTOCOL)
                client.wait(amqp.START)
                client.send(
                    0, amqp.START_OK, amqp.table() + amqp.short(mechanism) + response + b"\0"
                )
                with pytest.raises(Ended, match="403 ACCESS_REFUSED - guest"):
                    client.wait(amqp.TUNE)
        with socket.create_connection((LOOPBACK, front.port), timeout=60) as sock:
            sock.sendall(b"AMQP\3\1\0\0")  # AMQP 1.0: its login cannot be read
            assert read_all(sock) == amqp.PROTOCOL
    with (
        Fronting(NO_REDIS, rabbitmq_url, "front", allow_guest=True) as front,
        amqp.opened(front.port) as client,
    ):
        assert client.call(1, amqp.CONFIRM, b"\0").id == (85, 11)


@pytest.mark.parametrize(
    "host, is_local",
    [
        ("127.0.0.1", True), ("127.9.9.9", True), ("::1", True), ("::ffff:127.0.0.1", True),
        ("", True), ("10.0.0.7", False), ("::ffff:10.0.0.7", False), ("fe80::1%eth0", False),
        ("localhost.example", False),
    ],
)  # fmt: skip
def test_which_addresses_are_this_host(host: str, is_local: bool) -> None:
    assert handshake._is_loopback(host) == is_local


def test_the_broker_is_told_the_clients_address(broker: FakeBroker) -> None:
    with (
        Fronting(NO_REDIS, broker.url, "front", proxy_protocol=True) as front,
        socket.create_connection((LOOPBACK, front.port), timeout=60) as client,
    ):
        client.sendall(amqp.PROTOCOL)
        found = read(broker.accept(), 28 + 8)
        host = ipaddress.ip_address(LOOPBACK).packed
        ends = struct.pack(">HH", client.getsockname()[1], front.port)
        family_and_size = b"\x21\x11\0\x0c"
        assert found == b"\r\n\r\n\0\r\nQUIT\n" + family_and_size + host * 2 + ends + amqp.PROTOCOL


# TLS


def test_a_client_uses_tls_and_external_is_not_offered(
    broker: FakeBroker, certificates: Certificates
) -> None:
    mechanisms = b"PLAIN EXTERNAL AMQPLAIN"
    tls = {
        "tls_cert_file": str(certificates.certificate),
        "tls_key_file": str(certificates.key),
    }
    for settings, expected in ((tls, b"PLAIN AMQPLAIN"), ({}, mechanisms)):
        context = ssl.create_default_context(cafile=str(certificates.authority))
        with (
            Fronting(NO_REDIS, broker.url, "front", **settings) as front,
            RawClient(front.port, tls=context if settings else None) as client,
        ):
            client.sock.sendall(amqp.PROTOCOL)
            other = broker.accept()
            assert read(other, 8) == amqp.PROTOCOL
            other.sendall(start(mechanisms))
            assert amqp.long(expected) in client.wait(amqp.START).arguments
            large = amqp.frame(3, 1, bytes(range(256)) * 4000)  # in many records
            client.sock.sendall(large)
            assert read(other, len(large)) == large


def test_a_key_without_its_certificate_does_not_mean_that_there_is_no_tls() -> None:
    settings = Settings.load(overrides={"front": {"tls_key_file": "key.pem"}}, environ={})
    with pytest.raises(ConfigError, match="key.pem"):
        tls_of(settings.front)


def test_tls_towards_the_broker_names_it_and_its_certificate_is_checked(
    certificates: Certificates, monkeypatch: pytest.MonkeyPatch
) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificates.certificate, certificates.key)
    asked: list[str | None] = []
    context.sni_callback = lambda sock, name, context: asked.append(name)
    with FakeBroker(context) as broker:
        url = f"amqps://guest:guest@localhost:{broker.port}/"
        monkeypatch.setenv("SSL_CERT_FILE", str(certificates.authority))
        with Fronting(NO_REDIS, url, "front") as front, RawClient(front.port) as client:
            client.sock.sendall(amqp.PROTOCOL)
            with broker.accept() as other:
                assert read(other, 8) == amqp.PROTOCOL
            assert read_all(client.sock) == b""
        assert asked == ["localhost"]
        monkeypatch.delenv("SSL_CERT_FILE")
        with Fronting(NO_REDIS, url, "front") as front, RawClient(front.port) as client:
            client.sock.sendall(amqp.PROTOCOL)
            with pytest.raises(ssl.SSLError):
                broker.accept()
            assert read_all(client.sock) == b""


# The end


def test_a_front_that_is_stopped_takes_no_client_and_ends_when_the_last_has_gone(
    rabbitmq_url: str,
) -> None:
    with Fronting(NO_REDIS, rabbitmq_url, "front", drain_timeout_s=3600) as front:
        with rabbitmq_channel(front.url) as channel:
            front.stop()
            until(lambda: refuses(front.port), "it listens no more")
            assert channel.queue_declare("", exclusive=True).method.queue
        until(lambda: not front.is_running, "it has ended")


def refuses(port: int) -> bool:
    try:
        socket.create_connection((LOOPBACK, port)).close()
    except ConnectionRefusedError:
        return True
    return False


def test_after_the_time_to_leave_a_client_gets_320(rabbitmq_url: str) -> None:
    with Fronting(NO_REDIS, rabbitmq_url, "front") as front:
        connection = pika.BlockingConnection(pika.URLParameters(front.url))
        front.stop()
        with pytest.raises(pika.exceptions.ConnectionClosedByBroker) as closed:
            connection.process_data_events(60)
        assert closed.value.reply_code == 320
        until(lambda: not front.is_running, "it has ended")


def test_a_delivery_under_way_is_whole_before_the_close(broker: FakeBroker) -> None:
    deliver = amqp.method(1, amqp.DELIVER, b"\1c" + bytes(9) + b"\0\1k")
    header = amqp.frame(2, 1, struct.pack(">HHQH", 60, 0, 10, 0))
    whole = deliver + header + amqp.frame(3, 1, b"0123456789")
    for cut in (len(deliver), len(deliver + header), len(whole) - 4):
        with Fronting(NO_REDIS, broker.url, "front") as front, Pair(front, broker) as pair:
            pair.broker.sendall(whole[:cut])
            until(lambda: cut in front.received())  # noqa: B023
            front.stop()
            until(lambda: refuses(front.port), "it is being stopped")
            pair.broker.sendall(whole[cut:])
            assert read(pair.client, len(whole)) == whole
            assert read(pair.client, 13)[7:] == struct.pack(">HHH", *amqp.CLOSE, 320)


@pytest.mark.slow  # the supervisor's own tests have deaths of processes
def test_processes_share_the_address_and_one_that_dies_ends_only_its_clients(
    rabbitmq_url: str, redis_url: str, namespace: str
) -> None:
    brokers = {"rabbitmq": rabbitmq_url}
    options = ("--no-ingest", "--processes", "2")
    with FrontProcess(redis_url, brokers, namespace, *options) as front, ExitStack() as stack:
        until(lambda: len(listening(front)) == 2, "both listen")
        clients = [stack.enter_context(RawClient(front.port)).open() for _ in range(30)]
        victim, _ = listening(front)
        victim.kill()
        until(lambda: len(listening(front)) == 2 and victim not in listening(front), "replaced")
        alive = [is_alive(client) for client in clients]
        assert 0 < sum(alive) < len(alive)
        with amqp.opened(front.port) as client:
            assert client.call(1, amqp.CONFIRM, b"\0").id == (85, 11)


def listening(front: FrontProcess) -> list[psutil.Process]:
    found = []
    for each in psutil.Process(front.pid).children(recursive=True):
        with suppress(psutil.Error):
            at = {c.laddr.port for c in each.net_connections("tcp") if c.status == "LISTEN"}
            found += [each] * (front.port in at)
    return found


def is_alive(client: RawClient) -> bool:
    try:
        client.open_channel()
    except OSError:
        return False
    return True
