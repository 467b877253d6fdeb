"""Who is to blame for a refused batch, and the pieces in which a topic is sent until it stands."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence

import pytest
from confluent_kafka import KafkaError

from delaybridge.message import Delivery, Destination, Record
from delaybridge.publish.kafka.outcomes import ALONE, CARE_S, PIECE_RECORDS, FailedRecord, judged
from delaybridge.publish.kafka.topic import TopicState

BAD, OTHER = KafkaError.INVALID_RECORD, KafkaError._INVALID_DIFFERENT_RECORD
TOO_LARGE = KafkaError.MSG_SIZE_TOO_LARGE
TO = Destination("kafka", "kafka", "t")


def deliveries(count: int, body: bytes = b"") -> list[Delivery]:
    return [Delivery(f"{n}", Record("kafka:t", body), TO, 1, 1) for n in range(count)]


def failed(codes: Sequence[int], partition: int = 0) -> list[FailedRecord]:
    made = zip(deliveries(len(codes)), codes, strict=True)
    return [FailedRecord(one, KafkaError(code), partition) for one, code in made]


class Broker:
    """Takes or refuses each piece as a whole, and keeps what it took."""

    def __init__(self, topic: TopicState, *, names: bool = False, most_bytes: int = 0) -> None:
        """names: it says which records are to blame."""
        self.topic, self.names, self.most_bytes = topic, names, most_bytes
        self.taken: list[Delivery] = []
        self.blamed: list[Delivery] = []
        self.requests = 0

    def send(self, batch: Sequence[Delivery], is_bad: Callable[[Delivery], bool]) -> None:
        self.requests += 1
        self.topic.in_flight += len(batch)
        guilty = [one for one in batch if is_bad(one)]
        if 0 < self.most_bytes < sum(one.size for one in batch):
            codes = [TOO_LARGE] * len(batch)
        elif guilty:
            codes = [OTHER if self.names and one not in guilty else BAD for one in batch]
        else:
            self.taken += batch
            self.topic.confirmed(len(batch), 0.0, 0.0)
            return
        pairs = zip(batch, codes, strict=True)
        for judgement in judged([FailedRecord(one, KafkaError(code), 0) for one, code in pairs]):
            self.topic.refused(judgement, 0.0)
            self.blamed += [each.delivery for each in judgement.guilty]

    def drain(self, is_bad: Callable[[Delivery], bool] = lambda one: False) -> None:
        """Send pieces until nothing is held."""
        while self.topic.held:
            assert not self.topic.is_blocked
            piece = list(self.topic.piece(0.0))
            assert self.topic.pop(len(piece)) == piece
            self.send(piece, is_bad)


class TestJudgement:
    def test_the_broker_names_the_guilty(self) -> None:
        (found,) = judged(failed([OTHER, BAD, OTHER, BAD]))
        assert [each.delivery.id for each in found.guilty] == ["1", "3"]
        assert [each.delivery.id for each in found.innocent] == ["0", "2"]
        assert not found.suspects

    @pytest.mark.parametrize("code", [BAD, OTHER, TOO_LARGE])
    def test_one_that_stands_alone_is_guilty(self, code: int) -> None:
        (found,) = judged(failed([code]))
        assert len(found.guilty) == 1

    @pytest.mark.parametrize("code", [BAD, OTHER, TOO_LARGE])
    def test_all_are_suspects_where_none_is_named(self, code: int) -> None:
        (found,) = judged(failed([code, code]))
        assert len(found.suspects) == 2
        assert not found.guilty

    def test_all_are_guilty_where_each_had_its_own_request(self) -> None:
        (found,) = judged(failed([BAD, BAD]), alone=True)
        assert len(found.guilty) == 2

    def test_a_batch_that_is_too_large_is_not_judged_by_another_one(self) -> None:
        large = failed([TOO_LARGE] * 3)
        named, sized = judged([*failed([BAD, OTHER]), *large])
        assert (len(named.guilty), len(named.innocent)) == (1, 1)
        assert sized.suspects == large

    def test_each_partition_has_its_own_batch(self) -> None:
        named, unnamed = judged([*failed([OTHER, BAD], 1), *failed([BAD, BAD], 2)])
        assert (len(named.guilty), len(named.innocent)) == (1, 1)
        assert len(unnamed.suspects) == 2


class TestPieces:
    @pytest.mark.parametrize("names", [True, False])
    @pytest.mark.parametrize("guilty", [{0}, {9}, {4, 5}, {0, 3, 9}, set(range(10))])
    def test_the_innocent_arrive_once_in_order_and_the_guilty_are_blamed(
        self, names: bool, guilty: set[int]
    ) -> None:
        topic, sent = TopicState("t"), deliveries(12)
        broker = Broker(topic, names=names)
        topic.held.extend(sent[10:])
        broker.send(sent[:10], lambda one: int(one.id) in guilty)
        broker.drain(lambda one: int(one.id) in guilty)
        assert broker.taken == [one for one in sent if int(one.id) not in guilty]
        assert broker.blamed == [one for one in sent if int(one.id) in guilty]
        assert topic.in_flight == 0

    def test_one_guilty_of_ten_thousand_needs_two_requests_for_each_halving(self) -> None:
        topic, sent = TopicState("t"), deliveries(10_000)
        broker = Broker(topic)
        broker.send(sent, lambda one: one.id == "7777")
        broker.drain(lambda one: one.id == "7777")
        assert len(broker.taken) == 9_999
        assert broker.taken == [one for one in sent if one.id != "7777"]
        assert broker.requests < 10_000 / PIECE_RECORDS + 2 * 14

    def test_batches_refused_one_after_the_other_go_again_in_that_order(self) -> None:
        topic, sent = TopicState("t"), deliveries(9)
        broker = Broker(topic, names=True)
        topic.held.extend(sent[6:])
        topic.in_flight = 3  # the second batch is under way when the first is refused
        broker.send(sent[:3], lambda one: one.id == "1")
        assert topic.is_blocked
        topic.in_flight = 0
        broker.send(sent[3:6], lambda one: one.id == "4")
        broker.drain()
        assert [one.id for one in broker.taken] == ["0", "2", "3", "5", "6", "7", "8"]

    def test_a_batch_above_the_limit_of_the_topic_goes_in_pieces_below_it(self) -> None:
        small, large = deliveries(200, bytes(100)), deliveries(1, bytes(9000))
        topic = TopicState("t")
        broker = Broker(topic, most_bytes=3000)
        sent = [*small[:100], *large, *small[100:]]
        broker.send(sent, lambda one: False)
        broker.drain()
        assert broker.taken == small
        assert broker.blamed == large
        before = broker.requests
        topic.held.extend(small)
        broker.drain()
        assert broker.requests - before < 40, "the limit is remembered"
        assert broker.taken == [*small, *small]

    def test_care_ends_a_while_after_the_last_refusal_and_not_before_all_have_gone(self) -> None:
        topic, sent = TopicState("t"), deliveries(5)
        Broker(topic).send(sent, lambda one: True)
        assert len(topic.piece(CARE_S + 1)) == 2
        topic.pop(5)
        assert topic.piece(CARE_S) is not topic.held
        assert topic.piece(CARE_S + 1) is topic.held

    def test_few_suspects_go_one_by_one_and_innocents_do_not(self) -> None:
        topic, sent = TopicState("t"), deliveries(3 * ALONE)
        Broker(topic).send(sent, lambda one: one.id == "0")
        assert topic.care is not None
        assert not topic.care.is_for_one_by_one
        batch = topic.pop(len(topic.piece(0.0)))
        Broker(topic).send(batch, lambda one: one.id == "0")
        assert topic.care.is_for_one_by_one
        assert topic.piece(0.0, one_by_one=True) == sent[: len(batch) // 2]
        named = TopicState("t")
        Broker(named, names=True).send(sent[:3], lambda one: one.id == "0")
        assert named.care is not None
        assert not named.care.is_for_one_by_one

    def test_nothing_of_a_refused_batch_is_left_when_its_records_are_taken_away(self) -> None:
        topic, sent = TopicState("t"), deliveries(5)
        Broker(topic).send(sent, lambda one: True)
        assert topic.take_all() == sent
        topic.held = deque(sent)
        assert list(topic.piece(0.0)) == sent
