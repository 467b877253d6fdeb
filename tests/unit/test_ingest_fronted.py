"""The list of the exchanges that fronts have made, as ingest reads it."""

from __future__ import annotations

from delaybridge.ingest.fronted import enlist, listed, unlist
from delaybridge.ingest.owner import Owner
from delaybridge.ingest.rabbitmq.intake import in_turn
from delaybridge.ingest.routes import fronted

ROUTE = fronted("shop", "orders:new", ".due")


def test_what_is_enlisted_is_read_again_and_what_cannot_be_read_is_left_out() -> None:
    written, woken = enlist("ns", ROUTE)
    name, field, text = (str(each).encode() for each in written.args)
    odd = [b"shop:a", b"[]", b"shop:b", b'{"target": 1, "intake": "i"}', b"shop", text, b"s:", text]
    assert listed("ns").parse([field, text, *odd, b"shop:c", b"{", b"\xff:x", text]) == [ROUTE]
    assert (name, name) == (b"{ns}:fronted", str(woken.args[0]).encode())
    assert unlist("ns", ROUTE).args == ("{ns}:fronted", "shop:orders:new")


def test_what_a_refusal_says_is_to_be_run_reads_exchanges_of_fronts() -> None:
    said = Owner("ns@1").refusal(ROUTE, "ns@0")
    command = "delaybridge ingest rabbitmq --front --take-over ns@0"
    assert said.endswith(f"run once, until it reads: {command}")


def test_of_many_exchanges_each_has_its_turn() -> None:
    assert list(in_turn(range(49), 7)) == [*range(49)]
    looked = [each for turn in range(21) for each in in_turn(range(1000), turn)]
    assert sorted(looked) == [*range(1000)]
