"""Lanes: the way out to each destination: its window, its stalls, its routes and its broker."""

from __future__ import annotations

from dataclasses import replace

import pytest

from delaybridge.publish import CONFIRMED, Outcome
from delaybridge.scan.lanes.lane import Broker
from delaybridge.store.protocol.replies import Fired
from tests.rigs.board import MAX_ATTEMPTS, NOW_MS, STALLED_MS, TABLE, WINDOW, Board, Recorder
from tests.rigs.bucket_session import new_session
from tests.rigs.outcomes import CONNECTION_LOST, NACK, UNROUTABLE

PATIENCE_MS = 50


# the window


def test_alone_a_lane_gets_half_of_the_window(board: Board) -> None:
    assert len(board.send(WINDOW)) == WINDOW // 2
    assert len(board.a.taken) == WINDOW // 2


def test_no_number_of_stuck_lanes_takes_the_whole_window(board: Board) -> None:
    shares = [len(board.send(WINDOW, f"a:q{number}")) for number in range(5)]
    assert shares == [50, 25, 13, 6, 3]
    assert sum(shares) < WINDOW
    assert board.pass_(board.copy("b:free")) == "go"


def test_a_confirm_makes_room(board: Board) -> None:
    sent = board.send(WINDOW)
    assert board.pass_(board.copy()) == "wait"
    board.answer(sent[:2], CONFIRMED)
    assert board.pass_(board.copy()) == "go"


def test_bytes_count_as_well_but_one_message_always_passes() -> None:
    board = Board(window_bytes=10_000)

    def pass_(text: str) -> str:
        return board.pass_(board.copy(text, body=b"x" * 9_000))

    assert [pass_("a:q"), pass_("a:q")] == ["go", "wait"]
    assert [pass_("b:q"), pass_("b:q")] == ["go", "wait"]


def test_copies_that_a_fire_covers_go_along_but_the_broker_never_holds_more_than_the_window(
    board: Board,
) -> None:
    copies = [board.copy() for _ in range(3 * WINDOW)]
    for copy in copies:
        assert board.lanes.admission.admit(copy, NOW_MS, may_wait=False)
        board.lanes.dispatch.ready([copy])
    board.lanes.dispatch.publish(NOW_MS)
    assert board.a.taken == copies[:WINDOW]
    board.answer(copies[:10], CONFIRMED)
    board.lanes.dispatch.publish(NOW_MS)
    assert board.a.taken == copies[: WINDOW + 10], "the rest, in order, as room comes"


def test_no_copy_of_a_session_that_is_over_is_handed_to_a_broker(board: Board) -> None:
    other = new_session()
    lost = [board.copy() for _ in range(3)]
    kept = [board.copy(session=other) for _ in range(3)]
    for copy in [*lost, *kept]:
        board.pass_(copy)
    board.session.end()
    board.lanes.dispatch.publish(NOW_MS)
    assert board.a.taken == kept
    board.answer(kept, CONFIRMED)
    board.session = other
    assert len(board.send(WINDOW, session=other)) == WINDOW // 2, "the room of the lost is free"


def test_a_revoked_copy_leaves_without_an_exit_and_takes_no_room(board: Board) -> None:
    copy, session = board.copy(), board.session
    session.copies = 1
    session.claims.received(copy.claim, 1)
    session.claims.revoke(Fired(copy.claim, {copy.id.encode(): copy.claim + 1}))
    assert board.pass_(copy) == "leave"
    assert (session.copies, copy.lane.load) == (0, 0)
    assert not session.exits.any, "the store has revoked it: nothing is left to tell"


def test_a_copy_of_a_session_that_is_over_leaves_without_an_exit(board: Board) -> None:
    copy = board.copy(late_ms=9000, ttl_ms=1000)
    board.session.end()
    assert board.pass_(copy) == "leave"
    assert not board.session.exits.any, "the next owner reclaims it"
    assert copy.lane.load == 0


# a lane that stalls


def test_a_full_lane_waits_for_room_until_its_broker_was_silent_for_half_a_second(
    board: Board,
) -> None:
    board.send(WINDOW)
    assert board.pass_(board.copy(), NOW_MS + STALLED_MS - 1) == "wait"
    assert board.pass_(board.copy(), NOW_MS + STALLED_MS) == "leave"
    assert board.told() == {"park": 1}
    assert board.pass_(board.copy("b:q"), NOW_MS + STALLED_MS) == "go", "others go on"


def test_a_lane_whose_broker_keeps_answering_is_not_stalled_however_full(board: Board) -> None:
    sent = board.send(WINDOW)
    for second in range(5):
        now_ms = NOW_MS + second * (STALLED_MS - 1)
        board.answer([sent[second]], CONFIRMED, now_ms)
        assert board.pass_(board.copy(), now_ms) == "go"
        assert board.pass_(board.copy(), now_ms) == "wait"
        board.lanes.dispatch.publish(now_ms)


def test_a_lane_that_was_idle_for_long_is_not_stalled_when_it_is_used_again(board: Board) -> None:
    later_ms = NOW_MS + 3_600_000
    assert len(board.send(WINDOW, now_ms=later_ms)) == WINDOW // 2
    assert board.pass_(board.copy(), later_ms + STALLED_MS - 1) == "wait"


def test_messages_of_a_stalled_lane_come_back_with_its_next_confirm(board: Board) -> None:
    sent = board.send(WINDOW)
    parked = board.copy()
    board.pass_(parked, NOW_MS + STALLED_MS)
    assert board.recover(NOW_MS + STALLED_MS) == []
    board.answer(sent[:1], CONFIRMED, NOW_MS + STALLED_MS)
    assert board.recover(NOW_MS + STALLED_MS) == [parked.id]


def test_parked_messages_wait_for_bytes_too_in_a_lane_full_of_large_ones() -> None:
    board = Board(window_bytes=20_000)
    sent = board.send(20, body=b"x" * 1000)
    later_ms = NOW_MS + STALLED_MS
    for _ in range(9):
        assert board.pass_(board.copy(body=b"x" * 1000), later_ms) == "leave"
    board.session.answered(board.session.exits.take_report())
    board.answer(sent[:1], CONFIRMED, later_ms)
    assert board.recover(later_ms) == [], "it would be parked again at once"
    board.answer(sent[1:6], CONFIRMED, later_ms)
    assert 0 < len(board.recover(later_ms)) <= 7


def test_the_next_look_is_when_a_full_lane_may_turn_out_to_be_stalled(board: Board) -> None:
    board.send(WINDOW)
    assert list(board.lanes.admission.next_looks_ms(NOW_MS, waiting=False)) == []
    board.lanes.window.ripened([board.copy()])
    looks = list(board.lanes.admission.next_looks_ms(NOW_MS, waiting=True))
    assert looks == [NOW_MS + STALLED_MS, NOW_MS + PATIENCE_MS]


# routes


def test_unbounded_routing_keys_share_their_exchange_s_lane_and_fill_no_memory() -> None:
    lanes = Board(kind="rabbitmq").lanes
    found = {
        id(lanes.routing.route(f"a:orders/key.{number}", NOW_MS)[1]) for number in range(25_000)
    }
    assert len(found) == 1
    assert len(lanes.routing.routes) <= 10_000


def test_unbounded_queues_fill_no_memory_but_a_lane_in_use_is_kept(board: Board) -> None:
    board.a.unavailable = "not_connected"
    (sent,) = board.send(1, "b:used")
    board.pass_(parked := board.copy("a:parked"))
    for number in range(25_000):
        board.lanes.routing.route(f"a:q{number}", NOW_MS)
    assert len(board.lanes.routing.lanes) <= 10_002
    assert board.lanes.routing.route("b:used", NOW_MS)[1] is sent.lane
    assert board.lanes.routing.route("a:parked", NOW_MS)[1] is parked.lane


def test_while_a_copy_waits_its_lane_is_not_forgotten(board: Board) -> None:
    board.wheel.append(board.copy("a:old"))
    for number in range(25_000):
        board.lanes.routing.route(f"a:q{number}", NOW_MS)
    later = board.copy("a:old")
    assert later.lane is board.wheel[0].lane, "else it could overtake"
    board.brokers["a"] = Broker("memory", Recorder("a"))  # type: ignore[arg-type]
    board.lanes.brokers_changed({"a"})
    assert board.recover() == ["m1"], "routed again"


# brokers that are changed


def test_a_broker_s_messages_are_routed_again_when_it_changes(board: Board) -> None:
    (sent,) = board.send(1)
    board.a.unavailable = "away"
    assert board.pass_(board.copy()) == "leave"  # parked
    wheel, other = board.copy(), board.copy("b:q")
    board.wheel += [wheel, other]
    new = Recorder("a")
    board.brokers["a"] = Broker("memory", new)  # type: ignore[arg-type]
    (left,) = board.lanes.brokers_changed({"a"})
    assert left.load == 1, "fired copies stay with the old one"

    assert board.recover() == ["m2", "m3"], "in order, with the copies on the wheel"
    assert board.wheel == [other]
    board.come_back()
    fresh = board.copy()
    assert board.pass_(fresh) == "go"
    board.lanes.dispatch.publish(NOW_MS)
    assert new.taken == [fresh]
    board.answer([sent], CONFIRMED)
    assert left.load == 0


def test_a_message_given_up_after_its_broker_became_another_kind_is_buried_not_published() -> None:
    board = Board(kind="rabbitmq", dead_letters={"a": "a:x/dead"})
    sent = [board.copy("a:x/q", headers=TABLE, failures=MAX_ATTEMPTS - 1)]
    assert board.pass_(sent[0]) == "go"
    board.lanes.dispatch.publish(NOW_MS)
    new = Recorder("a")
    board.brokers["a"] = Broker("redis", new)  # type: ignore[arg-type]
    board.lanes.brokers_changed({"a"})
    board.answer(sent, NACK)
    board.lanes.dispatch.publish(NOW_MS)
    assert new.taken == [] and board.told() == {"bury": 1}


def test_messages_of_a_removed_broker_are_parked_until_it_is_back(board: Board) -> None:
    gone = board.brokers.pop("a")
    board.lanes.brokers_changed({"a"})
    assert board.pass_(board.copy()) == "leave"
    assert board.recover() == []
    board.brokers["a"] = gone
    board.lanes.brokers_changed({"a"})
    assert board.recover() == ["m1"]
    board.come_back()
    assert board.pass_(board.copy()) == "go"


# what refuses messages


@pytest.mark.parametrize("outcome", [NACK, UNROUTABLE], ids=lambda one: one.reason)
def test_a_lane_that_confirms_nothing_any_more_is_told_with_the_last_reason(
    board: Board, outcome: Outcome
) -> None:
    for late_ms in (0, 900):
        board.answer(board.send(1), replace(outcome, reason=f"{late_ms}"), NOW_MS + late_ms)
    assert [*board.lanes.routing.refused(NOW_MS + 900)] == [], "one message may fail among many"
    assert [*board.lanes.routing.refused(NOW_MS + 1000)] == [("a:q", "900")]
    assert [*board.lanes.routing.refused(NOW_MS + 900 + 600_001)] == [], "nobody knows any more"


def test_a_lane_refuses_nothing_once_it_confirms_or_if_its_broker_is_away(board: Board) -> None:
    failed, confirmed = board.send(2)
    board.answer([failed], NACK)
    board.answer([confirmed], CONFIRMED, NOW_MS + 500)
    board.answer(board.send(1, "a:other"), CONNECTION_LOST)
    assert [*board.lanes.routing.refused(NOW_MS + 2000)] == []
