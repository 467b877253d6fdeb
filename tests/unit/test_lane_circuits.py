"""Lanes: parked messages come back in order, and circuits are probed."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from delaybridge import events
from delaybridge.publish import CONFIRMED, Outcome
from delaybridge.scan.lanes.lane import Copy
from delaybridge.store.messages.destinations_of_state import BoundSlice
from tests.rigs.board import LAST_PROBE_MS, NOW_MS, STALLED_MS, WINDOW, Board
from tests.rigs.bucket_session import new_session
from tests.rigs.outcomes import (
    CLOSED_CHANNEL,
    NACK,
    NO_EXCHANGE,
    NOT_CONNECTED,
    TIMED_OUT,
    UNENCODABLE,
    UNROUTABLE,
)

FIRST_PROBE_MS = 1300  # the first wait of a circuit, with its jitter
PROBES = 5

# coming back in order


def ids(copies: Sequence[Copy]) -> list[str]:
    return [copy.id for copy in copies]


def test_copies_later_than_the_parked_ones_of_their_lane_and_bucket_are_parked_behind_them(
    board: Board,
) -> None:
    earlier = board.copy()
    board.parked()
    assert board.pass_(board.copy()) == "leave"
    assert board.pass_(earlier) == "go"
    assert board.pass_(board.copy("a:other")) == "go", "another lane"
    assert board.pass_(board.copy(session=new_session())) == "go", "another bucket"


def test_copies_on_the_wheel_go_back_with_the_parked_ones_so_that_one_claim_finds_them_in_order(
    board: Board,
) -> None:
    copies = board.parked()
    waiting, *others = board.copy(), board.copy("a:other"), board.copy("b:q")
    others.append(board.copy(session=new_session()))
    board.wheel = [waiting, *others]
    assert sorted(board.recover()) == sorted(ids([*copies, waiting]))
    assert board.wheel == others
    assert board.told() == {"park": len(copies) + 1}


def test_every_new_copy_is_parked_until_all_messages_are_back_in_due_and_none_after(
    board: Board,
) -> None:
    copies = board.parked()
    assert board.recover() == ids(copies)
    late = board.copy()
    assert board.pass_(late) == "leave"
    board.come_back()
    assert not board.session.may_claim, "one more is yet to come back"
    assert board.recover() == [late.id]
    board.come_back()
    assert board.session.may_claim
    assert [board.pass_(copy) for copy in [*copies, late]] == ["go"] * 21
    assert list(board.lanes.admission.next_looks_ms(NOW_MS, waiting=False)) == []


def test_if_a_broker_fails_again_its_returned_messages_are_parked_again(board: Board) -> None:
    copies = board.parked()
    board.recover()
    board.a.unavailable = "not_connected"
    board.come_back()
    assert board.session.may_claim, "others of the bucket go on"
    assert {board.pass_(copy) for copy in copies} == {"leave"}
    assert board.recover() == []
    board.a.unavailable = None
    assert sorted(board.recover()) == sorted(ids(copies))


def test_each_lane_of_a_bucket_brings_its_messages_back_when_it_can(board: Board) -> None:
    mine = board.parked(3)
    board.b.unavailable = "not_connected"
    other = board.copy("b:q")
    board.pass_(other)
    assert board.recover() == ids(mine)
    board.come_back()
    board.b.unavailable = None
    assert board.recover() == [other.id]


# circuits


def opened(board: Board, count: int = 20) -> list[Copy]:
    """Copies that a lane has parked since its circuit opened."""
    copies = board.send(1)
    board.answer(copies, NO_EXCHANGE)
    copies += [board.copy() for _ in range(count - 1)]
    assert {board.pass_(copy) for copy in copies[1:]} == {"leave"}
    assert board.told() == {"park": count}
    return copies


def probed(board: Board, now_ms: int, count: int = 1) -> list[Copy]:
    """Copies of which the first ones are sent as probes."""
    copies = opened(board)
    board.recover(now_ms)
    board.come_back(now_ms)
    assert {board.pass_(copy, now_ms) for copy in copies[:count]} == {"go"}
    board.lanes.dispatch.publish(now_ms)
    return copies


def test_a_destination_that_refuses_opens_its_circuit_once_and_parks_later_copies(
    board: Board,
) -> None:
    sent = board.send(10)
    board.answer(sent[:5], NO_EXCHANGE)
    board.answer(sent[5:], CLOSED_CHANNEL)
    assert len(board.heard(events.CircuitOpened)) == 1
    assert board.pass_(board.copy()) == "leave"
    assert board.pass_(board.copy("a:other")) == "go", "another exchange of the same broker"


def test_when_it_is_time_a_handful_of_messages_probes_the_circuit(board: Board) -> None:
    copies = opened(board)
    probe_ms = min(board.lanes.admission.next_looks_ms(NOW_MS, waiting=False))
    assert NOW_MS < probe_ms <= NOW_MS + FIRST_PROBE_MS
    assert board.recover(probe_ms - 1) == []
    assert board.recover(probe_ms) == ids(copies[:PROBES])
    board.come_back(probe_ms)
    assert board.pass_(board.copy(), probe_ms) == "leave", "the probes are earlier"
    passed = [board.pass_(copy, probe_ms) for copy in copies]
    assert passed == ["go"] * PROBES + ["leave"] * 15


def test_a_lane_without_parked_messages_is_probed_by_the_next_copies(board: Board) -> None:
    board.answer(board.send(1, at_most_once=True), NO_EXCHANGE)
    assert board.recover(NOW_MS + FIRST_PROBE_MS) == []
    passed = [board.pass_(board.copy(), NOW_MS + FIRST_PROBE_MS) for _ in range(2 * PROBES)]
    assert passed == ["go"] * PROBES + ["leave"] * PROBES


@pytest.mark.parametrize("answer", [CONFIRMED, UNROUTABLE, NACK])
def test_a_probe_that_is_answered_closes_the_circuit_and_brings_all_back_in_order(
    board: Board, answer: Outcome
) -> None:
    now_ms = NOW_MS + FIRST_PROBE_MS
    copies = probed(board, now_ms)
    board.answer(copies[:1], answer, now_ms)
    assert len(board.heard(events.CircuitClosed)) == 1
    assert sorted(board.recover(now_ms)) == sorted(ids(copies[PROBES:]))
    board.come_back(now_ms)
    assert {board.pass_(copy, now_ms) for copy in [*copies[1:], board.copy()]} == {"go"}


@pytest.mark.parametrize("outcome", [UNENCODABLE, TIMED_OUT])
def test_a_probe_that_the_destination_did_not_answer_closes_nothing(
    board: Board, outcome: Outcome
) -> None:
    now_ms = NOW_MS + FIRST_PROBE_MS
    board.answer(probed(board, now_ms)[:1], outcome, now_ms)
    assert board.heard(events.CircuitClosed) == board.recover(now_ms) == []


def test_a_probe_that_is_answered_closes_nothing_while_another_may_fail(board: Board) -> None:
    """As beside a gateway, which refuses at once what the receiver behind it would not have."""
    now_ms = NOW_MS + FIRST_PROBE_MS
    sent = probed(board, now_ms, 2)
    board.answer(sent[:1], UNROUTABLE, now_ms)
    assert board.heard(events.CircuitClosed) == []
    board.answer(sent[1:2], UNROUTABLE, now_ms)
    assert len(board.heard(events.CircuitClosed)) == 1


def test_a_message_that_was_refused_after_the_circuit_opened_closes_nothing(board: Board) -> None:
    sent = board.send(2)
    board.answer(sent[:1], NO_EXCHANGE)
    board.answer(sent[1:], UNROUTABLE)
    assert board.pass_(board.copy()) == "leave", "it went before the failure"


def test_a_failed_probe_opens_the_circuit_again_for_longer(board: Board) -> None:
    copies = opened(board)
    now_ms = NOW_MS
    waits_ms = []
    for _ in range(4):
        probe_ms = min(board.lanes.admission.next_looks_ms(now_ms, waiting=False))
        waits_ms.append(probe_ms - now_ms)
        now_ms = probe_ms
        assert board.recover(now_ms) == ids(copies[:PROBES]), "the same: they are the earliest"
        board.come_back(now_ms)
        assert board.pass_(copies[0], now_ms) == "go"
        board.lanes.dispatch.publish(now_ms)
        board.answer(copies[:1], NO_EXCHANGE, now_ms)
        assert {board.pass_(copy, now_ms) for copy in copies[1:PROBES]} == {"leave"}
    assert all(later > 1.2 * wait for wait, later in zip(waits_ms, waits_ms[1:], strict=False))


def test_if_the_outcome_of_a_probe_never_comes_others_follow(board: Board) -> None:
    copies = opened(board)
    now_ms = NOW_MS
    for first in range(0, 20, PROBES):
        now_ms = min(board.lanes.admission.next_looks_ms(now_ms, waiting=False))
        assert set(board.recover(now_ms)) == set(ids(copies[first : first + PROBES]))
        board.come_back(now_ms)


def test_a_circuit_stays_open_while_its_broker_is_unavailable(board: Board) -> None:
    opened(board)
    board.a.unavailable = "not_connected"
    assert board.recover(NOW_MS + LAST_PROBE_MS) == []


def test_messages_parked_by_a_lost_session_are_brought_back_by_the_next_one(board: Board) -> None:
    opened(board)
    lost, board.session = board.session, new_session()
    lost.alive = False
    board.lanes.returning.session_over(lost)
    assert board.recover(NOW_MS + LAST_PROBE_MS) == []
    assert lost.exits.take_unpark() == []


def test_a_copy_that_ends_after_its_session_was_lost_is_not_brought_back_here(board: Board) -> None:
    sent = board.send(3)
    board.session.end()
    board.lanes.returning.session_over(board.session)
    board.answer(sent, NOT_CONNECTED)
    assert board.recover() == []
    assert not board.session.exits.is_unparking, "it would never end"


def test_a_session_lost_while_its_parked_messages_come_back_is_forgotten(board: Board) -> None:
    board.parked()
    board.recover()
    lost, board.session = board.session, new_session()
    lost.alive = False
    board.lanes.returning.session_over(lost)
    assert board.recover() == []
    assert board.pass_(board.copy()) == "go"


def test_each_session_gets_back_its_own_parked_messages(board: Board) -> None:
    opened(board, 3)
    other = new_session()
    board.pass_(board.copy(session=other))
    assert sorted(board.recover(NOW_MS + FIRST_PROBE_MS)) == ["m1", "m2", "m3"]
    (others,) = other.exits.take_unpark()
    assert list(others.args[3:]) == ["m4"]


def test_a_draining_session_does_not_stop_others_from_bringing_back_messages_bit_by_bit(
    board: Board,
) -> None:
    leaving, now_ms = new_session(), NOW_MS + STALLED_MS
    sent = board.send(WINDOW)
    first = board.copy(session=leaving)
    ours = [board.copy() for _ in range(2 * WINDOW)]
    assert {board.pass_(copy, now_ms) for copy in (first, *ours)} == {"leave"}, "parked"
    leaving.exits.drain()
    board.answer(sent, CONFIRMED, now_ms)
    back: list[str] = []
    board.session.answered(board.session.exits.take_report())
    while ids := board.recover(now_ms):
        back += ids
        board.session.unparked(0)
        board.session.next_score = now_ms  # claimed from
    assert back == [copy.id for copy in ours]


def test_a_circuit_is_probed_though_no_id_is_known(
    board: Board, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("delaybridge.scan.lanes.parked._KNOWN", 0)
    (copy, *_) = opened(board)
    assert board.recover() == []
    left = [(copy.score, copy.id.encode(), "a:q")]
    board.lanes.returning.add_page(board.next_page(), BoundSlice(left, more=True), NOW_MS)
    assert board.recover(NOW_MS + FIRST_PROBE_MS) == [copy.id]


def test_of_too_many_to_remember_all_come_back_if_their_routes_change(
    board: Board, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("delaybridge.scan.lanes.parked._KNOWN", 10)
    board.parked()
    board.lanes.brokers_changed({"a"})
    assert board.recover() == [""], "the earliest, until none is left"
    board.session.unparked(1)
    assert board.recover() == [""]
