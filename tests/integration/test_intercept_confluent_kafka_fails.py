"""confluent_kafka's drop-in: a store that is unavailable, and the end of a producer."""

from __future__ import annotations

import gc
import logging
import threading
import time
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

import pytest
from confluent_kafka import KafkaError

from delaybridge import Client
from delaybridge.intercept.confluent_kafka import Producer
from delaybridge.intercept.kafka_reports import Waiting
from tests.rigs.kafka_site import KafkaSite, Reports
from tests.rigs.lossy_proxy import LossyProxy
from tests.rigs.waiting import DEADLINE_S, until
from tests.servers.process import LOOPBACK, free_port
from tests.servers.redis import RedisServer

HOUR_MS = 3_600_000


@pytest.fixture
def site(kafka_site: KafkaSite) -> KafkaSite:
    return kafka_site


@pytest.fixture
def lossy(site: KafkaSite) -> Iterator[LossyProxy]:
    """Between a producer's client and Redis."""
    port = urlsplit(site.redis_url).port
    assert port is not None
    with LossyProxy(port) as proxy:
        yield proxy


@pytest.fixture
def slow(site: KafkaSite, lossy: LossyProxy) -> Iterator[Client]:
    """A client behind the proxy that gives one call up quickly."""
    with Client(lossy.url, namespace=site.namespace, timeout_s=0.4) as client:
        yield client


@pytest.fixture
def unreachable() -> Iterator[Client]:
    """A client whose Redis does not run."""
    with Client(f"redis://{LOOPBACK}:{free_port()}", timeout_s=0.1) as client:
        yield client


class TestAnUnavailableStore:
    def test_a_call_whose_reply_is_lost_is_repeated_and_stores_once(
        self, site: KafkaSite, lossy: LossyProxy, slow: Client, reports: Reports
    ) -> None:
        topic = site.topic()
        with Producer(site.config, client=slow) as producer:
            lossy.drop_next_replies(8)
            for n in range(50):
                producer.produce(topic, str(n), on_delivery=reports, delay="1h")
            assert producer.flush() == 0
        assert lossy.dropped == 8
        assert reports.codes == [None] * 50
        assert len(site.pending(topic)) == 50

    def test_a_message_cancelled_before_its_answer_arrived_stays_cancelled(
        self, site: KafkaSite, lossy: LossyProxy, slow: Client, reports: Reports
    ) -> None:
        topic = site.topic()
        with Producer(site.config, client=slow) as producer:
            producer.produce(site.topic(), b"x", b"key", delay="1h")
            producer.flush()  # the script is loaded, the buckets are known, a connection is open
            lossy.swallowing = True
            id = producer.produce(topic, b"x", b"key", on_delivery=reports, delay="1h")
            assert id is not None
            until(lambda: site.pending(topic))
            assert site.client.cancel(id) == "cancelled"
            assert producer.flush(1.0) == 1  # the call is given up, and made again
            lossy.swallowing = False
            assert producer.flush() == 0
        assert reports.codes == [None]
        site.check_nothing_left(topic)

    def test_a_delay_counts_from_the_call_of_produce(
        self, site: KafkaSite, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        waited_ms: list[float] = []  # before each call to the store

        def noted(one: Waiting, now_s: float) -> Any:
            waited_ms.append((now_s - one.since_s) * 1000)
            return call(one, now_s)

        call = Waiting.call
        topic = site.topic()
        redis = RedisServer(["--appendonly", "yes"])
        with redis, Client(redis.url, timeout_s=0.4) as hasty, Client(redis.url) as client:
            with Producer(site.config, client=hasty) as producer:
                producer.produce(topic, b"first", delay="1h")
                assert producer.flush() == 0
                monkeypatch.setattr(Waiting, "call", noted)
                redis.kill()  # were it paused, it might execute the first call late
                before_ms = time.time_ns() // 1_000_000
                id = producer.produce(topic, b"x", delay="1h")
                assert id is not None
                until(lambda: len(waited_ms) > 2, "it was tried before")
                redis.start()
                assert producer.flush() == 0
                after_ms = time.time() * 1000
            stored = client.get(id)
        assert stored is not None
        # The thread may stand still between its look at the clock and the call. Redis' clock is
        # rounded up to a millisecond and what was waited down: together less than two.
        assert before_ms + HOUR_MS <= stored.due_ms < after_ms + HOUR_MS - waited_ms[-1] + 2

    def test_a_full_queue_has_room_again_once_messages_are_stored(
        self, site: KafkaSite, lossy: LossyProxy, slow: Client, reports: Reports
    ) -> None:
        topic = site.topic()
        config = {**site.config, "queue.buffering.max.messages": 3}
        with Producer(config, client=slow) as producer:
            lossy.swallowing = True
            for _ in range(3):
                producer.produce(topic, b"x", on_delivery=reports, delay="1h")
            with pytest.raises(BufferError, match="Queue full"):
                producer.produce(topic, b"x", on_delivery=reports, delay="1h")
            assert len(producer) == 3
            lossy.swallowing = False
            until(lambda: len(site.pending(topic)) == 3)
            with pytest.raises(BufferError):  # reports that were not served count, too
                producer.produce(topic, b"x", delay="1h")
            assert producer.flush() == 0
            producer.produce(topic, b"x", on_delivery=reports, delay="1h")
            assert producer.flush() == 0
        assert reports.codes == [None] * 4

    def test_a_queue_is_bounded_in_bytes(self, site: KafkaSite, unreachable: Client) -> None:
        config = {**site.config, "queue.buffering.max.kbytes": 10}
        with Producer(config, client=unreachable) as producer:
            for _ in range(2):
                producer.produce("t", bytes(6000), delay="1h")
                with pytest.raises(BufferError, match="Queue full"):
                    producer.produce("t", bytes(6000), delay="1h")
                producer.purge()
                producer.flush()

    @pytest.mark.parametrize("name", ["message.timeout.ms", "delivery.timeout.ms"])
    def test_a_message_is_given_up_after_the_time_out_of_the_configuration(
        self, site: KafkaSite, unreachable: Client, reports: Reports, name: str
    ) -> None:
        with Producer({**site.config, name: "700"}, client=unreachable) as producer:
            began_s = time.monotonic()
            producer.produce("t", b"x", b"k", on_delivery=reports, delay="1h")
            assert producer.flush() == 0  # returns when it was reported
            assert time.monotonic() - began_s >= 0.7
        assert reports.codes == [KafkaError._MSG_TIMED_OUT]
        error, message = reports.all[0]
        assert error is not None and "within 0.7 s" in error.str()
        assert message.error() == error
        assert (message.topic(), message.value(), message.key()) == ("t", b"x", b"k")

    def test_without_a_callback_a_failure_is_logged(
        self, site: KafkaSite, unreachable: Client, caplog: pytest.LogCaptureFixture
    ) -> None:
        with Producer({**site.config, "message.timeout.ms": 100}, client=unreachable) as producer:
            id = producer.produce("t", b"x", delay="1h")
        (record,) = caplog.records
        assert record.levelno == logging.ERROR
        assert f"{id} for t: not stored" in record.getMessage()

    def test_a_permanent_refusal_of_redis_is_reported_at_once(
        self, site: KafkaSite, reports: Reports
    ) -> None:
        with (
            RedisServer(["--requirepass", "secret"]) as redis,
            Client(redis.url) as client,
            Producer(site.config, client=client) as producer,
        ):
            producer.produce("t", b"x", on_delivery=reports, delay="1h")
            producer.flush()
            assert reports.codes == [KafkaError._FAIL]
            assert "access refused" in str(reports.all[0][0])

    def test_purge_gives_up_messages_in_queue_and_in_flight(
        self, site: KafkaSite, unreachable: Client, reports: Reports
    ) -> None:
        with Producer(site.config, client=unreachable) as producer:
            producer.produce("t", b"first", on_delivery=reports, delay="1h")
            until(lambda: producer._outbox._in_flight)
            producer.produce("t", b"second", on_delivery=reports, delay="1h")
            producer.purge(in_flight=False)
            assert producer.poll(-1) == 1
            assert reports.codes == [KafkaError._PURGE_QUEUE]
            producer.purge()
            assert producer.flush() == 0
        assert reports.codes[1:] == [KafkaError._PURGE_INFLIGHT]
        assert [message.value() for _, message in reports.all] == [b"second", b"first"]


def threads() -> set[threading.Thread]:
    """Those of outboxes."""
    return {t for t in threading.enumerate() if t.name == "delaybridge outbox"}


def sweep(caplog: pytest.LogCaptureFixture) -> None:
    """What other tests left behind ends now, and what it says counts for none."""
    gc.collect()
    caplog.clear()


class TestTheEnd:
    def test_leaving_the_with_block_and_close_store_everything(
        self, site: KafkaSite, reports: Reports
    ) -> None:
        topic = site.topic()
        with Producer(site.config, client=site.client) as producer:
            for n in range(500):
                producer.produce(topic, str(n), on_delivery=reports, delay="1h")
        assert reports.codes == [None] * 500
        assert len(site.pending(topic)) == 500
        assert producer.close() is True
        with pytest.raises(RuntimeError, match="closed"):
            producer.produce(topic, b"x", delay="1h")
        with pytest.raises(RuntimeError, match="closed"):
            producer.produce(topic, b"x")
        assert len(producer) == 0

    def test_a_producer_dropped_early_warns_and_its_messages_are_still_stored(
        self, site: KafkaSite, lossy: LossyProxy, slow: Client, caplog: pytest.LogCaptureFixture
    ) -> None:
        topic, before = site.topic(), threads()
        sweep(caplog)
        lossy.swallowing = True
        producer = Producer(site.config, client=slow)
        for _ in range(3):
            producer.produce(topic, b"x", delay="1h")
        del producer
        gc.collect()
        (record,) = caplog.records
        assert record.levelno == logging.WARNING
        assert "3 delayed messages" in record.getMessage()
        lossy.swallowing = False
        until(lambda: threads() <= before, "its thread ends")  # what it logs is of no other test
        assert len(site.pending(topic)) == 3

    def test_a_producer_dropped_when_all_is_stored_logs_nothing(
        self, site: KafkaSite, caplog: pytest.LogCaptureFixture
    ) -> None:
        before = threads()
        sweep(caplog)
        producer = Producer(site.config, client=site.client)
        producer.produce(site.topic(), b"x", delay="1h")
        producer.flush()
        assert len(threads() - before) == 1
        del producer
        gc.collect()
        until(lambda: threads() <= before, "its thread ends")
        assert caplog.records == []

    def test_a_process_that_ends_without_a_flush_stores_its_messages_first(
        self, site: KafkaSite
    ) -> None:
        topic = site.topic()
        ended = site.run(
            "from delaybridge.intercept import kafka_outbox\n"
            "from delaybridge.intercept.confluent_kafka import Producer\n"
            f"kafka_outbox.EXIT_TIMEOUT_S = {DEADLINE_S}\n"  # of a starved machine
            f"producer = Producer({site.config!r})\n"
            f"for _ in range(1000): producer.produce({topic!r}, b'x', delay='1h')\n"
        )
        assert ended.stderr == ""
        assert len(site.pending(topic)) == 1000

    def test_a_process_that_ends_while_redis_does_not_answer_logs_a_warning(
        self, site: KafkaSite
    ) -> None:
        ended = site.run(
            "import os\n"
            f"os.environ['DELAYBRIDGE_REDIS_URL'] = 'redis://{LOOPBACK}:{free_port()}'\n"
            "from delaybridge.intercept.confluent_kafka import Producer\n"
            f"producer = Producer({site.config!r})\n"
            "producer.produce('t', b'x', delay='1h')\n"
        )
        assert "1 delayed messages" in ended.stderr

    def test_after_a_fork_the_parent_stores_and_the_child_needs_its_own_producer(
        self, site: KafkaSite
    ) -> None:
        topic = site.topic()
        ended = site.run(
            "import os, warnings\n"
            "warnings.simplefilter('ignore')\n"
            "from delaybridge.intercept.confluent_kafka import Producer\n"
            f"producer = Producer({site.config!r})\n"
            "told = lambda error, message: print(message.value(), error, flush=True)\n"
            f"producer.produce({topic!r}, b'parent', on_delivery=told, delay='1h')\n"
            "if (pid := os.fork()) == 0:\n"
            "    try:\n"
            f"        producer.produce({topic!r}, b'x', delay='1h')\n"
            "    except RuntimeError as exc:\n"
            "        print(exc, flush=True)\n"
            f"    with Producer({site.config!r}) as own:\n"
            f"        own.produce({topic!r}, b'child', on_delivery=told, delay='1h')\n"
            "    os._exit(0)\n"
            "os.waitpid(pid, 0)\n"
            "producer.flush()\n"
        )
        refusal, *sent = ended.stdout.splitlines()
        assert "fork" in refusal and sent == ["b'child' None", "b'parent' None"]
        assert sorted(stored.body for stored in site.pending(topic)) == [b"child", b"parent"]

    def test_the_thread_imports_no_module_whose_lock_a_fork_would_leave_held(
        self, site: KafkaSite
    ) -> None:
        ended = site.run(
            "import sys, threading\n"
            "from delaybridge.intercept.confluent_kafka import Producer\n"
            "class Finder:\n"
            "    def find_spec(self, name, path=None, target=None):\n"
            "        if threading.current_thread().name == 'delaybridge outbox':\n"
            "            print(name)\n"
            f"producer = Producer({site.config!r})\n"
            "sys.meta_path.insert(0, Finder())\n"
            f"producer.produce({site.topic()!r}, b'x', delay='1h')\n"
            "print('left', producer.flush())\n"
        )
        assert ended.stdout == "left 0\n"

    def test_a_process_ends_although_its_thread_was_stopped_while_it_held_the_lock(
        self, site: KafkaSite
    ) -> None:
        ended = site.run(
            "import threading, time\n"
            "from delaybridge.intercept.confluent_kafka import Producer\n"
            f"producer = Producer({site.config!r})\n"
            f"producer.produce({site.topic()!r}, b'x', delay='1h')\n"
            "producer.flush()\n"
            "producer._outbox.close()\n"
            "held = threading.Event()\n"
            "def hold():\n"
            "    with producer._outbox._changed:\n"
            "        held.set()\n"
            "        time.sleep(60)\n"
            "threading.Thread(target=hold, daemon=True).start()\n"
            "held.wait()\n"
            "producer.__del__()\n"
            "print('ended', flush=True)\n"
            "import os; os._exit(0)\n"
        )
        assert ended.stdout == "ended\n"
