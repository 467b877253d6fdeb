"""B25: what the AMQP front costs: the same raw clients on the broker, and through the front.

    python -m bench.front [MESSAGES] [ROUNDS] [CONNECTIONS] [SECONDS]

Messages of 100 bytes, persistent, on a quorum queue. Each round measures both ways, in turns; the
clients write frames that were encoded before, and cut answers by their size. `of direct` is the
rate's; `by CPU` is direct CPU (client and broker) / (direct + the front's), which does not depend
on how many cores there are. Lateness is counted from the sending of the frame, plus its delay, to
a pika consumer: both through the front, SECONDS of RATE.
"""

from __future__ import annotations

import select
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import NamedTuple
from urllib.parse import urlsplit

from bench.lateness import Lateness, paced, receiving
from bench.rig import (
    BODY,
    Bench,
    Table,
    cpu_seconds,
    open_bench,
    open_rabbitmq,
    open_redis,
    pid_at,
    quorum_queue,
    resident_bytes,
)
from tests.rigs import raw_amqp as amqp
from tests.rigs.bridge import rabbitmq_channel
from tests.rigs.raw_amqp import RawClient
from tests.rigs.waiting import until
from tests.servers.process import free_port
from tests.servers.rabbitmq import rabbitmq_url_of, speaks_amqp

WINDOW, BATCH = 10_000, 250
PREFETCH = 1000
RATE, DELAY_MS = 1000, 2000
ALONE = 1000  # messages whose confirms are waited for one by one
_ACK_SIZE = len(amqp.ack(1, 1))
_TAG_AT = 11  # in an ack's frame


class Way(NamedTuple):
    """To the broker: the port, and the processes between client and queue by their names."""

    port: int
    pids: dict[str, int]

    def used_s(self) -> dict[str, float]:
        """CPU seconds so far; those of this process are the client's."""
        return {name: cpu_seconds(pid) for name, pid in self.pids.items()} | {
            "client": time.process_time()
        }


class Cost(NamedTuple):
    """Messages a second, and microseconds of CPU a message by component."""

    rate: float
    us: dict[str, float]


def measured(way: Way, count: int, run: Callable[[], None]) -> Cost:
    """Run it; what `count` messages took."""
    before, began_s = way.used_s(), time.perf_counter()
    run()
    took_s, after = time.perf_counter() - began_s, way.used_s()
    return Cost(count / took_s, {n: (after[n] - before[n]) / count * 1e6 for n in before})


@contextmanager
def connected(way: Way, *, confirms: bool = False) -> Iterator[RawClient]:
    with RawClient(way.port) as client:
        client.open().open_channel(1, confirms=confirms)
        yield client
        client.call(0, amqp.CLOSE, b"\0\xc8" + amqp.short("") + b"\0\0\0\0")


def publish(way: Way, exchange: str, count: int) -> Cost:
    """Publish with confirms, WINDOW unconfirmed at most."""
    batch = amqp.publish(1, exchange, "key", BODY) * BATCH

    def run() -> None:
        sock, sent, confirmed, unsent, unread = client.sock, 0, 0, b"", b""
        while confirmed < count:
            if not unsent and sent < count and sent - confirmed <= WINDOW - BATCH:
                unsent, sent = batch, sent + BATCH
            readable, writable, _ = select.select([sock], [sock] if unsent else [], [])
            if writable:
                unsent = unsent[sock.send(unsent) :]
            if readable:
                unread += sock.recv(131_072)
                if whole := len(unread) // _ACK_SIZE * _ACK_SIZE:
                    last = whole - _ACK_SIZE + _TAG_AT
                    confirmed = max(confirmed, int.from_bytes(unread[last : last + 8], "big"))
                    unread = unread[whole:]

    with connected(way, confirms=True) as client:
        client.sock.setblocking(False)
        cost = measured(way, count, run)
        client.sock.setblocking(True)
    return cost


def publish_alone(way: Way, exchange: str, count: int) -> float:
    """Publish one by one, each after the confirm of the last; the median in ms."""
    one, took_s = amqp.publish(1, exchange, "key", BODY), []
    with connected(way, confirms=True) as client:
        for _ in range(count):
            began_s = time.perf_counter()
            client.sock.sendall(one)
            client.sock.recv(_ACK_SIZE)
            took_s.append(time.perf_counter() - began_s)
    return statistics.median(took_s) * 1000


def consume(way: Way, queue: str, count: int) -> Cost:
    """Consume so many messages of one size, and acknowledge each by itself."""
    acks = b"".join(amqp.ack(1, tag) for tag in range(1, count + 1))

    def run() -> None:
        sock, seen, size, unread = client.sock, 0, 0, bytearray()
        client.send(1, amqp.CONSUME, b"\0\0" + amqp.short(queue) + b"\1c\0" + amqp.table())
        client.wait((60, 21))
        unread += client.take_unread()
        while seen < count:
            if not size and unread:
                size = first_message_size(unread)
            if size and (whole := len(unread) // size):
                del unread[: whole * size]
                sock.sendall(acks[seen * _ACK_SIZE : (seen + whole) * _ACK_SIZE])
                seen += whole
            else:
                unread += sock.recv(131_072)

    with connected(way) as client:
        client.call(1, amqp.QOS, b"\0\0\0\0" + PREFETCH.to_bytes(2, "big") + b"\0")
        return measured(way, count, run)


def first_message_size(data: bytearray) -> int:
    """Bytes of the three frames of the first message; 0 if they are not whole."""
    at = 0
    for _ in range(3):
        if len(data) < at + 7:
            return 0
        at += int.from_bytes(data[at + 3 : at + 7], "big") + 8
    return at if len(data) >= at else 0


@contextmanager
def front(bench: Bench, broker: Way) -> Iterator[Way]:
    """A running front of this broker."""
    port = free_port()
    bench.start("front", "--listen", f"127.0.0.1:{port}", "--processes", "1")
    until(lambda: speaks_amqp(port), "the front answers")
    yield Way(port, {"front": pid_at(rabbitmq_url_of(port)), **broker.pids})


@contextmanager
def delayed_exchange(way: Way, queue: str) -> Iterator[str]:
    """Declare a delayed exchange through the front, as its clients do, and bind the queue."""
    name, direct = f"{queue}-d", amqp.table(x_delayed_type="direct")
    with connected(way) as client:
        for id, arguments in (
            (amqp.DECLARE, amqp.declare(name, "x-delayed-message", direct)),
            (amqp.QUEUE_BIND, amqp.bind(queue, name, "key")),
        ):
            answer = client.call(1, id, arguments)
            if answer.id != (id[0], id[1] + 1):
                raise RuntimeError(f"{answer.code} {answer.text}")
    try:
        yield name
    finally:
        with rabbitmq_channel(rabbitmq_url_of(way.port)) as channel:
            channel.exchange_delete(name)


def middle(costs: Sequence[Cost]) -> Cost:
    """The medians."""
    us = {name: statistics.median(each.us[name] for each in costs) for name in costs[0].us}
    return Cost(statistics.median(each.rate for each in costs), us)


def compare(out: Table, name: str, direct: Sequence[Cost], passed: Sequence[Cost]) -> None:
    """Print the lines of both ways; the ratio of rates is the median of the rounds' own."""
    ratio = statistics.median(b.rate / a.rate for a, b in zip(direct, passed, strict=True))
    one, other = middle(direct), middle(passed)
    all_us, front_us = sum(one.us.values()), other.us["front"]
    out.line(f"{name}, direct", f"{one.rate:,.0f}/s", "", f"{all_us:.1f} us CPU")
    by_cpu = f"by CPU {all_us / (all_us + front_us):.2f}"
    cpu = f"{front_us:.2f} us of the front"
    out.line(f"{name}, front", f"{other.rate:,.0f}/s", f"{ratio:.2f} of direct", by_cpu, cpu)


def passed_table(ways: Sequence[Way], url: str, count: int, rounds: int) -> None:
    """What passes: publish with confirms, consume, and single publishes; each on a new queue.

    A quorum queue gives back what was acknowledged just before a connection was closed.
    """
    out = Table(
        f"B25 front: {rounds} rounds of {count:,}; targets: rate or by CPU 0.85, "
        "<= 6 us of the front, one by one + 0.2 ms"
    )
    published: tuple[list[Cost], ...] = ([], [])
    consumed: tuple[list[Cost], ...] = ([], [])
    alone_ms: tuple[list[float], ...] = ([], [])
    for number in range(-1, rounds):  # the first one is to warm up
        for way in (0, 1) if number % 2 else (1, 0):
            with quorum_queue(url) as queue:
                published[way].append(publish(ways[way], queue, count))
                consumed[way].append(consume(ways[way], queue, count))
                alone_ms[way].append(publish_alone(ways[way], queue, ALONE))
    compare(out, "publish with confirms", *(costs[1:] for costs in published))
    compare(out, "consume and acknowledge", *(costs[1:] for costs in consumed))
    one, other = (statistics.median(each[1:]) for each in alone_ms)
    out.line("publish one by one, p50", f"{one:.2f} ms direct", f"{other - one:+.2f} ms")


def undelayed_table(way: Way, exchange: str, queue: str, count: int, rounds: int) -> None:
    """Publishes to the delayed exchange without a delay, and to the one behind it."""
    out = Table("undelayed publish to D, at the broker; target: 0.9 of a publish to D.due")
    names, costs = (exchange, f"{exchange}.due"), ([], [])  # type: ignore[var-annotated]
    for number in range(rounds):
        for which in (0, 1) if number % 2 else (1, 0):
            costs[which].append(publish(way, names[which], count))
            with rabbitmq_channel(rabbitmq_url_of(way.port)) as channel:
                channel.queue_purge(queue)
    ratio = statistics.median(a.rate / b.rate for a, b in zip(*costs, strict=True))
    for name, cost in zip(("D", "D.due"), map(middle, costs), strict=True):
        out.line(name, f"{cost.rate:,.0f}/s", f"{cost.us['broker']:.1f} us CPU")
    to, due = (middle(each).us["broker"] for each in costs)
    out.line("D, of D.due", f"{ratio:.2f}", f"by CPU {due / to:.2f}")


def lateness(way: Way, exchange: str, queue: str, rate: int, seconds: float) -> Lateness:
    """How late delayed messages are that are published evenly through the front."""
    with (
        receiving(
            "receive_rabbitmq.py", rabbitmq_url_of(way.port), queue, int(rate * seconds)
        ) as receiver,
        connected(way) as client,
    ):

        def send() -> None:
            due_us = time.time_ns() // 1000 + DELAY_MS * 1000
            headers = amqp.table(x_delay=DELAY_MS, sent_us=due_us)
            client.sock.sendall(amqp.publish(1, exchange, "key", BODY, headers))

        paced(rate, seconds, send)
        return receiver.lateness(DELAY_MS / 1000 + 60)


def lateness_table(ways: Sequence[Way], exchange: str, queue: str, seconds: float) -> None:
    """How late delayed messages are, first without the front on the clients' way."""
    out = Table("delayed messages, p50 / p99 / max; target: 3 / 6 ms through the front")
    for way, name in zip(ways, ("clients at the broker", "through the front"), strict=True):
        late = lateness(way, exchange, queue, RATE, seconds)
        out.line(f"{RATE:,}/s, {name}", str(late), "early!" if late.least < 0 else "")


def idle_bytes(way: Way, count: int) -> float:
    """Memory of the front for each of so many open connections."""
    before = resident_bytes(way.pids["front"])
    with ExitStack() as stack:
        for _ in range(count):
            stack.enter_context(RawClient(way.port)).open()
        return (resident_bytes(way.pids["front"]) - before) / count


def main(
    count: int = 50_000, rounds: int = 5, connections: int = 1000, seconds: float = 10
) -> None:
    """Print all tables."""
    count = -(-count // BATCH) * BATCH
    with (
        open_redis() as redis,
        open_rabbitmq() as broker,
        open_bench(redis.url, rabbitmq=broker.url) as bench,
        quorum_queue(broker.url) as queue,
    ):
        port = urlsplit(broker.url).port or 0
        direct = Way(port, {"broker": pid_at(broker.url)})
        bench.start_worker()
        bench.wait_until_owned()
        with front(bench, direct) as through:
            memory = idle_bytes(through, connections)
            passed_table((direct, through), broker.url, count, rounds)
            with delayed_exchange(through, queue) as exchange:
                undelayed_table(direct, exchange, queue, count, rounds)
                lateness_table((direct, through), exchange, queue, seconds)
    out = Table("idle connections; target: 20 kB of the front each")
    out.line(f"{connections:,} open", f"{memory / 1000:.1f} kB")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
