"""RabbitMQ's outcomes under every interleaving a broker may choose, and its URL."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from delaybridge.errors import ConfigError
from delaybridge.message import Delivery
from delaybridge.publish import CONFIRMED, Fault, Outcome, PublishOptions, Verdict
from delaybridge.publish.link import Reports
from delaybridge.publish.rabbitmq import publisher
from delaybridge.publish.rabbitmq.channel import CAREFUL_MESSAGES, Unconfirmed
from tests.rigs.amqp_channel import Channel, OutcomeRecorder, delivery

LOST = Outcome(Verdict.UNKNOWN, "connection_lost: test", Fault.BROKER)
CLOSED = Outcome(Verdict.REFUSED, "not_connected: test", Fault.BROKER)

STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("publish"), st.lists(st.integers(0, 6), min_size=1, max_size=8)),
        st.tuples(st.sampled_from(["ack", "nack"]), st.tuples(st.integers(0, 30), st.booleans())),
        st.tuples(st.just("return"), st.integers(0, 30)),
        st.tuples(st.just("close"), st.sampled_from([403, 404, 406, 541])),
        st.tuples(st.sampled_from(["lose", "suspect", "expire"]), st.none()),
    ),
    max_size=40,
)


def play(channel: Channel, steps: list[tuple[str, Any]]) -> list[Delivery]:
    """Do the steps, end everything, and return all deliveries in the order given."""
    handed: list[Delivery] = []
    for verb, what in steps:
        open_tags = channel.unsettled()
        if verb == "publish":
            batch = [delivery(f"id-{number}") for number in what]
            handed += batch
            channel.publish(batch)
        elif verb in ("ack", "nack"):
            channel.settle(what[0], what[1], verb == "ack")
        elif verb == "return" and open_tags:
            channel.give_back(open_tags[what % len(open_tags)])
        elif verb == "close":
            channel.line.closed_by_broker(what, "TEXT")
            channel.end()
        elif verb in ("lose", "suspect", "expire"):
            channel.line.lost(LOST, is_suspicious=verb == "suspect")
            channel.end()
    channel.line.lost(LOST)
    channel.line.refuse_waiting(CLOSED)
    return handed


class TestExchangeLine:
    @given(STEPS)
    def test_each_delivery_is_reported_once_and_truthfully(
        self, steps: list[tuple[str, Any]]
    ) -> None:
        channel = Channel()
        handed = play(channel, steps)
        assert set(channel.recorder.outcomes) == set(handed)
        for one, outcome in channel.recorder.outcomes.items():
            is_settled = one in channel.acked or one in channel.nacked
            if outcome == CLOSED:
                assert one not in channel.written
            elif one in channel.returned:
                assert outcome.reason.startswith("unroutable: 312 NO_ROUTE, no queue is ")
            elif outcome == CONFIRMED:
                assert one in channel.acked
            elif outcome.verdict is Verdict.REFUSED:
                assert not is_settled
            else:
                assert one not in channel.acked
        assert channel.line.is_idle

    @given(STEPS)
    def test_deliveries_are_written_in_the_order_given(self, steps: list[tuple[str, Any]]) -> None:
        channel = Channel()
        handed = play(channel, steps)
        written = [one for one in handed if one in set(channel.written)]
        assert channel.written == written

    def test_the_first_message_of_a_channel_goes_alone(self) -> None:
        channel = Channel()
        channel.publish([delivery(str(n)) for n in range(10)])
        assert len(channel.tags) == 1
        channel.settle(1, False, True)
        assert len(channel.tags) == 10

    def test_a_return_before_its_ack_is_unroutable_and_its_neighbours_are_confirmed(self) -> None:
        channel = Channel()
        batch = [delivery(str(n)) for n in range(10)]
        channel.publish(batch)
        channel.settle(1, False, True)
        channel.give_back(5)
        channel.give_back(7)
        assert batch[4] not in channel.recorder.outcomes
        channel.settle(10, True, True)
        refused = [n for n, one in enumerate(batch, 1) if channel.reason(one) == "unroutable"]
        assert refused == [5, 7]
        outcome = channel.recorder.outcomes[batch[4]]
        assert outcome.fault is Fault.MESSAGE and outcome.answered

    def test_a_second_message_with_an_id_waits_for_the_first_and_so_do_all_after_it(self) -> None:
        channel = Channel()
        channel.publish([delivery("warm")])
        channel.settle(1, False, True)
        channel.publish([delivery("a"), delivery("b"), delivery("a"), delivery("c")])
        assert [one.id for one in channel.tags] == ["warm", "a", "b"]
        channel.settle(2, False, True)
        assert [one.id for one in channel.tags] == ["warm", "a", "b", "a", "c"]

    @pytest.mark.parametrize(
        ("code", "text", "reason", "fault"),
        [
            (404, "NOT_FOUND - no exchange", "exchange_missing", Fault.MESSAGE),
            (406, "PRECONDITION_FAILED - size", "precondition_failed", Fault.MESSAGE),
            (403, "write access to exchange refused", "access_refused", Fault.DESTINATION),
            (403, "write access to topic 'a' refused", "access_refused", Fault.MESSAGE),
        ],
    )
    def test_a_message_alone_on_a_closed_channel_is_refused(
        self, code: int, text: str, reason: str, fault: Fault
    ) -> None:
        channel = Channel()
        poison = delivery("poison")
        channel.publish([poison, delivery("next")])
        channel.line.closed_by_broker(code, text)
        outcome = channel.recorder.outcomes[poison]
        assert (outcome.verdict, outcome.fault) == (Verdict.REFUSED, fault)
        assert outcome.reason.startswith(f"{reason}: {code} ")
        assert outcome.answered == (fault is Fault.MESSAGE and code != 404)

    @pytest.mark.parametrize("code", [501, 541, 320])
    def test_after_a_close_code_that_proves_nothing_the_message_is_unknown(self, code: int) -> None:
        channel = Channel()
        one = delivery("one")
        channel.publish([one])
        channel.line.closed_by_broker(code, "INTERNAL_ERROR")
        assert channel.recorder.outcomes[one].verdict is Verdict.UNKNOWN

    def test_a_lone_unconfirmed_message_that_was_not_the_last_written_is_unknown(self) -> None:
        channel = Channel()
        batch = [delivery(str(n)) for n in range(3)]
        channel.publish(batch)
        channel.settle(1, False, True)
        channel.settle(3, False, True)
        channel.line.closed_by_broker(406, "PRECONDITION_FAILED")
        assert channel.recorder.outcomes[batch[1]].verdict is Verdict.UNKNOWN

    def test_a_poison_message_is_found_when_its_window_comes_back(self) -> None:
        channel = Channel()
        batch = [delivery(str(n)) for n in range(100)]
        channel.publish(batch)
        channel.settle(1, False, True)
        channel.line.closed_by_broker(406, "PRECONDITION_FAILED")
        channel.end()
        assert {channel.recorder.outcomes[one].verdict for one in batch[1:]} == {Verdict.UNKNOWN}
        # Others are published meanwhile; then the window is published again. Number 50 is bad.
        others = [delivery(f"other-{n}") for n in range(CAREFUL_MESSAGES + 1)]
        channel.publish(others)
        for tag in range(1, len(others) + 1):
            channel.settle(tag, False, True)
        again = [delivery(str(n)) for n in range(1, 100)]
        channel.publish(again)
        while again[49] not in channel.recorder.outcomes:
            assert len(channel.unsettled()) == 1
            if channel.tags[-1] is again[49]:
                channel.line.closed_by_broker(406, "PRECONDITION_FAILED")
                channel.end()
            else:
                channel.settle(len(channel.tags), False, True)
        assert channel.recorder.outcomes[again[49]].verdict is Verdict.REFUSED
        while tags := channel.unsettled():
            channel.settle(tags[0], False, True)
        verdicts = Counter(channel.recorder.outcomes[one].verdict for one in again)
        assert verdicts == {Verdict.CONFIRMED: 98, Verdict.REFUSED: 1}

    def test_messages_that_were_only_slow_go_together_again(self) -> None:
        channel = Channel()
        channel.publish([delivery(str(n)) for n in range(10)])
        channel.line.lost(LOST)
        channel.end()  # the nine others
        channel.settle(1, False, True)
        assert len(channel.tags) == 9

    def test_acks_for_settled_or_unwritten_messages_are_ignored(self) -> None:
        channel = Channel()
        channel.publish([delivery("a")])
        for tag, multiple in [(5, False), (5, True), (1, False), (1, False), (1, True), (0, False)]:
            channel.line.settle(tag, multiple, confirmed=True)
        assert list(channel.recorder.outcomes.values()) == [CONFIRMED]


class TestUnconfirmed:
    def test_the_oldest_time_is_that_of_the_first_unsettled_batch(self) -> None:
        unconfirmed = Unconfirmed()
        assert unconfirmed.oldest_s() is None
        for start in range(3):
            unconfirmed.wrote([delivery(f"{start}-{n}") for n in range(2)], float(start))
        assert unconfirmed.oldest_s() == 0.0
        unconfirmed.settle_to(1, multiple=False)
        assert unconfirmed.oldest_s() == 0.0
        unconfirmed.settle_to(3, multiple=True)
        assert unconfirmed.oldest_s() == 1.0
        unconfirmed.settle_to(0, multiple=True)
        assert unconfirmed.oldest_s() is None

    def test_a_long_lived_channel_keeps_no_settled_messages(self) -> None:
        unconfirmed = Unconfirmed()
        straggler = delivery("straggler")
        unconfirmed.wrote([delivery("first"), straggler], 0.0)
        for tag in range(3, 20_003):
            unconfirmed.wrote([delivery(str(tag))], float(tag))
            assert [one.id for one in unconfirmed.settle_to(tag, multiple=False)] == [str(tag)]
        assert unconfirmed.settle_to(2, multiple=True)[1] is straggler
        assert len(unconfirmed._slots) == 0
        assert len(unconfirmed) == 0


class TestReports:
    async def test_outcomes_are_reported_together_after_the_turn_grouped_by_outcome(self) -> None:
        calls: list[tuple[list[str], Outcome]] = []
        reports = Reports(lambda ds, outcome: calls.append(([d.id for d in ds], outcome)))
        reports.add([delivery("a")], CONFIRMED)
        reports.add([delivery("x")], LOST)
        reports.add([delivery("b")], CONFIRMED)
        assert calls == []
        await asyncio.sleep(0)
        assert calls == [(["a", "b"], CONFIRMED), (["x"], LOST)]

    async def test_a_report_that_raises_does_not_affect_the_others(self) -> None:
        calls: list[Outcome] = []

        def report(_: Sequence[Delivery], outcome: Outcome) -> None:
            calls.append(outcome)
            if outcome == CONFIRMED:
                raise RuntimeError("a bug in the scanner")

        reports = Reports(report)
        reports.add([delivery("a")], CONFIRMED)
        reports.add([delivery("b")], LOST)
        with pytest.raises(RuntimeError):
            reports.flush()
        for _ in range(3):
            await asyncio.sleep(0)
        assert calls == [CONFIRMED, LOST]


class TestUrl:
    def make(self, url: str, report: Any = lambda *_: None) -> Any:
        """A publisher that was not connected."""
        options = PublishOptions(heartbeat_s=15, blocked_connection_timeout_s=20.0)
        return publisher("rabbitmq", url, report=report, on_change=lambda: None, options=options)

    def test_options_are_defaults_that_the_url_overrides(self) -> None:
        parameters = self.make("amqp://u:p@h/v?heartbeat=30").parameters
        assert (parameters.heartbeat, parameters.blocked_connection_timeout) == (30, 20.0)
        assert self.make("amqp://u:p@h/v").parameters.heartbeat == 15

    def test_the_proxy_protocol_is_an_option(self) -> None:
        found = [
            self.make(f"amqp://h/v{option}").parameters.proxy_protocol
            for option in ("", "?proxy_protocol=true", "?proxy_protocol=false")
        ]
        assert found == [False, True, False]
        with pytest.raises(ConfigError, match="the value of proxy_protocol"):
            self.make("amqp://h/v?proxy_protocol=1")

    def test_tls_verifies_certificate_and_host(self) -> None:
        context = self.make("amqps://u:p@h/v").parameters.ssl_options.context
        assert context.check_hostname
        assert context.verify_mode.name == "CERT_REQUIRED"

    def test_no_password_is_shown(self) -> None:
        made = self.make("amqp://user:s3cret@host:5673/%2F")
        assert "s3cret" not in made.describe()
        assert "host:5673/%2F" in made.describe()

    @pytest.mark.parametrize(
        "url", ["amqp://u:s3cret@h/v?nonsense=1", "amqp://u:s3cret@h:99999/v", "amqp://s3cret@h"]
    )
    def test_a_bad_url_is_refused_without_showing_it(self, url: str) -> None:
        with pytest.raises(ConfigError) as caught:
            self.make(url)
        assert "s3cret" not in str(caught.value)

    async def test_before_the_connection_everything_is_refused(self) -> None:
        recorder = OutcomeRecorder()
        made, one = self.make("amqp://h", recorder.add), delivery("a")
        made.publish([one])
        await asyncio.sleep(0)
        outcome = recorder.outcomes[one]
        assert (outcome.verdict, outcome.fault) == (Verdict.REFUSED, Fault.BROKER)
