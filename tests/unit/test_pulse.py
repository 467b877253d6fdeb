"""The pulse: when it beats, and what an error of one part does to the others."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from delaybridge.errors import StoreError, StoreUnavailable
from delaybridge.store.protocol.verbs import RedisCommand, plain, request
from delaybridge.worker.pulse import Pulse, next_beat_s
from tests.rigs.waiting import DEADLINE_S

NOW_US = 1_795_000_000_500_000


class Answering:
    """Stands for the store: answers each command with its last word, or as told."""

    timeout_s = 1.0

    def __init__(self) -> None:
        self.calls: list[list[str]] = []
        self.answers: dict[str, Any] = {}
        self.silent = False
        self.gate: asyncio.Event | None = None
        self.under_way = self.most_under_way = 0

    async def run_each(
        self, commands: Sequence[RedisCommand[Any]], *, redis_only: bool
    ) -> list[Any]:
        assert redis_only
        self.under_way += 1
        self.most_under_way = max(self.most_under_way, self.under_way)
        for command in commands:
            request(command)  # raises as the wire does
        self.calls.append([str(c.args[-1]) if c.args else c.name for c in commands])
        if self.gate is not None:
            await self.gate.wait()
        self.under_way -= 1
        if self.silent:
            return [StoreUnavailable("redis: no answer")] * len(commands)
        return [NOW_US if c.name == "TIME" else self._answer(c) for c in commands]

    def _answer(self, command: RedisCommand[Any]) -> Any:
        return self.answers.get(str(command.args[-1]), str(command.args[-1]))


class Asking:
    """A part that asks for the given words and keeps the replies."""

    def __init__(self, name: str, *words: Any, fails: Callable[[], bool] = lambda: False) -> None:
        self.name, self.words, self._fails = name, words, fails
        self.taken: list[Sequence[Any]] = []

    def commands(self) -> list[RedisCommand[Any]]:
        if self._fails():
            raise ValueError(f"{self.name} cannot say what it wants")
        return [plain("GET", word) for word in self.words]

    def take_replies(self, replies: Sequence[Any]) -> None:
        self.taken.append(replies)


def beats(pulse: Pulse, count: int = 1) -> None:
    async def main() -> None:
        for _ in range(count):
            await pulse.beat()

    asyncio.run(main())


def test_all_parts_share_one_pipeline_and_each_gets_its_own_replies() -> None:
    store, a, b = Answering(), Asking("a", "x", "y"), Asking("b", "z")
    beats(Pulse(store, [a, Asking("quiet"), b]))  # type: ignore[arg-type]
    assert store.calls == [["TIME", "x", "y", "z"]]
    assert (a.taken, b.taken) == ([["x", "y"]], [["z"]])


def test_while_no_part_asks_anything_redis_is_not_called() -> None:
    store, quiet = Answering(), Asking("quiet")
    beats(Pulse(store, [quiet]), 3)  # type: ignore[arg-type]
    assert not store.calls
    assert not quiet.taken


def test_a_damaged_key_reaches_its_part_and_is_logged_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    store, bad, good = Answering(), Asking("bad", "x"), Asking("good", "y")
    error = store.answers["x"] = StoreError("redis: WRONGTYPE")
    pulse = Pulse(store, [bad, good])  # type: ignore[arg-type]
    with caplog.at_level(logging.INFO):
        beats(pulse, 3)
        assert (bad.taken, good.taken) == ([[error]] * 3, [["y"]] * 3)
        assert caplog.text.count("pulse_failed part=bad") == 1
        del store.answers["x"]
        beats(pulse, 2)
    assert caplog.text.count("pulse_mended part=bad") == 1
    assert "good" not in caplog.text


@pytest.mark.parametrize("words", [("x",), (object(),)], ids=["raises", "cannot be sent"])
def test_a_part_that_fails_does_not_stop_the_others(
    words: tuple[Any, ...], caplog: pytest.LogCaptureFixture
) -> None:
    store, good = Answering(), Asking("good", "y")
    bad = Asking("bad", *words, fails=lambda: words == ("x",))
    beats(Pulse(store, [bad, good]), 3)  # type: ignore[arg-type]
    assert good.taken == [["y"]] * 3
    assert caplog.text.count("pulse_failed part=bad") == 1


def test_a_part_that_fails_on_its_replies_does_not_stop_the_others(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, bad, good = Answering(), Asking("bad", "x"), Asking("good", "y")
    monkeypatch.setattr(bad, "take_replies", lambda replies: 1 / 0)
    beats(Pulse(store, [bad, good]), 3)  # type: ignore[arg-type]
    assert good.taken == [["y"]] * 3
    assert caplog.text.count("pulse_failed part=bad") == 1


def test_a_silent_redis_is_told_to_every_part_and_not_logged_here(
    caplog: pytest.LogCaptureFixture,
) -> None:
    store, a, b = Answering(), Asking("a", "x"), Asking("b", "y")
    store.silent = True
    beats(Pulse(store, [a, b]), 2)  # type: ignore[arg-type]
    assert [type(r) for (r,) in a.taken + b.taken] == [StoreUnavailable] * 4
    assert not caplog.text


async def test_no_two_beats_are_under_way_at_a_time() -> None:
    store = Answering()
    store.gate = asyncio.Event()
    pulse = Pulse(store, [Asking("a", "x")])  # type: ignore[arg-type]
    running = asyncio.create_task(pulse.run())
    last = asyncio.create_task(pulse.beat())
    while not store.calls:
        await asyncio.sleep(0)
    store.gate.set()
    await last
    running.cancel()
    assert len(store.calls) >= 2  # the next second may have begun
    assert store.most_under_way == 1


async def test_a_cancelled_beat_does_not_block_the_next() -> None:
    store = Answering()
    store.gate = asyncio.Event()
    pulse = Pulse(store, [Asking("a", "x")])  # type: ignore[arg-type]
    running = asyncio.create_task(pulse.run())
    while not store.calls:
        await asyncio.sleep(0)
    running.cancel()
    store.gate.set()
    async with asyncio.timeout(DEADLINE_S):
        await pulse.beat()


def test_beats_come_once_a_second_without_drift() -> None:
    planned_s = 10.0
    for _ in range(100):  # each beat starts 3 ms late and takes 20 ms
        planned_s = next_beat_s(planned_s, planned_s + 0.023, None, 0.5)
    assert planned_s == pytest.approx(110.0)


def test_beats_that_were_missed_are_not_made_up_for() -> None:
    assert next_beat_s(10.0, 14.2, None, 0.5) == pytest.approx(15.0)
    assert next_beat_s(10.0, 11.0, None, 0.5) == pytest.approx(12.0)


@given(ahead_s=st.floats(-1e6, 1e6), phase_s=st.floats(0.35, 0.65), late_s=st.floats(0.0, 0.01))
def test_after_two_beats_the_phase_is_right_and_no_pause_exceeds_a_second(
    ahead_s: float, phase_s: float, late_s: float
) -> None:
    planned_s = 10.0
    for _ in range(3):
        before_s = planned_s
        planned_s = next_beat_s(planned_s, planned_s + late_s, ahead_s, phase_s)
        assert 0 < planned_s - before_s <= 1.0 + 1e-6
    off_s = (planned_s + ahead_s - phase_s + 0.5) % 1 - 0.5
    assert abs(off_s) <= 0.051
