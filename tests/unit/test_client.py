"""The values that a client returns, and how it spreads messages."""

from __future__ import annotations

import copy
import inspect
import json
import pickle

import pytest

from delaybridge import Answer, AsyncClient, Client, ConfigError, Receipt
from delaybridge.client.annexes import annex
from delaybridge.client.spreading import Spreading
from delaybridge.client.surface import TABLE


def test_a_receipt_can_be_copied_and_pickled() -> None:
    receipt = Receipt(Answer.CREATED, "order-42", 1_900_000_000_000, 3)
    for again in (copy.copy(receipt), copy.deepcopy(receipt), pickle.loads(pickle.dumps(receipt))):
        assert again == "created"
        assert repr(again) == repr(receipt)


def test_a_receipt_is_the_text_of_its_answer_however_it_becomes_text() -> None:
    receipt = Receipt(Answer.CREATED, "order-42", 1_900_000_000_000, 3)
    texts = [str(receipt), f"{receipt}", f"{receipt:>7}", "%s" % receipt, "".join([receipt])]  # noqa: UP031
    texts += [json.loads(json.dumps(receipt)), receipt + "", str(receipt.answer)]
    assert receipt == "created"
    assert texts == ["created"] * len(texts)
    assert type(str(receipt)) is str
    assert "order-42" in repr(receipt)


def test_messages_are_spread_evenly_and_those_not_counted_come_last() -> None:
    spreading = Spreading(1000, {None: 4})
    assert spreading.later_ms(["a", "b"]) == [0, 250]
    assert spreading.later_ms(["c", "d", "e"]) == [500, 750, 750]


def test_both_clients_show_the_signature_and_the_docstring_of_a_row() -> None:
    for name, row in TABLE.items():
        part, _, verb = name.rpartition(".")
        for client in (Client(), AsyncClient()):
            method = getattr(getattr(client, part) if part else client, verb)
            assert method.__doc__ == row.call.__doc__ and method.__doc__
            assert inspect.iscoroutinefunction(method) is isinstance(client, AsyncClient)
    shown = "(self, id: 'str', *, key: 'Key' = None) -> 'Answer'"
    assert str(inspect.signature(Client.cancel)) == shown
    assert str(inspect.signature(AsyncClient.cancel)) == shown
    assert (Client.cancel.__module__, Client.cancel.__qualname__) == (
        Client.__module__,
        "Client.cancel",
    )


def test_a_subclass_of_an_application_keeps_the_methods_that_it_overrides() -> None:
    class Recording(Client):
        def cancel(self, id: str, *, key: bytes | str | None = None) -> Answer:
            return Answer.UNKNOWN

    class Further(Recording):
        pass

    assert Further().cancel("a") is Answer.UNKNOWN  # without a Redis
    assert Further.reschedule.__doc__ == Client.reschedule.__doc__


def test_a_client_and_its_parts_say_what_they_are() -> None:
    client = Client(namespace="shop")
    assert repr(client) == "Client(namespace='shop')"
    assert repr(client.dead) == "DeadMessages(namespace='shop')"
    assert {"cancel", "dead", "destinations", "topics", "recurring", "stats"} <= {*dir(client)}


def test_brokers_that_are_no_mapping_are_refused_with_an_example() -> None:
    with pytest.raises(ConfigError, match='brokers: give names and URLs, as {"rabbitmq"'):
        Client("redis://h", brokers="amqp://h")  # type: ignore[arg-type]


def test_an_annex_that_is_missing_is_named() -> None:
    with pytest.raises(ConfigError, match="needs the package delaybridge.nowhere"):
        annex("nowhere.stats")
