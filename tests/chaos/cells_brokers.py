"""Cells whose fault is in a broker, or on the way to it."""

from __future__ import annotations

from collections.abc import Callable
from operator import methodcaller as order
from typing import Any

from tests.chaos.cell import Cell, Setup
from tests.chaos.site import WINDOW, Site
from tests.rigs.bridge import rabbitmq_channel
from tests.rigs.waiting import until

CONFIRMS = {
    "PUBLISH__CONFIRM_TIMEOUT_S": "5",
    "PUBLISH__HEARTBEAT_S": "5",
    "PUBLISH__BLOCKED_CONNECTION_TIMEOUT_S": "5",
}
QUICK = {"RETRY__BASE_MS": "200", "RETRY__MAX_MS": "2000"}
PROXIED = Setup(through=("broker",))
TWO = Setup(broker="own-rabbitmq", other=True)
Order = Callable[[Any], Any]  # to a broker


def reset_every(seconds: float) -> Callable[[Site], None]:
    def run(site: Site) -> None:
        while site.is_loading:
            with site.fault(after_s=3):
                site.silence(site.broker_proxy, 0.3)
            site.wait(seconds)

    return run


def swallow_confirms(site: Site) -> None:
    with site.fault(after_s=4):
        for mode in ("blackhole", "blackhole_down"):
            site.broker_proxy.mode = mode
            site.wait(5)
        site.proxies.reset(site.broker_proxy)
        site.broker_proxy.mode = "pass"


def off_and_on(off: Order, on: Order, seconds: float, after_s: float = 5) -> Callable[[Site], None]:
    """The broker gets an order, and after this time the other one."""

    def run(site: Site) -> None:
        with site.fault(after_s=after_s):
            off(site.broker)
            site.wait(seconds)
            on(site.broker)

    return run


def alarm(setting: str, on: str, off: str) -> Callable[[Site], None]:
    return off_and_on(order("ctl", setting, on), order("ctl", setting, off), 8, after_s=3)


def unbind(site: Site) -> None:
    queue = site.namespace
    with site.fault(after_s=3):
        with rabbitmq_channel(site.bridge.brokers["rabbitmq"]) as channel:
            channel.queue_unbind(queue, queue, "#")
        site.wait(3)
        with rabbitmq_channel(site.bridge.brokers["rabbitmq"]) as channel:
            channel.queue_bind(queue, queue, "#")


def delete_the_exchange(site: Site) -> None:
    name = site.namespace
    with site.fault(after_s=5):
        with rabbitmq_channel(site.bridge.brokers["rabbitmq"]) as channel:
            channel.exchange_delete(name)
        site.wait(3)
        with rabbitmq_channel(site.bridge.brokers["rabbitmq"]) as channel:
            channel.exchange_declare(name, "topic", durable=True)
            channel.queue_bind(name, name, "#")


def one_is_too_large(site: Site) -> None:
    receipt = site.bridge.client.schedule(site.main, b"x" * 200_000, delay=1, id="too-large")
    site.expect("I1", "it is accepted", receipt == "created")
    until(lambda: "too-large" in site.bridge.dead(), "the large one is dead")


def refuse_when_full(site: Site) -> None:
    """For 3 s the only queue of the exchange is full, and refuses: every publish is nacked."""
    name, main = f"{site.namespace}-full", site.namespace
    with site.fault(after_s=6):
        with rabbitmq_channel(site.bridge.brokers["rabbitmq"]) as channel:
            full = {"x-max-length": 1, "x-overflow": "reject-publish"}
            channel.queue_declare(name, durable=True, arguments=full)
            channel.confirm_delivery()
            channel.basic_publish("", name, b"it is full now")
            channel.queue_bind(name, main, "#")
            channel.queue_unbind(main, main, "#")
            site.wait(3)
            channel.queue_bind(main, main, "#")
            channel.queue_delete(name)
    site.expect("I1", "attempts are spread over time: none is dead", not site.bridge.dead())


def refuse_permission(site: Site) -> None:
    with site.fault(after_s=20):
        site.broker.ctl("set_permissions", "guest", ".*", "^$", ".*")
        site.wait(3)
        site.broker.ctl("set_permissions", "guest", ".*", ".*", ".*")
    site.finish_load()
    site.wait_drained()
    site.expect("I1", "none is in the dead set", not site.bridge.dead())


def change_the_password(site: Site) -> None:
    """Connections are cut, and nobody who knows the old password gets a new one for 4 s."""
    with site.fault(after_s=20):
        site.broker.ctl("change_password", "guest", "another")
        site.broker.ctl("close_all_connections", "the password was changed")
        site.wait(4)
        site.broker.ctl("change_password", "guest", "guest")
    site.expect("I1", "none is in the dead set", not site.bridge.dead())
    said = [name for name, log in site.logs().items() if "ACCESS_REFUSED" in log]
    site.expect("I14", "the logs name the refusal", set(site.bridge.workers) <= {*said})


def kafka_is_slow(site: Site) -> None:
    """Answers take longer than a record may: its outcome is unknown."""
    with site.fault(after_s=8):
        site.broker_proxy.delay_s = 4
        site.wait(7)
        site.broker_proxy.delay_s = 0


def throttle(site: Site) -> None:
    """The broker gets about 100 messages a second; a burst of 3,000 is due for it."""
    site.burst(1000, first_s=2)
    with site.fault(after_s=0):
        site.broker_proxy.bytes_per_s = 30_000
        site.wait(site.seconds)
        site.broker_proxy.bytes_per_s = 0


def throttle_a_large_burst(site: Site) -> None:
    """More than the workers' windows hold is due at once, and the broker takes 40 a second."""
    site.burst(24_000, first_s=8)
    with site.fault(after_s=0):
        site.broker_proxy.bytes_per_s = 16_000
        site.wait(60)
        site.broker_proxy.bytes_per_s = 0


def burst(count: int) -> Callable[[Site], None]:
    def run(site: Site) -> None:
        site.burst(count, first_s=4)

    return run


def one_broker_away_at_the_start(site: Site) -> None:
    with site.fault(after_s=3):
        site.broker_proxy.mode = "blackhole"
        site.proxies.reset(site.broker_proxy)
        for name in site.bridge.workers:
            site.bridge.kill_worker(name)
        for _ in range(2):
            site.bridge.start_worker(site.workers_redis)
        site.wait(6)
        site.broker_proxy.mode = "pass"
        site.proxies.reset(site.broker_proxy)


def rabbitmq(id: str, fault: str, expects: str, run: Callable[[Site], None], **more: Any) -> Cell:
    return Cell(id=id, component="RabbitMQ", fault=fault, expects=expects, run=run, **more)


CELLS = [
    rabbitmq(
        "F30",
        "nothing passes for 0.3 s, and the connection is reset, every 2 s",
        "nothing is lost; each reset repeats at most what was in flight",
        reset_every(2),
        is_test=True,
        setup=PROXIED,
        duplicates=5 * 2 * WINDOW,
    ),
    rabbitmq(
        "F31",
        "nothing passes for 5 s, then no confirm arrives for 5 s",
        "unknown after the confirm time-out (5 s), and tried again; nothing is lost",
        swallow_confirms,
        is_test=True,
        setup=Setup(through=("broker",), settings={**CONFIRMS, **QUICK}),
        duplicates=8 * 2 * WINDOW,
        back_off_ms=10_000,
    ),
    rabbitmq(
        "F32",
        "memory alarm for 8 s: it blocks its publishers",
        "what is due waits, without an attempt; memory is bounded; others are on time",
        alarm("set_vm_memory_high_watermark", "0.00000001", "0.6"),
        is_test=True,
        setup=TWO,
        duplicates=2 * WINDOW,
    ),
    rabbitmq(
        "F33",
        "disk alarm for 8 s",
        "as with a memory alarm",
        alarm("set_disk_free_limit", "900GB", "50MB"),
        setup=TWO,
        duplicates=2 * WINDOW,
    ),
    rabbitmq(
        "F34",
        "stopped and started again (stop_app)",
        "nothing is lost, others are on time",
        off_and_on(order("ctl", "stop_app"), order("ctl", "start_app"), 4),
        is_test=True,
        setup=TWO,
        duplicates=2 * WINDOW,
        back_off_ms=15_000,
    ),
    rabbitmq(
        "F35",
        "killed (SIGKILL) and started again",
        "nothing is lost, others are on time",
        off_and_on(order("kill"), order("start"), 2),
        setup=TWO,
        duplicates=2 * WINDOW,
        back_off_ms=15_000,
    ),
    rabbitmq(
        "F36",
        "for 3 s no queue is bound",
        "the message is returned, and tried again or put into the dead set; no duplicate",
        unbind,
        is_test=True,
        setup=Setup(settings=QUICK),
    ),
    rabbitmq(
        "F37",
        "the exchange is deleted for 3 s",
        "messages wait, or are in the dead set; other destinations are on time",
        delete_the_exchange,
        is_test=True,
        setup=Setup(other=True, settings=QUICK),
        duplicates=2 * WINDOW,
    ),
    rabbitmq(
        "F38",
        "a message is too large for the broker",
        "it is put into the dead set; others are not affected",
        one_is_too_large,
        setup=Setup(
            broker="own-rabbitmq",
            broker_config="max_message_size = 100000\n",
            settings={"RETRY__MAX_ATTEMPTS": "3", **QUICK},
        ),
        duplicates=2 * WINDOW,
    ),
    rabbitmq(
        "F39",
        "for 3 s the only queue is full, and refuses (nack)",
        "tried again with back-off; none is given up",
        refuse_when_full,
        setup=Setup(settings=QUICK),
        duplicates=WINDOW,
    ),
    rabbitmq(
        "F41",
        "the permission to write is withdrawn for 3 s",
        "the destination waits, no attempt is counted",
        refuse_permission,
        setup=Setup(broker="own-rabbitmq"),
        back_off_ms=30_000,
        duplicates=2 * WINDOW,
    ),
    rabbitmq(
        "F41b",
        "the password is changed, connections are cut; after 4 s the old one is valid again",
        "messages wait, no attempt is counted; the logs name the refusal; others are on time",
        change_the_password,
        setup=TWO,
        back_off_ms=30_000,
        duplicates=2 * WINDOW,
    ),
    Cell(
        id="F43",
        component="Kafka",
        fault="stopped (SIGSTOP) for 5 s",
        expects="nothing is lost or repeated: it answers within the time that a record has",
        run=off_and_on(order("pause"), order("resume"), 5, after_s=3),
        is_test=True,
        setup=Setup(broker="own-kafka"),
    ),
    Cell(
        id="F43b",
        component="Kafka",
        fault="killed (SIGKILL) and started again",
        expects="nothing is lost, others are on time",
        run=off_and_on(order("kill"), order("start"), 3),
        is_test=True,
        setup=Setup(broker="own-kafka", other=True),
        duplicates=2 * WINDOW,
        back_off_ms=15_000,
    ),
    Cell(
        id="F44",
        component="way to Kafka",
        fault="answers take longer than a record may take (3 s) for 7 s",
        expects="the outcome is unknown; what was in flight may come twice",
        run=kafka_is_slow,
        is_test=True,
        setup=Setup(broker="own-kafka", through=("broker",), settings={**CONFIRMS, **QUICK}),
        duplicates=8 * 2 * WINDOW,
        back_off_ms=15_000,
    ),
    rabbitmq(
        "F65",
        "one destination takes about 60 messages a second; 1,000 are due for it at once",
        "others are on time; no duplicate, no restart",
        throttle,
        is_test=True,
        setup=Setup(through=("broker",), other=True, load={"large": 0.0}),
    ),
    rabbitmq(
        "F55",
        "30,000 messages are due in one millisecond",
        "no lease is lost, nothing is lost or repeated, memory is bounded",
        burst(30_000),
        setup=Setup(settings={"PUBLISH__WINDOW_MESSAGES": "10000"}),
        back_off_ms=30_000,
    ),
    rabbitmq(
        "F66",
        "24,000 messages are due at once for a destination that takes about 40 a second for 60 s; "
        "leases of 2 s",
        "others are on time; no duplicate, no restart",
        throttle_a_large_burst,
        setup=Setup(through=("broker",), other=True, load={"large": 0.0}),
        back_off_ms=60_000,
        seconds=60,
    ),
    rabbitmq(
        "F72",
        "one of two brokers is silent while the workers start",
        "messages for the other one are on time from the start",
        one_broker_away_at_the_start,
        setup=Setup(through=("broker",), other=True),
        duplicates=2 * 2 * WINDOW,
        late_ms=5000,  # a lease and the start
    ),
]
