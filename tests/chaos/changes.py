"""Changes of the product in the processes of a cell: lost replies, and the mutations.

A mutation is a mistake that somebody might make in the product. Each must turn a cell red
(`make chaos-mutations`): otherwise the suite would not notice that mistake.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from typing import Any

import redis

from tests.chaos import changes_resize, changes_take_over
from tests.chaos.mutation import Mutation, in_script


def make(name: str) -> None:
    """Make the changes of these names, separated by ;, in this process."""
    for each in filter(None, name.split(";")):
        _make(each)


def _make(name: str) -> None:
    what, _, argument = name.partition(":")
    if what == "lose":
        verb, _, share = argument.partition("=")
        lose_replies(verb, float(share or 0.2))
    elif what == "poison":
        die_of(argument.encode())
    elif what == "block":
        block_loop(float(argument))
    elif what == "line":
        changes_take_over.open_lines_late(float(argument))
    elif what == "look":
        look_each(float(argument))
    else:
        MUTATIONS[name].change()


def lose_replies(verb: str, share: float) -> None:
    """Of this share of the calls of a script ("": of all), the reply is lost on its way."""
    from delaybridge.store.protocol.scripts import scripts
    from delaybridge.store.redis.async_wire import AsyncWire

    mark = scripts()[verb][1].encode() if verb else b""
    call = AsyncWire.call

    async def losing(self: Any, requests: Iterable[bytes], *more: Any) -> list[Any]:
        sent = list(requests)
        replies = await call(self, sent, *more)
        if random.random() < share and any(mark in request for request in sent):
            raise redis.ConnectionError("the reply is lost")
        return replies

    AsyncWire.call = losing  # type: ignore[method-assign]


def die_of(body: bytes) -> None:
    """A message with this body kills the worker that is about to publish it."""
    import os

    from delaybridge.publish.rabbitmq.publisher import RabbitMQPublisher

    publish = RabbitMQPublisher.publish

    def dying(self: Any, deliveries: Any) -> None:
        if any(delivery.record.body == body for delivery in deliveries):
            os._exit(137)
        publish(self, deliveries)

    RabbitMQPublisher.publish = dying  # type: ignore[method-assign]


def block_loop(seconds: float) -> None:
    """Two seconds after its first publish, the event loop is busy for so long, once."""
    import asyncio

    from delaybridge.scan.lanes.outcomes import Dispatch

    publish, begun = Dispatch.publish, []

    def publishing(self: Any, now_ms: int) -> None:
        if not begun:
            begun.append(True)
            asyncio.get_running_loop().call_later(2, time.sleep, seconds)
        publish(self, now_ms)

    Dispatch.publish = publishing  # type: ignore[method-assign]


def look_each(seconds: float) -> None:
    """Workers compare the keys of their buckets so often, and read them ten times as slowly."""
    from delaybridge.scan import mending
    from delaybridge.worker import shift

    shift._COMPARE_S, mending._ROUND_S = seconds, 10 * seconds


# mutations


def without_lease_check() -> None:
    for verb in ("claim", "fire", "settle", "retry", "park", "bury"):
        from delaybridge.store.protocol import scripts

        check = "if redis.call('GET', KEYS[1]) ~= ARGV[1] then\n  return false\nend\n"
        in_script(verb, check, "")()
        assert check not in scripts.scripts()[verb][0]


def settle_before_confirm() -> None:
    """The store is told as soon as a message is handed to the broker."""
    from delaybridge.publish import CONFIRMED
    from delaybridge.scan.lanes.outcomes import Dispatch, Outcomes

    hand_over, report = Dispatch._hand_over, Outcomes.report
    made, told, kept = list[Any](), set[int](), list[Any]()
    init = Outcomes.__init__

    def making(self: Any, *parts: Any) -> None:
        init(self, *parts)
        made.append(self)

    def handing_over(self: Any, lane: Any, batch: Any, now_ms: int) -> None:
        hand_over(self, lane, batch, now_ms)
        ours = [copy for copy in batch if copy.session.alive and lane.publisher is not None]
        told.update(map(id, ours))
        kept.extend(ours)  # so that no other gets its id()
        (outcomes,) = (each for each in made if each._dispatch is self)
        report(outcomes, ours, CONFIRMED, now_ms)

    def late(self: Any, deliveries: Any, result: Any, now_ms: int) -> None:
        left = [each for each in deliveries if id(each) not in told]
        if left:
            report(self, left, result, now_ms)

    Outcomes.__init__, Outcomes.report = making, late  # type: ignore[method-assign]
    Dispatch._hand_over = handing_over  # type: ignore[method-assign]


def fire_skipped() -> None:
    """Nobody asks the store before the due time: what was claimed is published."""
    from delaybridge.scan.leases.bucket_calls import BucketCalls
    from delaybridge.store.protocol.replies import Fired

    ask = BucketCalls.ask

    async def asking(self: Any, asked: Any, **options: Any) -> Any:
        rest = {s: [c for c in commands if c.name != "fire"] for s, commands in asked.items()}
        if rest == asked:
            return await ask(self, asked, **options)
        answers = await ask(self, {s: commands for s, commands in rest.items() if commands})
        allowed = Fired(0, {}, self.clock.now_ms() * 1000)
        return {s: [*answers.get(s, []), allowed] for s in asked if s.alive}

    BucketCalls.ask = asking  # type: ignore[method-assign]


def ignore_due() -> None:
    """What is claimed is published at once."""
    from delaybridge.scan.wheel.firing import Publishing

    def publishing(self: Any, now_ms: int) -> None:
        self._dispatch.ready(self.fired)
        self.fired = []
        self._dispatch.publish(now_ms)

    Publishing.publish = publishing  # type: ignore[method-assign]
    from delaybridge.scan.wheel.firing import Firing

    Firing.lead_ms = property(lambda self: 1500, lambda self, lead_ms: None)  # type: ignore


def not_mandatory() -> None:
    """RabbitMQ drops what no queue takes, and confirms it."""
    from delaybridge.amqp import frames

    frames.MANDATORY = b"\x00"


def nack_as_delivered() -> None:
    from delaybridge.publish import CONFIRMED
    from delaybridge.publish.rabbitmq import channel

    channel.NACKED = CONFIRMED


def unknown_as_dropped() -> None:
    """An exception counts as not sent, and the message is given up without a word."""
    from delaybridge.publish import Verdict
    from delaybridge.scan.lanes.outcomes import Outcomes

    failed = Outcomes.failed

    def dropping(self: Any, lane: Any, copies: Any, outcome: Any, now_ms: int) -> None:
        if outcome.verdict is not Verdict.UNKNOWN:
            failed(self, lane, copies, outcome, now_ms)
            return
        for copy in copies:
            copy.session.exits.settle(copy.lot.claim, [copy], lane.label)

    Outcomes.failed = dropping  # type: ignore[method-assign]


def no_reclaim() -> None:
    """A new owner leaves alone what dead ones had claimed."""
    from delaybridge.scan.reclaiming import Reclaiming

    async def nothing(self: Any, sessions: Any) -> None:
        from delaybridge.scan.reclaiming import EarlierSessions

        for session in sessions:
            self._reclaimed(EarlierSessions(session))

    Reclaiming._reclaim = nothing  # type: ignore[method-assign]


def no_back_off() -> None:
    """A message that failed is tried again at once, as often as it takes."""
    from delaybridge.scan.lanes.retry import RetryPolicy

    RetryPolicy.delay_ms = lambda self, attempts, random: 0  # type: ignore[method-assign]


def body_as_text() -> None:
    """A body is decoded and encoded again on its way."""
    from delaybridge.publish.rabbitmq.publisher import RabbitMQPublisher

    publish = RabbitMQPublisher.publish

    def sending(self: Any, deliveries: Any) -> None:
        for delivery in deliveries:
            text = (delivery.record.body or b"").decode(errors="replace")
            delivery.record = replace_body(delivery.record, text.encode())
        publish(self, deliveries)

    RabbitMQPublisher.publish = sending  # type: ignore[method-assign]


def replace_body(record: Any, body: bytes) -> Any:
    import msgspec

    return msgspec.structs.replace(record, body=body)


def ingest_acks_first() -> None:
    """The broker may forget a message before the store has it."""
    from delaybridge import failpoints
    from delaybridge.ingest.rabbitmq.channel import IntakeChannel

    take = IntakeChannel.take_messages

    def taking(self: Any, most: int) -> Any:
        taken = take(self, most)
        for message in taken:
            self._connection.ack(self.number, message.tag, multiple=False)
        if taken:
            failpoints.reach("ingest.stored")
        return taken

    IntakeChannel.take_messages = taking  # type: ignore[method-assign]
    IntakeChannel.ack = lambda self: None  # type: ignore[method-assign]


def bind_as_asked() -> None:
    """A client's queue gets what was to wait."""
    from delaybridge.front.exchanges import Exchanges

    Exchanges._bind = lambda self, method: method.frame  # type: ignore[method-assign]


def wait_elsewhere() -> None:
    """WAIT is asked on a connection that has written nothing: every replica has all of that."""
    from delaybridge.store.redis.durability import Assurance

    Assurance._replicated = lambda self, reply: None  # type: ignore[method-assign]


def never_compare() -> None:
    """The sizes of a bucket's keys always add up, and no page of it looks odd."""
    from delaybridge.scan.mending import Mending
    from delaybridge.store.namespace.orphans import SOUND, KeySizes

    async def look_further(self: Any) -> float:
        return 3600.0

    KeySizes.difference = SOUND  # type: ignore[assignment, misc]
    Mending.look_further = look_further  # type: ignore[method-assign]


def subscribe_once() -> None:
    """A subscription that was lost is not made again."""
    from delaybridge.store.redis.store import AsyncStore

    subscription, subscribed = AsyncStore._subscription, set[int]()

    @asynccontextmanager
    async def once(self: Any, wire: Any) -> AsyncIterator[Any]:
        if id(self) in subscribed:
            await asyncio.Event().wait()
        subscribed.add(id(self))
        async with subscription(self, wire) as found:
            yield found

    AsyncStore._subscription = once  # type: ignore[assignment]


MUTATIONS: dict[str, Mutation] = {
    "pop-without-mirror": Mutation(
        "a claimed message leaves Redis at once, without a copy in the mirror",
        in_script("claim", "redis.call('ZADD', KEYS[3], unpack(pairs_))", "local _ = pairs_"),
        ("F02",),
    ),
    "settle-before-confirm": Mutation(
        "a message counts as delivered once it is handed to the broker",
        settle_before_confirm,
        ("F31",),
    ),
    "fire-skipped": Mutation(
        "no worker asks the store again just before the due time", fire_skipped, ("F01",)
    ),
    "cancel-ignores-maybe": Mutation(
        "cancel answers `cancelled` though an attempt may have arrived",
        in_script("cancel", "and CANCELLED_MAYBE or CANCELLED", "and CANCELLED or CANCELLED"),
        ("F54",),
    ),
    "ignore-due": Mutation("what is claimed is published at once", ignore_due, ("F01",)),
    "not-mandatory": Mutation("RabbitMQ may drop what no queue takes", not_mandatory, ("F36",)),
    "nack-as-delivered": Mutation("a nack counts as a confirm", nack_as_delivered, ("F39",)),
    "unknown-as-dropped": Mutation(
        "a lost connection counts as not sent, and the message is dropped",
        unknown_as_dropped,
        ("F31",),
    ),
    "no-lease-check": Mutation(
        "the scripts of an owner do not look whether it still is one",
        without_lease_check,
        ("F54", "F05"),
    ),
    "no-reclaim": Mutation("no worker takes over what a dead one had", no_reclaim, ("F02",)),
    "no-back-off": Mutation("a failed message is tried again at once", no_back_off, ("F39",)),
    "body-as-text": Mutation("a body is decoded and encoded again", body_as_text, ("F01",)),
    "wait-elsewhere": Mutation(
        "WAIT is asked on another connection than that of the write", wait_elsewhere, ("F14",)
    ),
    "keys-never-compared": Mutation(
        "no worker compares the keys of a bucket with one another", never_compare, ("F75",)
    ),
    "ingest-acks-first": Mutation(
        "ingest acknowledges before the store has the message", ingest_acks_first, ("F59",)
    ),
    "subscribed-once": Mutation(
        "a worker whose wake-up connection was lost does not subscribe again",
        subscribe_once,
        ("F85",),
    ),
    "front-binds-as-asked": Mutation(
        "a front passes on the binds of a delayed exchange", bind_as_asked, ("F82",)
    ),
    **changes_take_over.MUTATIONS,
    **changes_resize.MUTATIONS,
}
