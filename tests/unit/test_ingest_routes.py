"""Which exchanges and topics are read, where their messages go, and where they may not."""

from __future__ import annotations

import re

import pytest

from delaybridge.errors import ConfigError, MessageError
from delaybridge.ingest.reach import AllowList
from delaybridge.ingest.routes import Route, fronted, parse_route, parse_routes, topics_pattern
from delaybridge.message import Destination

KINDS = {"rabbitmq": "rabbitmq", "kafka": "kafka"}
TWO = {"eu": "rabbitmq", "us": "rabbitmq", "log": "kafka"}


@pytest.mark.parametrize(
    ("text", "kind", "source", "target"),
    [
        ("orders.delay", "rabbitmq", "orders.delay", "orders"),
        ("rabbitmq:orders.delay", "rabbitmq", "orders.delay", "orders"),
        ("later=orders", "rabbitmq", "later", "orders"),
        ("a.delay=b.delay", "rabbitmq", "a.delay", "b.delay"),
        ("kafka:orders.delay", "kafka", "orders.delay", "orders"),
        ("kafka:later=orders", "kafka", "later", "orders"),
        ("kafka:*.delay", "kafka", "*.delay", ""),
    ],
)
def test_a_route_names_source_and_target(text: str, kind: str, source: str, target: str) -> None:
    assert parse_route(text, KINDS, kind) == Route(kind, kind, source, target)


def test_a_route_names_its_broker_if_there_are_several() -> None:
    assert parse_route("eu:x.delay", TWO, "rabbitmq").broker == "eu"
    assert parse_route("x.delay", TWO, "kafka").broker == "log"
    with pytest.raises(ConfigError, match="which broker.*eu, us"):
        parse_route("x.delay", TWO, "rabbitmq")


def test_an_exchange_s_name_may_contain_a_colon() -> None:
    assert parse_route("rabbitmq:team:x.delay", KINDS, "rabbitmq").source == "team:x.delay"
    with pytest.raises(ConfigError, match="'team'.*rabbitmq:team:x.delay"):
        parse_route("team:x.delay", KINDS, "rabbitmq")


@pytest.mark.parametrize(
    ("text", "kind", "what"),
    [
        ("orders", "rabbitmq", "not accepted"),  # no target: neither .delay nor a name
        ("", "rabbitmq", "not accepted"),
        (".delay", "rabbitmq", "not accepted"),
        ("=orders", "rabbitmq", "not accepted"),
        ("orders=", "rabbitmq", "not accepted"),
        ("a.delay b.delay", "rabbitmq", "each by itself"),
        ("a.delay,b.delay", "kafka", "each by itself"),
        ('["a.delay"', "rabbitmq", "without|brackets"),
        ("a.delay=b c", "rabbitmq", "each by itself"),
        ("\udcff.delay", "rabbitmq", "printable"),
        ("\udcff.delay", "kafka", "letters, digits"),
        ("a\0.delay", "kafka", "letters, digits"),
        ("\u20ac" * 100 + ".delay", "rabbitmq", "at most 247 bytes"),
        ("x" * 300 + ".delay", "kafka", "at most 249 characters"),
        ("*a*a*a*b.delay", "kafka", r"at most 2 '\*'; write several"),
        ("amq.x.delay", "rabbitmq", "RabbitMQ's own"),
        ("x.delay=y*", "kafka", "one topic"),
        ("xx:orders.delay", "kafka", "no broker is named 'xx'; configured of kind kafka: kafka"),
        ("x.delay;type=topic", "rabbitmq", "nothing follows a ';'"),
        ("x.delay;type=topic", "kafka", "nothing follows a ';'"),
        ("kafka:x.delay", "rabbitmq", "is of kind kafka"),
        ("rabbitmq:x.delay", "kafka", "is of kind rabbitmq"),
        ("orders*", "kafka", "not accepted"),
        ("kafka:orders", "kafka", "not accepted"),
        ("kafka:*", "kafka", "not accepted"),
        ("*", "kafka", "not accepted"),
    ],
)
def test_a_bad_route_is_refused(text: str, kind: str, what: str) -> None:
    with pytest.raises(ConfigError, match=what) as caught:
        parse_route(text, KINDS, kind)
    assert ("ingest.exchanges" if kind == "rabbitmq" else "ingest.topics") in str(caught.value)


@pytest.mark.parametrize(
    ("texts", "kind", "way"),
    [
        (["orders=orders"], "rabbitmq", "orders -> orders"),
        (["a.delay=b.delay", "b.delay=a.delay"], "rabbitmq", "a.delay -> b.delay -> a.delay"),
        (["a=b", "b=c", "c=a"], "kafka", "a -> b -> c -> a"),
        (["*.delay", "orders=orders.delay"], "kafka", "orders -> orders.delay -> orders"),
        (["*.delay", "a=b.delay.delay", "b=a"], "kafka", "a -> b.delay.delay -> b.delay -> b"),
    ],
)
def test_a_loop_of_routes_is_refused(texts: list[str], kind: str, way: str) -> None:
    with pytest.raises(ConfigError, match=f"{way}.*loop"):
        parse_routes(texts, KINDS, kind)


def test_a_loop_over_two_names_of_one_server_is_refused() -> None:
    urls = {"eu": "amqp://a:b@H:5672/", "us": "amqps://h:5672?heartbeat=5"}
    with pytest.raises(ConfigError, match=r"a\.delay -> b\.delay -> a\.delay.*loop"):
        parse_routes(["eu:a.delay=b.delay", "us:b.delay=a.delay"], TWO, "rabbitmq", urls)
    urls["us"] = "amqp://h:5672/other"
    assert len(parse_routes(["eu:a=b", "us:b=a"], TWO, "rabbitmq", urls)) == 2


def test_routes_without_a_circle_are_accepted() -> None:
    assert len(parse_routes(["a.delay=b.delay", "b.delay"], KINDS, "rabbitmq")) == 2
    assert len(parse_routes(["eu:a=b", "us:b=a"], TWO, "rabbitmq")) == 2
    assert len(parse_routes(["*.delay", "x.delay.delay", "a.delay=c"], KINDS, "kafka")) == 3


def test_a_source_that_is_named_twice_is_refused() -> None:
    with pytest.raises(ConfigError, match="'rabbitmq:a.delay' is given twice"):
        parse_routes(["a.delay=b", "rabbitmq:a.delay=c"], KINDS, "rabbitmq")


def test_a_pattern_applies_to_every_broker_of_its_kind() -> None:
    brokers = TWO | {"audit": "kafka"}
    assert [str(r) for r in parse_routes(["*.delay"], brokers, "kafka")] == [
        "log:*.delay",
        "audit:*.delay",
    ]


def test_a_route_without_a_broker_of_its_kind_is_refused() -> None:
    with pytest.raises(ConfigError, match="none"):
        parse_route("x.delay", {"kafka": "kafka"}, "rabbitmq")


def test_a_pattern_gives_each_topic_its_target() -> None:
    route = parse_route("*.delay", KINDS, "kafka")
    assert route.is_pattern
    assert (route.for_topic("a.b.delay").source, route.for_topic("a.b.delay").target) == (
        "a.b.delay",
        "a.b",
    )
    assert topics_pattern("eu.*.delay") == r"^eu\..*\.delay$", "as librdkafka takes it"
    assert not parse_route("x.delay", KINDS, "kafka").is_pattern
    assert not parse_route("x*.delay", KINDS, "rabbitmq").is_pattern, "an exchange has any name"


@pytest.mark.parametrize(
    ("source", "topic", "matches"),
    [
        ("*.delay", "orders.delay", True),
        ("*.delay", "a.b.delay", True),
        ("*.delay", "orders.delayed", False),
        ("*.delay", "ordersxdelay", False),
        ("eu-*.delay", "eu-orders.delay", True),
        ("eu-*.delay", "us-eu-orders.delay", False),
    ],
)
def test_a_pattern_matches_whole_topic_names(source: str, topic: str, matches: bool) -> None:
    assert bool(re.match(topics_pattern(source), topic)) is matches


def check(allowed: list[str], destination: Destination, route: Route | None = None) -> str:
    """The code of the refusal, empty if it is allowed."""
    try:
        AllowList(allowed).check(
            destination, route or Route("rabbitmq", "rabbitmq", "x.delay", "x")
        )
    except MessageError as exc:
        return exc.code
    return ""


def test_a_route_s_own_target_is_always_allowed() -> None:
    assert check([], Destination("rabbitmq", "rabbitmq", "x", "any.key")) == ""


@pytest.mark.parametrize(
    ("allowed", "address", "broker", "code"),
    [
        ([], "audit", "rabbitmq", "destination_not_allowed"),
        (["rabbitmq:audit"], "audit", "rabbitmq", ""),
        (["rabbitmq:audit"], "audit2", "rabbitmq", "destination_not_allowed"),
        (["rabbitmq:audit*"], "audit2", "rabbitmq", ""),
        (["rabbitmq:*"], "audit", "eu", "destination_not_allowed"),
        (["*"], "audit", "eu", ""),
        (["eu:x"], "x", "eu", ""),
        ([], "x", "eu", "destination_not_allowed"),  # the same name at another broker
    ],
)
def test_a_header_may_name_only_destinations_that_the_settings_allow(
    allowed: list[str], address: str, broker: str, code: str
) -> None:
    assert check(allowed, Destination(broker, "rabbitmq", address, "some/key")) == code


def test_a_message_stays_with_its_kind_of_broker() -> None:
    # Its headers are AMQP's, which Kafka cannot carry.
    assert check(["*"], Destination("kafka", "kafka", "topic")) == "destination_not_allowed"


def test_a_queue_is_allowed_only_if_the_settings_name_it() -> None:
    queue = Destination("rabbitmq", "rabbitmq", "", "some-queue")
    assert check([], queue) == "destination_not_allowed"
    assert check([queue.label], queue) == ""


def test_all_that_belongs_to_a_fronted_exchange_is_named_after_its_intake() -> None:
    route = fronted("shop", "later", ".due")
    assert route == Route("shop", "rabbitmq", "later", "later.due", "later.due.intake")
    assert (str(route), route.queue, route.is_fronted) == ("shop:later", "later.due.intake", True)
    plain = route._replace(intake="")
    assert (plain.queue, plain.is_fronted) == ("later", False)


def test_a_fronted_exchange_has_a_name_that_leaves_room_for_those_of_its_queues() -> None:
    assert fronted("b", "d" * 236, ".due").is_fronted
    for name, suffix in (("d" * 237, ".due"), ("\u20ac" * 79, ".due"), ("d", "")):
        with pytest.raises(ConfigError):
            fronted("b", name, suffix)
