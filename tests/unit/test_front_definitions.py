"""Definitions of RabbitMQ with the plugin become definitions without it."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import pytest

from delaybridge.errors import ConfigError
from delaybridge.front.definitions import Edit, convert


def exported(**sections: list[dict[str, Any]]) -> dict[str, Any]:
    """What 3.10 exports: rows of vhost shop with a delayed exchange, and one beside it."""
    arguments = {"x-delayed-type": "topic", "alternate-exchange": "lost"}
    last = {"vhost": "shop", "durable": True, "auto_delete": False}
    queue = {"destination": "timeouts", "destination_type": "queue", "arguments": {}}
    rows = {
        "users": [],
        "exchanges": [
            {"name": "orders", "type": "x-delayed-message", "arguments": arguments, **last},
            {"name": "lost", "type": "fanout", "arguments": {}, **last},
        ],
        "queues": [{"name": "timeouts", "arguments": {}, **last}],
        "bindings": [
            {"source": "orders", "vhost": "shop", "routing_key": "t.#", **queue},
            {"source": "lost", "vhost": "shop", "routing_key": "", **queue},
        ],
        "permissions": [],
        "policies": [],
    }
    return {"rabbit_version": "3.10.8", **rows, **sections}


def left(edits: list[Edit]) -> list[str]:
    return [each.what for each in edits if not each.is_done]


def test_an_exchange_becomes_three_and_its_bindings_are_those_of_the_one_behind() -> None:
    before = exported()
    made, changes = convert(before, ".due")
    assert before == exported(), "the caller's is as it was"
    exchanges = {row["name"]: row for row in made["exchanges"]}
    assert exchanges["orders"]["type"] == "headers"
    assert exchanges["orders"]["arguments"] == {"alternate-exchange": "orders.due"}
    assert exchanges["orders.due"]["type"] == "topic"
    assert exchanges["orders.due"]["arguments"] == {"alternate-exchange": "lost"}
    assert exchanges["orders.due.intake.expired"]["internal"] is True
    assert {row["name"] for row in made["queues"]} == {
        "timeouts", "orders.due.intake", "orders.due.intake.expired",
    }  # fmt: skip
    assert {(row["source"], row["destination"]) for row in made["bindings"]} == {
        ("orders.due", "timeouts"),
        ("lost", "timeouts"),
        ("orders", "orders.due.intake"),
        ("orders.due.intake.expired", "orders.due.intake.expired"),
    }
    assert {row["vhost"] for row in (*made["exchanges"], *made["queues"], *made["bindings"])} == {
        "shop"
    }
    assert [each.what for each in changes] == [
        "exchange orders", "binding orders -> queue timeouts 't.#'",
    ]  # fmt: skip
    assert convert(made, ".due") == (made, []), "once is enough"


def test_an_export_of_one_vhost_has_no_vhosts_and_no_rights() -> None:
    document = exported()
    del document["permissions"]
    for rows in document.values():
        for row in rows if isinstance(rows, list) else ():
            del row["vhost"]
    made, changes = convert(document, "-later")
    assert {"orders", "orders-later"} <= {row["name"] for row in made["exchanges"]}
    assert not [row for row in made["exchanges"] if "vhost" in row]
    assert left(changes) == []


@pytest.mark.parametrize(
    ("pattern", "wanted"),
    [
        ("^orders$", r"(?:^orders$)|^(?:orders\.due)$"),
        ("^orders", "^orders"),
        (".*", ".*"),
        ("", ""),
        ("^other$", "^other$"),
    ],
)
def test_who_could_declare_and_bind_still_can(pattern: str, wanted: str) -> None:
    rights = {"vhost": "shop", "configure": pattern, "write": pattern, "read": pattern}
    made, changes = convert(exported(permissions=[{"user": "web", **rights}]), ".due")
    (row,) = made["permissions"]
    assert (row["configure"], row["write"], row["read"]) == (wanted, pattern, wanted)
    assert [each.what for each in changes].count("right of web") == 2 * (pattern != wanted)


def policy(name: str, pattern: str, priority: int = 0, **settings: Any) -> dict[str, Any]:
    about = {"vhost": "shop", "name": name, "pattern": pattern, "priority": priority}
    return {**about, "definition": {key.replace("_", "-"): v for key, v in settings.items()}}


@pytest.mark.parametrize(
    ("policies", "widened", "by_hand"),
    [
        ([policy("lost", "^orders$", alternate_exchange="lost")], ["lost"], []),
        ([policy("lost", "^orders", alternate_exchange="lost")], [], []),
        ([policy("lost", "^other$", alternate_exchange="lost")], [], []),
        (  # which one counts goes on to depend on their priorities
            [policy("lost", "^orders$", alternate_exchange="lost"), policy("x", "^or.*s$", 1, a=1)],
            ["lost", "x"],
            [],
        ),
        ([policy("up", "^orders$", federation_upstream_set="all")], ["up"], ["up"]),
        ([policy("ttl", ".*", message_ttl=5, max_length=7)], [], ["ttl"]),
        ([policy("long", ".*", max_length=7)], [], []),
    ],
)
def test_policies_go_on_to_count(
    policies: list[dict[str, Any]], widened: list[str], by_hand: list[str]
) -> None:
    made, changes = convert(exported(policies=deepcopy(policies)), ".due")
    pairs = zip(policies, made["policies"], strict=True)
    assert [old["name"] for old, new in pairs if old["pattern"] != new["pattern"]] == widened
    assert [what.removeprefix("policy ") for what in left(changes)] == by_hand


def test_what_names_the_exchange_elsewhere_is_shown() -> None:
    shovel = {
        "component": "shovel",
        "vhost": "shop",
        "name": "s",
        "value": {"src-exchange": "orders"},
    }
    topic = {"user": "web", "vhost": "shop", "exchange": "orders", "write": "a", "read": "b"}
    document = exported(parameters=[shovel], topic_permissions=[topic])
    made, changes = convert(document, ".due")
    assert left(changes) == ["topic right of web", "shovel s"]
    assert made["parameters"] == document["parameters"]


def test_bindings_that_would_end_an_import_are_not_in_the_result() -> None:
    """Of an internal exchange, which no export has; of ingest, whose headers have no value."""
    to = {"vhost": "shop", "destination": "timeouts", "destination_type": "queue"}
    inside = {**to, "source": "inside", "routing_key": "", "arguments": {}}
    expired = {**inside, "source": "x.expired", "destination": "x.expired"}
    ours = {**to, "source": "lost", "routing_key": "", "arguments": {"x-delay": "undefined"}}
    made, changes = convert(exported(bindings=[inside, expired, ours]), ".due")
    assert [
        row for row in made["bindings"] if row["source"] in ("inside", "x.expired", "lost")
    ] == [{**ours, "arguments": {}}]
    assert left(changes) == ["binding inside -> queue timeouts ''"]


@pytest.mark.parametrize(
    ("sections", "text"),
    [
        ({"exchanges": {}}, "exchanges.*: not as RabbitMQ exports it; give a file of"),
        ({"queues": [{"vhost": "shop"}]}, r"queues\[0\].name: not as"),
        ({"queues": [{"name": "q", "vhost": ["shop"]}]}, r"queues\[0\]: not as"),
        ({"bindings": ["x"]}, r"bindings\[0\]: not as"),
        ({"policies": None}, r"policies.*: not as"),
        ({"policies": [policy("p", ".*") | {"definition": 5}]}, r"policies\[0\].*: not as"),
        ({"queues": [{"name": "orders.due.intake", "vhost": "shop"}]}, "exists already.* --suffix"),
        ({"policies": [policy("p", "(", alternate_exchange="x")]}, "'\\(' is not understood"),
    ],
)
def test_what_cannot_be_converted_is_named(sections: dict[str, Any], text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        convert(exported(**sections), ".due")


@pytest.mark.parametrize("behind", [None, "", "x-delayed-message", 5])
def test_an_exchange_without_a_real_type_is_named(behind: object) -> None:
    document = exported()
    document["exchanges"][0]["arguments"] = {"x-delayed-type": behind}
    with pytest.raises(
        ConfigError, match=r"exchanges\[0\].arguments.x-delayed-type: name the type"
    ):
        convert(document, ".due")


def test_a_name_that_is_too_long_is_named() -> None:
    document = exported(bindings=[])
    document["exchanges"][0]["name"] = "x" * 250
    with pytest.raises(ConfigError, match=r"exchanges\[0\].name: .*at most"):
        convert(document, ".due")
