"""How a publisher keeps its connection, with sessions that only take time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from unittest.mock import patch

import pytest

from delaybridge.backoff import Backoff
from delaybridge.errors import PublishUnavailable
from delaybridge.message import Delivery, Destination, Record
from delaybridge.publish import CONFIRMED, Fault, Outcome, PublishOptions, Verdict, link
from delaybridge.publish.link import LinkedPublisher, Owed, Reports
from tests.rigs.outcomes import NACK
from tests.rigs.waiting import until_async

LASTING_S = 60.0


class ScriptedPublisher(LinkedPublisher):
    """Each session is a pair: seconds until it opens (None: never opens), seconds that it lasts.

    now_s: the time, which only its sessions move.
    """

    def __init__(self, *sessions: tuple[float | None, float]) -> None:
        self.now_s = 0.0
        self.changes: list[str | None] = []
        self.over = asyncio.Event()
        self._script = list(sessions)
        on_change = lambda: self.changes.append(self.unavailable)  # noqa: E731
        super().__init__(
            "b", "b://", report=lambda *_: None, on_change=on_change, options=PublishOptions()
        )

    def _configure(self, url: str, options: PublishOptions) -> None:
        """There is nothing to read from the URL."""

    async def _connect_until_lost(self) -> None:
        if not self._script:
            self.over.set()
            await asyncio.Event().wait()
        opens_s, lasts_s = self._script.pop(0)
        if opens_s is not None:
            self.now_s += opens_s
            self._opened()
        self.now_s += lasts_s
        self._change("connection_lost: by script")

    def _send(self, deliveries: Sequence[Delivery]) -> None:
        raise AssertionError("nothing is published here")

    async def _check(self, destination: Destination) -> str | None:
        return None

    def _describe(self) -> str:
        return "by script"

    def _abandon(self, reason: str) -> None:
        raise AssertionError("nothing raises here")

    def _is_idle(self) -> bool:
        return True

    async def _disconnect(self) -> None:
        self._change(link.CLOSED)


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The waits that were asked for, in seconds, without jitter; none is waited for."""
    asked: list[float] = []

    class Recording(Backoff):
        def next_s(self, worked_s: float = 0.0) -> float:
            asked.append(super().next_s(worked_s))
            return 0.0

    monkeypatch.setattr(link, "FIRST_WAIT_S", 2.0)
    monkeypatch.setattr(link, "JITTER", 0.0)
    monkeypatch.setattr(link, "Backoff", Recording)
    return asked


async def play(publisher: ScriptedPublisher) -> None:
    """Run all its sessions, then close it."""
    with patch.object(asyncio.get_running_loop(), "time", lambda: publisher.now_s):
        with suppress(PublishUnavailable):
            await publisher.connect()
        await publisher.over.wait()
        await publisher.close(1)


async def test_each_wait_is_twice_the_one_before_up_to_the_longest(waits: list[float]) -> None:
    await play(ScriptedPublisher(*[(None, 0.0)] * 5))
    assert waits == [2, 4, 8, 10, 10]


async def test_a_short_connection_does_not_start_the_back_off_again(waits: list[float]) -> None:
    await play(ScriptedPublisher((0.0, 0.0), (0.0, 0.0), (0.0, 0.0)))
    assert waits == [2, 4, 8]


async def test_a_stable_connection_starts_the_back_off_again(waits: list[float]) -> None:
    await play(ScriptedPublisher((None, 0.0), (None, 0.0), (0.0, LASTING_S), (None, 0.0)))
    assert waits == [2, 4, 2, 4]


async def test_time_spent_connecting_does_not_start_the_back_off_again(waits: list[float]) -> None:
    await play(ScriptedPublisher((None, 0.0), (None, LASTING_S), (LASTING_S, 0.0)))
    assert waits == [2, 4, 8]


async def test_each_change_of_unavailable_is_announced_once(waits: list[float]) -> None:
    publisher = ScriptedPublisher((None, 0.0), (None, 0.0), (0.0, 0.0))
    await play(publisher)
    lost = "connection_lost: by script"
    assert publisher.changes == [lost, None, lost, link.CLOSED]


def test_jitter_shortens_a_wait_by_at_most_its_share() -> None:
    backoff = Backoff(1.0, 1.0, jitter=0.5)
    waits = [backoff.next_s() for _ in range(1000)]
    assert min(waits) >= 0.5
    assert max(waits) <= 1.0
    assert max(waits) - min(waits) > 0.3


def test_after_working_for_long_enough_the_first_wait_applies_again() -> None:
    backoff = Backoff(1.0, 8.0)
    assert [backoff.next_s(worked_s) for worked_s in (0.0, 8.0, 0.0, 8.1, 0.0)] == [1, 2, 4, 1, 2]
    quick = Backoff(1.0, 8.0, steady_s=0.5)
    assert [quick.next_s(worked_s) for worked_s in (0.0, 0.5, 0.6, 0.0)] == [1, 2, 1, 2]


# whatever raises


class RaisingPublisher(ScriptedPublisher):
    """Keeps what it is handed, in `kept`. raises: the name of the method that raises."""

    raises = ""

    def __init__(self) -> None:
        self.kept: list[Delivery] = []
        self.outcomes: list[tuple[Delivery, Outcome]] = []
        super().__init__((0.0, 0.0))
        self._owed = Owed(self._note)
        self._reports = Reports(self._owed.report)

    def _note(self, deliveries: Sequence[Delivery], outcome: Outcome) -> None:
        self.outcomes += [(delivery, outcome) for delivery in deliveries]

    async def _connect_until_lost(self) -> None:
        self._opened()
        self._raise("_connect_until_lost")
        await asyncio.Event().wait()

    def _send(self, deliveries: Sequence[Delivery]) -> None:
        self.kept += deliveries[:1]
        self._raise("_send")
        self.kept += deliveries[1:]

    def _abandon(self, reason: str) -> None:
        self._raise("_abandon")
        kept, self.kept = self.kept, []
        self._reports.add(kept[:1], Outcome(Verdict.REFUSED, reason, Fault.BROKER))

    async def _disconnect(self) -> None:
        self._raise("_disconnect")

    def _raise(self, place: str) -> None:
        if place in self.raises:
            raise RuntimeError("told to")

    async def task(self) -> None:
        raise RuntimeError("told to")

    def callback(self) -> None:
        raise RuntimeError("told to")


@pytest.fixture
async def raising() -> AsyncIterator[RaisingPublisher]:
    made = RaisingPublisher()
    await made.connect()
    yield made
    await made.close(0)


def deliveries(count: int) -> list[Delivery]:
    to = Destination("b", "b", "q")
    return [Delivery(f"{n}", Record("b:q", b""), to, 0, 1) for n in range(count)]


async def outcomes(publisher: RaisingPublisher, count: int) -> list[str]:
    """The verdicts, in the order of the deliveries."""
    await until_async(lambda: len(publisher.outcomes) >= count, "all have outcomes")
    found = sorted(publisher.outcomes, key=lambda pair: int(pair[0].id))
    assert {what.reason for _, what in found} == {"failed: RuntimeError"}
    return [what.verdict.value for _, what in found]


async def test_a_send_that_raises_ends_all_of_its_batch(raising: RaisingPublisher) -> None:
    raising.raises = "_send"
    raising.publish(deliveries(3))
    assert raising.outcomes == [], "never from inside `publish`"
    assert await outcomes(raising, 3) == ["refused", "unknown", "unknown"]


@pytest.mark.parametrize("place", ["task", "callback"])
async def test_a_task_or_a_callback_that_raises_ends_all_that_was_handed_over(
    raising: RaisingPublisher, place: str
) -> None:
    raising.publish(deliveries(3))
    if place == "task":
        raising._spawn(raising.task())
    else:
        raising._guarded(raising.callback)()
    assert await outcomes(raising, 3) == ["refused", "unknown", "unknown"]


async def test_it_does_so_though_giving_up_raises_too(raising: RaisingPublisher) -> None:
    raising.raises = "_send _abandon"
    raising.publish(deliveries(2))
    assert raising.unavailable == "failed: RuntimeError"
    assert await outcomes(raising, 2) == ["unknown", "unknown"]


async def test_after_what_raised_the_next_session_begins(
    waits: list[float], raising: RaisingPublisher
) -> None:
    raising.raises = "_connect_until_lost"
    raising._failed(RuntimeError())
    await until_async(lambda: len(waits) > 2, "it tries again, and again")
    raising.raises = ""
    await until_async(lambda: raising.unavailable is None, "it is connected")
    raising.publish(sent := deliveries(2))
    assert raising.kept == sent


async def test_closing_ends_all_though_it_raises(raising: RaisingPublisher) -> None:
    raising.publish(deliveries(2))
    raising.raises = "_disconnect"
    await raising.close(0)
    assert await outcomes(raising, 2) == ["unknown", "unknown"]
    raising.raises = ""


async def test_closing_does_not_wait_for_a_connection_that_does_not_end(
    raising: RaisingPublisher, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(link, "DISCONNECT_S", 0.01)
    monkeypatch.setattr(raising, "_disconnect", asyncio.Event().wait)
    raising.publish(sent := deliveries(2))
    await raising.close(0)
    closed = Outcome(Verdict.UNKNOWN, link.UNCONFIRMED, Fault.BROKER)
    assert sorted(raising.outcomes, key=lambda pair: pair[0].id) == [(one, closed) for one in sent]


async def test_only_the_first_outcome_of_a_delivery_counts(raising: RaisingPublisher) -> None:
    raising.publish(sent := deliveries(2))
    raising._reports.confirmed(sent[:1])
    raising._reports.add(sent, NACK)
    raising._reports.flush()
    assert raising.outcomes == [(sent[0], CONFIRMED), (sent[1], NACK)]
