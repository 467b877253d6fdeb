"""Applications with drop-in producers are killed, or their broker is stopped: nothing is lost."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager

import pytest

from delaybridge.message import Answer
from tests.rigs.bridge import CALM_LEASE_MS, PROGRAMS, Bridge, MakeBridge
from tests.rigs.crew import PATIENT_PROCESS
from tests.rigs.history import Promise, Verdict
from tests.rigs.programs.produce_delayed import message
from tests.rigs.stall import Stall
from tests.rigs.waiting import DEADLINE_S, until
from tests.servers.kafka import KafkaNode
from tests.servers.rabbitmq import RabbitMQNode

MESSAGES = 600
LONG_S = 600.0
KILLED_AT = (MESSAGES // 3, 2 * MESSAGES // 3)


class Application:
    """An application: produce_delayed.py with one library."""

    def __init__(
        self, bridge: Bridge, library: str, target: str, *, least_s: float = 1.0, seconds: float = 0
    ) -> None:
        """It publishes within `seconds`, with delays of at least `least_s`."""
        self.prefix = f"{target}-{library}"
        self._folder = bridge.folder
        self._journal = bridge.folder / f"{library}.journal"
        script = str(PROGRAMS / "produce_delayed.py")
        self._command = [
            *(sys.executable, script, library, target, str(MESSAGES), str(self._journal)),
            *(str(least_s), str(seconds)),
        ]
        brokers = {f"DELAYBRIDGE_BROKERS__{n.upper()}": url for n, url in bridge.brokers.items()}
        self._environment = {
            **os.environ,
            **brokers,
            **PATIENT_PROCESS,
            "DELAYBRIDGE_REDIS_URL": bridge.redis_url,
            "DELAYBRIDGE_NAMESPACE": bridge.namespace,
        }

    @contextmanager
    def running(self) -> Iterator[subprocess.Popen[bytes]]:
        """Run it until the block ends; then it is killed."""
        with subprocess.Popen(self._command, env=self._environment, cwd=self._folder) as process:
            try:
                yield process
            finally:
                process.kill()

    def wait_accepted(self, count: int) -> None:
        until(lambda: self.accepted >= count, f"{count} accepted", interval_s=0.02)

    @property
    def accepted(self) -> int:
        return self._journal.read_bytes().count(b"\n") if self._journal.exists() else 0

    def promise(self, bridge: Bridge, destination: str) -> None:
        """Add the messages that must arrive to the bridge's promises."""
        assert self.accepted == MESSAGES
        for number in range(MESSAGES):
            id, body, _ = message(self.prefix, number)
            bridge.promises[id] = Promise(id, destination, 0, hashlib.sha1(body).hexdigest())

    def bring_forward(self, bridge: Bridge) -> None:
        """Make all due within the next second."""
        ids = [message(self.prefix, number)[0] for number in range(MESSAGES)]
        later_ms = [1000 * number // MESSAGES for number in range(MESSAGES)]
        answers = bridge.client.reschedule_many(ids, delay=0, spread_ms=later_ms)
        assert set(answers) == {Answer.RESCHEDULED}


def check_all_arrived(bridge: Bridge) -> Verdict:
    bridge.wait_delivered()
    verdict = bridge.verdict()
    assert not (verdict.lost or verdict.early or verdict.changed)
    return verdict


@pytest.mark.slow
@pytest.mark.parametrize("library", ["pika", "confluent_kafka", "kombu", "aio_pika", "aiokafka"])
def test_an_application_that_is_killed_and_restarted_loses_and_repeats_nothing(
    library: str,
    make_bridge: MakeBridge,
    rabbitmq_url: str,
    real_kafka_url: str,
    namespace: str,
    stall: Stall,
) -> None:
    brokers = {"rabbitmq": rabbitmq_url, "kafka": real_kafka_url}
    bridge = make_bridge(brokers, lease_ttl_ms=CALM_LEASE_MS)
    if "kafka" in library:
        destination = bridge.kafka_topic(namespace)
    else:
        destination = bridge.rabbitmq_queue(namespace)
    bridge.start_workers(2)
    # A message that was accepted but not noted must not be due before it is published again.
    application = Application(bridge, library, namespace, least_s=LONG_S)
    for killed_at in KILLED_AT:
        with application.running():
            application.wait_accepted(killed_at)
    with application.running() as process:
        assert process.wait(DEADLINE_S) == 0
    application.promise(bridge, destination)
    application.bring_forward(bridge)
    verdict = check_all_arrived(bridge)
    # then a message that was accepted just before a kill keeps its id when it is published again
    assert not verdict.duplicates
    assert verdict.late(0.5) < 500 + stall.worst_ms


def check_outage(
    bridge: Bridge,
    destination: str,
    stop: Callable[[], None],
    start: Callable[[], None],
    libraries: Sequence[str],
) -> None:
    """Stop the broker while applications publish most of their messages; they must not fail."""
    bridge.start_workers(2)
    target = bridge.namespace
    applications = [Application(bridge, library, target, seconds=6) for library in libraries]
    with ExitStack() as stack:
        processes = [stack.enter_context(application.running()) for application in applications]
        for application in applications:
            application.wait_accepted(MESSAGES // 5)
        stop()
        for application in applications:
            application.wait_accepted(MESSAGES * 4 // 5)
        start()
        for process in processes:
            assert process.wait(DEADLINE_S) == 0
    for application in applications:
        application.promise(bridge, destination)
    check_all_arrived(bridge)
    assert not bridge.dead()


@pytest.mark.slow
def test_applications_do_not_notice_that_rabbitmq_is_down(
    make_bridge: MakeBridge, own_rabbitmq: RabbitMQNode, namespace: str
) -> None:
    bridge = make_bridge({"rabbitmq": own_rabbitmq.url})
    destination = bridge.rabbitmq_queue(namespace)
    check_outage(
        *(bridge, destination),
        *(lambda: own_rabbitmq.ctl("stop_app"), lambda: own_rabbitmq.ctl("start_app")),
        ["pika", "kombu", "aio_pika"],
    )


@pytest.mark.slow
def test_applications_do_not_notice_that_kafka_is_down(
    make_bridge: MakeBridge, own_kafka: KafkaNode, namespace: str
) -> None:
    bridge = make_bridge({"kafka": own_kafka.url})
    destination = bridge.kafka_topic(namespace)
    check_outage(
        *(bridge, destination, own_kafka.kill, own_kafka.start), ["confluent_kafka", "aiokafka"]
    )
