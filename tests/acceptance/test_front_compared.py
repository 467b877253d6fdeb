"""The same calls at a front and at a broker with the plugin, and what each answered.

Run it with DELAYBRIDGE_TEST_PLUGIN_RABBITMQ_URL; without one it is skipped. A scenario is a few
calls on one channel, opened again when it was closed. Codes are compared, texts are not.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pika
import pytest
from pika.exceptions import ChannelClosedByBroker, ConnectionClosedByBroker, UnroutableError

from tests.rigs.front import Front
from tests.rigs.waiting import until

DELAYED = "x-delayed-message"
Scenario = Callable[["Session"], None]
SCENARIOS: dict[str, Scenario] = {}


def scenario(what: Scenario) -> Scenario:
    SCENARIOS[what.__name__] = what
    return what


class Session:
    """One client, whose names begin with `name`; seen: what it was answered."""

    def __init__(self, url: str, name: str) -> None:
        self.name, self.seen, self._url = name, list[Any](), url
        self._open()

    def _open(self) -> None:
        self.connection = pika.BlockingConnection(pika.URLParameters(self._url))
        self.channel = self.connection.channel()

    def plain(self, text: str) -> str:
        return text.replace(self.name, "N")

    def do(self, what: str, *arguments: Any, **named: Any) -> Any:
        try:
            if not self.connection.is_open:
                self._open()
            if not self.channel.is_open:
                self.channel = self.connection.channel()
            done = getattr(self.channel, what)(*arguments, **named)
        except (ChannelClosedByBroker, ConnectionClosedByBroker) as closed:
            # RabbitMQ 3 ends the connection for a type that it does not know.
            code = 406 if closed.reply_code == 503 else closed.reply_code
            self.seen.append((what, code))
            return None
        except UnroutableError as returned:
            told = [(each.method.reply_code, each.method.exchange) for each in returned.messages]
            self.seen.append((what, [(code, self.plain(name)) for code, name in told]))
            return None
        self.seen.append(what)
        return done

    def declare(self, suffix: str = "", kind: Any = "direct", **named: Any) -> None:
        arguments = {} if kind is None else {"x-delayed-type": kind}
        arguments |= named.pop("arguments", {})
        self.do("exchange_declare", self.name + suffix, DELAYED, arguments=arguments, **named)

    def plain_exchange(self, suffix: str, type: str = "fanout", **arguments: Any) -> None:
        self.do("exchange_declare", self.name + suffix, type, arguments=arguments)

    def queue(self, *keys: str, suffix: str = "", **arguments: Any) -> None:
        """A queue bound to the exchange by these keys."""
        self.do("queue_declare", self.name + suffix, arguments=arguments)
        for key in keys:
            self.do("queue_bind", self.name + suffix, self.name, key)

    def publish(
        self, delay: int | None = None, suffix: str | None = "", key: str = "k", **more: Any
    ) -> None:
        """With a confirm. suffix: of the exchange; None: to the queue of this key."""
        exchange = "" if suffix is None else self.name + suffix
        mandatory, properties = more.pop("mandatory", False), more.pop("properties", {})
        headers = more | ({} if delay is None else {"x-delay": delay})
        self.do("confirm_delivery")
        described = pika.BasicProperties(headers=headers, **properties)
        self.do("basic_publish", exchange, key, b"%d" % (delay or 0), described, mandatory)

    def get(self, suffix: str = "", count: int = 1) -> list[Any]:
        """Note and return the next messages of the queue."""
        found = [self._next(self.name + suffix) for _ in range(count)]
        rows = [
            (self.plain(method.exchange), method.routing_key, body, abs(self._delay(properties)))
            for method, properties, body in found
        ]
        self.seen.append(sorted(rows))
        return found

    def _next(self, queue: str) -> Any:
        def one() -> Any:
            got = self.channel.basic_get(queue, auto_ack=True)
            return got if got[0] else None

        return until(one, f"a message in {queue}", deadline_s=10.0)

    @staticmethod
    def _delay(properties: Any) -> int:
        return int((properties.headers or {}).get("x-delay", 0))


# declaring


@scenario
def again(s: Session) -> None:
    for named in (
        {},
        {"kind": "topic"},
        {"kind": None},
        {"arguments": {"more": 1}},
        {"arguments": {"alternate-exchange": "amq.fanout"}},
        *({flag: True} for flag in ("durable", "auto_delete", "internal", "passive")),
        {"kind": None, "passive": True},
    ):
        s.declare(**named)


@scenario
def no_such_type(s: Session) -> None:
    for kind in ("x-no-such", DELAYED, "", 5, None):
        s.declare(kind=kind)
    s.declare(passive=True)


@scenario
def over_another(s: Session) -> None:
    for type in ("direct", "headers"):
        s.plain_exchange(type, type)
        s.declare(type)
    s.declare()
    for type in ("direct", "headers"):
        s.plain_exchange("", type)


@scenario
def names(s: Session) -> None:
    for name in ("", "amq.later"):
        s.do("exchange_declare", name, DELAYED, arguments={"x-delayed-type": "direct"})
    s.declare("-\u20ac\U0001f600")


@scenario
def deleted_and_made_again(s: Session) -> None:
    s.do("exchange_delete", s.name)
    s.declare()
    s.do("exchange_delete", s.name, if_unused=True)
    s.declare(durable=True, kind="fanout")
    s.queue("")
    s.do("exchange_delete", s.name, if_unused=True)
    s.publish(100, key="any")
    s.get()
    s.do("exchange_delete", s.name)
    s.declare(passive=True)
    s.plain_exchange("")
    s.do("queue_bind", s.name, s.name, "")
    s.publish()
    s.get()


@scenario
def pending_messages_outlive_the_exchange(s: Session) -> None:
    s.declare()
    s.publish(600)
    s.do("exchange_delete", s.name)
    s.declare()
    s.queue("k")
    s.get()


@scenario
def auto_delete(s: Session) -> None:
    s.declare(auto_delete=True)
    s.queue("k")
    s.do("queue_unbind", s.name, s.name, "k")
    s.do("queue_bind", s.name, s.name, "k")
    s.declare(auto_delete=True, kind="topic")
    s.do("queue_bind", s.name, s.name, "#")
    s.publish(50, key="any")
    s.get()


@scenario
def internal(s: Session) -> None:
    s.declare(internal=True)
    s.publish()


# binding


@scenario
def bindings(s: Session) -> None:
    s.queue("k")  # no exchange
    s.declare()
    s.do("queue_bind", f"{s.name}-none", s.name, "k")
    s.do("exchange_bind", f"{s.name}-none", s.name, "k")
    s.do("queue_unbind", s.name, s.name, "k")  # never bound
    s.plain_exchange("-x")
    for what in ("bind", "bind", "unbind", "unbind"):
        s.do(f"exchange_{what}", f"{s.name}-x", s.name, "k")
    s.do("queue_bind", s.name, s.name, "k")
    s.publish(50)
    s.get()
    s.do("queue_delete", s.name)
    s.do("exchange_delete", s.name, if_unused=True)


@scenario
def several_bindings_are_one_message(s: Session) -> None:
    s.declare(kind="topic")
    s.queue("a.*", "a.b", "#")
    for delay in (100, None):
        s.publish(delay, key="a.b")
        s.get()
    assert s.do("queue_declare", s.name, passive=True).method.message_count == 0


@scenario
def headers(s: Session) -> None:
    s.declare(kind="headers")
    s.queue()
    s.do("queue_bind", s.name, s.name, "", {"x-match": "all", "a": 1})
    for a in (2, 1):
        for delay in (100, None):
            s.publish(delay, a=a)
    s.get(count=2)


# publishing


@scenario
def no_route(s: Session) -> None:
    s.publish(mandatory=True)  # no exchange
    s.declare()
    s.publish(mandatory=True)
    s.publish()
    s.declare("-a", arguments={"alternate-exchange": "amq.fanout"})
    s.queue()
    s.do("queue_bind", s.name, "amq.fanout")
    s.publish(mandatory=True, suffix="-a")
    s.get()


@scenario
def copies(s: Session) -> None:
    s.declare()
    s.queue("k")
    s.queue("c", suffix="-2")
    s.publish(100, CC=["c"])
    s.get()
    s.get("-2")


@scenario
def properties(s: Session) -> None:
    s.declare()
    s.queue("k")
    given = {"content_type": "a/b", "content_encoding": "gzip", "delivery_mode": 2, "priority": 7}
    given |= {"correlation_id": "c", "reply_to": "r", "expiration": "60000", "message_id": s.name}
    given |= {"timestamp": 1_700_000_000, "type": "t", "user_id": "guest", "app_id": "a"}
    mine = {"list": [1, "b", {"c": None}], "none": None, "large": 2**40}
    s.publish(200, properties=given, **mine)
    ((_, came, _),) = s.get()
    assert {name: getattr(came, name) for name in given} == given
    assert {name: came.headers[name] for name in mine} == mine
    s.publish(200, properties={"user_id": "another"})


@scenario
def copied_into_a_republish(s: Session) -> None:
    s.declare()
    s.queue("k")
    s.publish(300)
    ((_, came, body),) = s.get()
    s.do("basic_publish", s.name, "k", body, came)
    s.get()


@scenario
def tried_again_through_the_dead_letter_exchange(s: Session) -> None:
    s.declare()
    s.queue("k", **{"x-dead-letter-exchange": s.name})
    s.publish(150)
    for _ in range(3):
        until(lambda: (s.channel.queue_declare(s.name, passive=True)).method.message_count)
        method, properties, _ = s.channel.basic_get(s.name)
        s.seen.append((s.plain(method.exchange), abs(properties.headers["x-delay"])))
        s.channel.basic_reject(method.delivery_tag, requeue=False)


@scenario
def an_answer_comes_directly(s: Session) -> None:
    s.declare()
    s.queue("k")
    answers: list[bytes] = []
    direct = "amq.rabbitmq.reply-to"
    s.channel.basic_consume(direct, lambda *got: answers.append(got[3]), auto_ack=True)
    asked = pika.BasicProperties(reply_to=direct, headers={"x-delay": 100})
    s.do("basic_publish", s.name, "k", b"asked", asked)
    ((_, came, _),) = s.get()
    s.do("basic_publish", "", came.reply_to, b"answered")
    until(lambda: s.connection.process_data_events(0.05) or answers)


@pytest.fixture
def urls(
    tmp_path: Path, redis_url: str, rabbitmq_url: str, plugin_rabbitmq_url: str, namespace: str
) -> Iterator[tuple[str, str]]:
    """Of a front, and of a broker with the plugin."""
    front = Front(tmp_path, redis_url, namespace, rabbitmq_url)
    try:
        front.start()
        yield front.url, plugin_rabbitmq_url
    finally:
        front.close()


@pytest.mark.slow
def test_a_front_answers_as_the_plugin(
    urls: tuple[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.CRITICAL, "pika")

    def observed(place: tuple[str, str]) -> Any:
        url, which = place
        session = Session(url, f"n{os.urandom(5).hex()}")
        try:
            SCENARIOS[which](session)
        finally:
            if session.connection.is_open:
                session.connection.close()
        return session.seen

    began = time.monotonic()
    with ThreadPoolExecutor(6) as pool:
        front, plugin = (
            dict(
                zip(SCENARIOS, pool.map(observed, [(url, each) for each in SCENARIOS]), strict=True)
            )
            for url in urls
        )
    print(f"\n{len(SCENARIOS)} scenarios in {time.monotonic() - began:.1f} s")
    assert front == plugin
