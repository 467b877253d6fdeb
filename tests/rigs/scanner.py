"""A scanner on a real Redis whose time stands still: each pass is made when the test says so.

The scripts are given the test's time as well, so that nothing here depends on a clock.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple, Self

from delaybridge.client import AsyncClient
from delaybridge.events import Event
from delaybridge.message import Delivery, Limits, Message
from delaybridge.publish.memory import MemoryPublisher
from delaybridge.scan.lanes.lane import Broker
from delaybridge.scan.lanes.lanes import Lanes
from delaybridge.scan.lanes.retry import RetryPolicy
from delaybridge.scan.leases.clock import StoreClock
from delaybridge.scan.leases.session import Session
from delaybridge.scan.scanner import Scanner
from delaybridge.scan.wheel.claiming import ScanOptions
from delaybridge.store.calls import Calls
from delaybridge.store.namespace import registry
from delaybridge.store.namespace.rules import Rule, Rules
from delaybridge.store.protocol import keys
from delaybridge.store.protocol.bucket import Bucket
from delaybridge.store.protocol.verbs import RedisCommand
from delaybridge.store.redis.store import AsyncStore
from tests.rigs.waiting import PATIENCE_S

NOW_MS = 1_800_000_000_000
SOON_MS = NOW_MS + 100
TTL_MS = 600_000
TURNS_OF_THE_LOOP = 5  # a report, the ring it causes, and what that wakes
BROKERS = {"memory": "memory://", "b": "memory://", "rabbit": "amqp://localhost"}
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class Publish(NamedTuple):
    """One message handed to a broker. at_ms: when."""

    id: str
    at_ms: int
    due_ms: int
    attempt: int


class TimedBucket(Bucket):
    """A bucket whose owner verbs carry the test's time instead of asking the store's clock."""

    now_ms: Callable[[], int]

    def claim(self, *args: Any, **options: Any) -> RedisCommand[Any]:
        return super().claim(*args, **options, now_ms=self.now_ms())

    def fire(self, *args: Any) -> RedisCommand[Any]:
        return super().fire(*args, now_ms=self.now_ms())

    def retry(self, *args: Any) -> RedisCommand[Any]:
        return super().retry(*args, now_ms=self.now_ms())

    def bury(self, *args: Any) -> RedisCommand[Any]:
        return super().bury(*args, now_ms=self.now_ms())

    def settle_once(self, *args: Any) -> RedisCommand[Any]:
        return super().settle_once(*args, now_ms=self.now_ms())

    def reclaim(self, *args: Any) -> RedisCommand[Any]:
        return super().reclaim(*args, now_ms=self.now_ms())


class GatedStore(AsyncStore):
    """A store that holds back the answers to chosen verbs until they are let go.

    sent: every verb that was sent, in order. stuck: how many calls wait for an answer held back.
    """

    def __init__(self, url: str, *, timeout_s: float = PATIENCE_S) -> None:
        super().__init__(url, timeout_s=timeout_s)
        self.sent: list[str] = []
        self.stuck = 0
        self._gates: dict[str, asyncio.Event] = {}

    def hold(self, verb: str) -> None:
        """From now on answers to this verb arrive only after `let_go`."""
        self._gates[verb] = asyncio.Event()

    def let_go(self, verb: str) -> None:
        self._gates.pop(verb).set()

    async def _answered(self, commands: Sequence[RedisCommand[Any]]) -> Any:
        names = [command.name for command in commands]
        self.sent += names
        answers = await super()._answered(commands)
        for gate in [gate for verb, gate in self._gates.items() if verb in names]:
            self.stuck += 1
            await gate.wait()
            self.stuck -= 1
        return answers


class StillAlarm:
    """An alarm that never goes off by itself; records that it was rung."""

    def __init__(self) -> None:
        self.rang = False

    def ring(self) -> None:
        self.rang = True

    def set(self, at_s: float | None) -> None:
        """Time is the test's."""

    async def wait(self) -> None:
        """Scan again at once."""
        await asyncio.sleep(0)


class Broker_(MemoryPublisher):
    """The memory publisher, with a list of the messages it was handed, and when."""

    def __init__(self, rig: Rig, name: str) -> None:
        super().__init__(
            name, "memory://", report=rig.report, on_change=lambda: rig.alarm.ring(), options=None
        )
        self._rig = rig
        self.taken: list[Publish] = []

    def publish(self, deliveries: Sequence[Delivery]) -> None:
        now_ms = self._rig.store_ms
        self.taken += [Publish(d.id, now_ms, d.due_ms, d.attempt) for d in deliveries]
        super().publish(deliveries)

    @property
    def ids(self) -> list[str]:
        return [publish.id for publish in self.taken]


class Rig:
    """Scanner, lanes and leases of one worker.

    options: of `ScanOptions`. events: what was emitted. lost: sessions found to be over, with why.
    """

    def __init__(
        self,
        url: str,
        namespace: str,
        *,
        buckets: int = 4,
        window: int = 1000,
        window_bytes: int = 2**25,
        max_attempts: int = 3,
        scanner_url: str | None = None,
        lacks: str | None = None,
        dead_letters: Mapping[str, str] = {},
        rates_of: str | None = None,
        **options: int,
    ) -> None:
        """scanner_url: how the scanner reaches Redis, if not like the client. lacks: a broker.

        rates_of: a namespace whose rates it shares, if not its own.
        """
        self.now_ms, self.step_ms = NOW_MS, 0
        self.namespace = namespace
        self.calls = Calls(namespace, BROKERS, buckets, Limits())
        self.client = AsyncClient(url, namespace=namespace, buckets=buckets, brokers=BROKERS)
        self.store = GatedStore(scanner_url or url)
        self.alarm = StillAlarm()
        self.events: list[Event] = []
        self.lost: list[tuple[Session, str]] = []
        self.memory, self.other = Broker_(self, "memory"), Broker_(self, "b")
        self.clock = StoreClock(monotonic=lambda: self.now_ms / 1000)
        self.clock.observe(NOW_MS * 1000, NOW_MS / 1000, NOW_MS / 1000)
        self.rabbit = Broker_(self, "rabbit")  # its messages are encoded for RabbitMQ
        brokers = {"memory": self.memory, "b": self.other, "rabbit": self.rabbit}
        kinds = {"memory": "memory", "b": "memory", "rabbit": "rabbitmq"}
        self.lanes = Lanes(
            {n: Broker(kinds[n], publisher) for n, publisher in brokers.items() if n != lacks},
            RetryPolicy(max_attempts=max_attempts, base_ms=1000, jitter=0.0),
            self.events.append,
            window_messages=window,
            window_bytes=window_bytes,
            dead_letters=dead_letters,
        )
        self.scanner = Scanner(
            *(self.store, self.lanes, self.clock, self.alarm, self.events.append),  # type: ignore[arg-type]
            ScanOptions(**options),
            lost=self.lose,
            damaged=lambda session, error: self.lose(session, str(error)),
            retake=self.lose,
            allow=lambda wanted: registry.allow(
                rates_of or namespace, wanted, now_ms=self.store_ms
            ),
        )
        self.sessions: dict[int, Session] = {}
        self._others: set[asyncio.Task[Any]] = set()

    async def __aenter__(self) -> Self:
        self._others = asyncio.all_tasks()
        for bucket in await self.store.complete(self.calls.open()):
            await self.take(bucket.number)
        await self.quiet()
        return self

    async def __aexit__(self, *exc: object) -> None:
        for task in self._tasks():
            task.cancel()
        await self.client.close()
        await self.store.close()
        if exc[0] is None and self.scanner.calls.failure is not None:
            raise self.scanner.calls.failure

    # leases

    async def take(self, number: int, owner: str = "w:1") -> Session:
        """Acquire a bucket and work on it."""
        bucket = TimedBucket(self.namespace, number, self.calls.birth)
        bucket.now_ms = lambda: self.store_ms
        taken = await self.store.run_one(bucket.acquire(owner, TTL_MS))
        assert taken.token is not None, f"bucket {number} is held by {taken.holder}"
        session = Session(bucket, taken.token, taken.turn, TTL_MS, 0.0)
        self.sessions[number] = session
        self.scanner.begin(session)
        return session

    async def expire(self, number: int) -> None:
        """The lease of a bucket runs out, and its owner does not know."""
        await self.store.redis.delete(keys.bucket_key(self.namespace, number, "lease"))

    def lose(self, session: Session, reason: str) -> None:
        """The lease of a session is found to be lost."""
        if session.alive:
            session.end()
            self.lost.append((session, reason))
            self.scanner.session_over(session)

    def report(self, *args: Any) -> None:
        self.scanner.report(*args)

    # rules

    async def steer(self, rules: Mapping[str, Rule]) -> None:
        """These rules are in force from now on, by place."""
        self.lanes.rules_changed(Rules(rules))
        await self.quiet()

    # time

    @property
    def store_ms(self) -> int:
        """The time on the store's clock, which the test may have set by `step_ms`."""
        return self.now_ms + self.step_ms

    @property
    def known_ms(self) -> int:
        """The same time as the worker knows it."""
        return self.now_ms + round(self.clock._offset() * 1000)

    def pass_(self) -> int | None:
        """One pass now; the tasks that it starts have not run yet when this returns."""
        self.alarm.rang = False
        return self.scanner.scan(self.known_ms)

    async def quiet(self) -> int | None:
        """Pass after pass at this same instant until nothing more happens; when to look again."""
        while True:
            look_ms = self.pass_()
            while len(tasks := self._tasks()) > self.store.stuck:
                await asyncio.wait(tasks, timeout=0.002, return_when=asyncio.FIRST_COMPLETED)
            for _ in range(TURNS_OF_THE_LOOP):
                await asyncio.sleep(0)
            at_once = look_ms is not None and look_ms <= self.known_ms
            if not (self.alarm.rang or at_once) and len(self._tasks()) <= self.store.stuck:
                return look_ms

    async def at(self, now_ms: int) -> int | None:
        """Set the time, and let everything happen that happens by itself."""
        self.now_ms = now_ms
        return await self.quiet()

    async def hurry_until(self, end_ms: int) -> None:
        """A pass each millisecond, while tasks of earlier ones are still under way."""
        while self.now_ms < end_ms:
            self.now_ms += 1
            self.pass_()
            if tasks := self._tasks():
                await asyncio.wait(tasks, timeout=0.002, return_when=asyncio.FIRST_COMPLETED)
            await asyncio.sleep(0)

    async def live_until(self, end_ms: int) -> None:
        """Look whenever the scanner asks to, and at the end."""
        look_ms = await self.quiet()
        while look_ms is not None:
            at_ms = look_ms + self.now_ms - self.known_ms
            if at_ms >= end_ms:
                break
            look_ms = await self.at(max(at_ms, self.now_ms + 1))
        await self.at(end_ms)

    def begin(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Start work that runs next to the scanner and waits for it."""
        task = asyncio.get_running_loop().create_task(work)
        self._others.add(task)
        return task

    async def until(self, work: asyncio.Task[Any]) -> None:
        """Let time pass, a millisecond at a time, until the work has ended."""
        while not work.done():
            await self.at(self.now_ms + 1)
        await work

    def _tasks(self) -> set[asyncio.Task[Any]]:
        me = asyncio.current_task()
        return {task for task in asyncio.all_tasks() - self._others if task is not me}

    # messages

    async def schedule(self, *messages: Message) -> None:
        for first in range(0, len(messages), 1000):
            receipts = await self.client.schedule_many(messages[first : first + 1000])
            assert {receipt.answer for receipt in receipts} == {"created"}

    async def send(self, *messages: Message) -> None:
        """Schedule; the next pass claims those that are due within the scanner's window."""
        await self.schedule(*messages)
        self.scanner.wake_all()

    async def claim(self, *messages: Message) -> None:
        """Schedule, and have the scanner claim what is due within its window."""
        await self.send(*messages)
        await self.quiet()

    async def state(self, id: str) -> str | None:
        """A message's state; None once it is settled."""
        stored = await self.client.get(id)
        return None if stored is None else stored.state.value

    async def raw(self, key: str, number: int = 0) -> Any:
        """A zset of a bucket, with its scores."""
        name = keys.bucket_key(self.namespace, number, key)
        return await self.store.redis.zrange(name, 0, -1, withscores=True)


RigFactory = Callable[..., Rig]


def when(due_ms: int) -> datetime:
    return EPOCH + timedelta(milliseconds=due_ms)


def message(id: str, due_ms: int, destination: str = "memory:q", **options: Any) -> Message:
    return Message(destination, options.pop("body", b"x"), at=when(due_ms), id=id, **options)
