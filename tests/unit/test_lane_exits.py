"""Lanes: every exit of a copy, by how its publish ended or why there was none."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from delaybridge import events
from delaybridge.message import Record
from delaybridge.publish import CONFIRMED, Outcome
from tests.rigs.board import LAST_PROBE_MS, MAX_ATTEMPTS, NOW_MS, PAIRS, TABLE, Board
from tests.rigs.outcomes import (
    CLOSED_CHANNEL,
    CONNECTION_LOST,
    NACK,
    NO_EXCHANGE,
    NOT_CONNECTED,
    UNROUTABLE,
)

# how publishes end


def test_confirmed_is_settled(board: Board) -> None:
    sent = board.send(10)
    board.answer(sent, CONFIRMED, NOW_MS + 3)
    assert board.told() == {"settle": 10}
    assert board.heard(events.Published) == [
        events.Published(
            destination="a:q",
            messages=10,
            late_ms=3,
            late_sum_ms=30,
            lateness={2: 10},
            confirm_ms=[3],
            copies=sent,
        )
    ]


def test_the_reported_lateness_is_that_of_the_latest_copy(board: Board) -> None:
    sent = board.send(1, late_ms=2) + board.send(1, late_ms=700) + board.send(1, late_ms=1)
    board.answer(sent, CONFIRMED, NOW_MS + 3)
    assert [event.late_ms for event in board.heard(events.Published)] == [703]


@pytest.mark.parametrize("outcome", [NACK, CLOSED_CHANNEL, CONNECTION_LOST], ids=str)
def test_an_unknown_outcome_is_tried_again_as_maybe_delivered_whatever_the_fault(
    board: Board, outcome: Outcome
) -> None:
    sent = board.send(3)
    board.answer(sent, outcome)
    (retry,) = board.session.exits.take_report().commands
    assert retry.name == "retry"
    assert list(retry.args[6::6]) == [1000] * 3
    assert list(retry.args[7::6]) == [1] * 3
    assert list(retry.args[8::6]) == [f"a:q\n{outcome.reason}"] * 3
    assert sum(event.messages for event in board.heard(events.Retried)) == 3


def test_a_certainly_refused_message_is_tried_again_and_not_marked_as_maybe_delivered(
    board: Board,
) -> None:
    board.answer(board.send(1), UNROUTABLE)
    (retry,) = board.session.exits.take_report().commands
    assert list(retry.args[6:8]) == [1000, 0]


@pytest.mark.parametrize("outcome", [NOT_CONNECTED, NO_EXCHANGE], ids=str)
def test_a_message_that_was_never_written_is_parked_without_an_attempt(
    board: Board, outcome: Outcome
) -> None:
    board.answer(board.send(3), outcome)
    assert board.told() == {"park": 3}
    assert board.heard(events.Retried) == []


def test_the_wait_doubles_with_each_attempt(board: Board) -> None:
    for failures in range(MAX_ATTEMPTS - 1):
        board.answer(board.send(1, failures=failures), NACK)
        assert board.session.exits.take_report().back_off_ms == 1000 * 2**failures


@pytest.mark.parametrize(("asked_ms", "wait_ms"), [(30_000, 30_000), (10, 1000)])
def test_a_receiver_may_ask_for_a_longer_wait(board: Board, asked_ms: int, wait_ms: int) -> None:
    board.answer(board.send(1), replace(NACK, wait_ms=asked_ms))
    assert board.session.exits.take_report().back_off_ms == wait_ms


@pytest.mark.parametrize(("outcome", "maybe"), [(UNROUTABLE, 0), (NACK, 1)], ids=str)
def test_the_last_attempt_buries_with_the_last_error(
    board: Board, outcome: Outcome, maybe: int
) -> None:
    (copy,) = board.send(1, failures=MAX_ATTEMPTS - 1)
    board.answer([copy], outcome)
    (bury,) = board.session.exits.take_report().commands
    assert (bury.name, list(bury.args[3:])) == ("bury", [copy.id, 11, 1, maybe, outcome.reason])
    assert [event.reason for event in board.heard(events.Buried)] == [outcome.reason]


@pytest.mark.parametrize("outcome", [UNROUTABLE, NACK, NOT_CONNECTED, NO_EXCHANGE], ids=str)
def test_at_most_once_is_dropped_whatever_went_wrong(board: Board, outcome: Outcome) -> None:
    copies = board.send(2, at_most_once=True)
    board.session.copies = 2
    board.answer(copies, outcome)
    assert board.session.copies == 0
    assert board.told() == {}
    assert sum(event.messages for event in board.heard(events.Dropped)) == 2


def test_at_most_once_is_not_settled_again(board: Board) -> None:
    copies = board.send(2, at_most_once=True)
    board.session.copies = 2
    board.answer(copies, CONFIRMED)
    assert board.session.copies == 0
    assert board.told() == {}


# exits without a publish


def test_a_copy_later_than_its_ttl_is_buried_as_expired(board: Board) -> None:
    assert board.pass_(board.copy(ttl_ms=100, late_ms=100)) == "go"
    assert board.pass_(board.copy(ttl_ms=100, late_ms=101)) == "leave"
    (bury,) = board.session.exits.take_report().commands
    counted, maybe, reason = bury.args[5:]
    assert (counted, maybe, str(reason).partition(":")[0]) == (0, 0, "expired")
    assert "101 ms" in str(reason) and "100 ms" in str(reason)


def test_a_copy_that_ended_its_workers_too_often_is_buried(board: Board) -> None:
    assert board.pass_(board.copy(failures=MAX_ATTEMPTS)) == "leave"
    (bury,) = board.session.exits.take_report().commands
    assert bury.args[7].startswith("used_up")


@pytest.mark.parametrize("text", ["a:", "", ":", "elsewhere:", ":q", "q"])
def test_an_unreadable_destination_is_tried_again_and_then_buried(board: Board, text: str) -> None:
    assert board.pass_(board.copy(text)) == "leave"
    assert board.told() == {"retry": 1}
    assert board.pass_(board.copy(text, failures=MAX_ATTEMPTS - 1)) == "leave"
    (bury,) = board.session.exits.take_report().commands
    assert bury.args[7].startswith("bad_destination")


@pytest.mark.parametrize("failures", [0, MAX_ATTEMPTS - 1])
def test_messages_for_a_broker_that_is_not_configured_here_stay_parked(
    board: Board, failures: int
) -> None:
    assert board.pass_(board.copy("elsewhere:q", failures=failures)) == "leave"
    assert board.pass_(board.copy("elsewhere:other/key")) == "leave"
    assert board.pass_(board.copy("b:q")) == "go"
    assert board.told() == {"park": 2}
    assert board.recover(NOW_MS + 10 * LAST_PROBE_MS) == []
    (opened,) = [event for event in board.events if isinstance(event, events.CircuitOpened)]
    assert opened.destination == "elsewhere:"
    assert opened.reason.startswith("no_broker: ") and "'elsewhere'" in opened.reason


@pytest.mark.parametrize(
    ("kind", "record", "fits"),
    [
        ("redis", {"headers": PAIRS}, True),
        ("redis", {"headers": b""}, False),
        ("redis", {"headers": TABLE}, False),
        ("rabbitmq", {"headers": b"", "properties": (0, b"", b"")}, True),
        ("rabbitmq", {"headers": TABLE}, True),
        ("rabbitmq", {"headers": PAIRS}, False),
        ("rabbitmq", {"headers": ()}, False),
        ("kombu", {"headers": b"", "properties": b""}, True),
        ("kombu", {"headers": TABLE, "properties": b""}, True),
        ("kombu", {"headers": b""}, False),  # RabbitMQ's: the destination has a slash
        ("kombu", {"headers": b"", "properties": (0, b"", b"")}, False),
        ("kombu", {"headers": PAIRS}, False),
    ],
)
@pytest.mark.parametrize("once", [False, True])
def test_a_record_of_another_kind_of_broker_stays_parked(
    kind: str, record: dict[str, Any], fits: bool, once: bool
) -> None:
    board = Board(kind=kind)
    copy = board.copy("a:x/q", at_most_once=once, **record)
    assert copy.is_plain is (fits and not once and kind != "kombu")
    assert board.pass_(copy) == ("go" if fits else "leave")
    if not fits:
        assert board.told() == {"park": 1}
        assert board.recover(NOW_MS + 10 * LAST_PROBE_MS) == []
        assert board.pass_(board.copy("b:x", headers=())) == "go"


@pytest.mark.parametrize(
    ("kind", "destination", "record"),
    [
        ("rabbitmq", "a:topic", {"headers": ()}),
        ("rabbitmq", "a:queue", {"headers": b"", "properties": b""}),
        ("kafka", "a:x/q", {"headers": TABLE}),
    ],
)
def test_a_destination_of_another_kind_of_broker_is_parked_too(
    kind: str, destination: str, record: dict[str, Any]
) -> None:
    board = Board(kind=kind)
    assert board.pass_(board.copy(destination, **record)) == "leave"
    assert board.told() == {"park": 1}
    assert "another kind of broker" in dict(board.lanes.parking.blocked())["a: of another kind"]


def test_a_record_with_a_table_of_properties_suits_kombu_and_not_rabbitmq(board: Board) -> None:
    record = Record("a:x/q", b"", TABLE, b"")
    assert record.suits("kombu")
    assert not record.suits("rabbitmq")  # its publisher refuses the record as unencodable


def test_while_a_broker_is_unavailable_its_messages_are_parked_and_the_other_s_are_not(
    board: Board,
) -> None:
    board.a.unavailable = "blocked: low on memory"
    assert board.pass_(board.copy()) == "leave"
    assert board.pass_(board.copy("b:q")) == "go"
    assert board.told() == {"park": 1}
    assert board.recover() == []
    board.a.unavailable = None
    assert board.recover() == ["m1"]


def test_a_worker_says_whose_messages_it_parks_and_why(board: Board) -> None:
    assert not dict(board.lanes.parking.blocked())
    board.answer(board.send(1), NO_EXCHANGE)
    board.pass_(board.copy("elsewhere:q"))
    board.b.unavailable = "not_connected: " + "x" * 1000
    board.pass_(board.copy("b:q"))
    parked = dict(board.lanes.parking.blocked())
    assert parked.keys() == {"a:q", "elsewhere:"}
    assert parked["a:q"] == NO_EXCHANGE.reason
    assert parked["elsewhere:"].startswith("no_broker: ")
