"""The alarm, with both timers on both event loops, in asyncio's debug mode.

Nothing here asserts how late it rings: only that it rings, and never before its instant.
"""

import asyncio
import errno
import functools
import inspect
import os
import socket
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
import uvloop

from delaybridge.scan.leases import clock as alarm_module
from delaybridge.scan.leases.clock import (
    Alarm,
    LoopTimer,
    Timer,
    TimerDescriptor,
    TimerFactory,
    best_timer,
)
from tests.rigs.waiting import DEADLINE_S

SOON_S = 0.02
FAR_S = 3600.0

linux = pytest.mark.skipif(sys.platform != "linux", reason="timer descriptors are Linux's")

Test = Callable[..., Awaitable[None]]


def in_debug_mode(test: Test) -> Callable[..., None]:
    """Runs the test on a loop in debug mode; whatever that loop reports is an error."""

    @functools.wraps(test)
    def run(*, new_loop: Callable[[], Any] = asyncio.new_event_loop, **given: Any) -> None:
        complaints: list[object] = []
        with asyncio.Runner(debug=True, loop_factory=new_loop) as runner:
            runner.get_loop().set_exception_handler(lambda _, context: complaints.append(context))
            runner.run(asyncio.wait_for(test(**given), DEADLINE_S))
        assert complaints == []

    return run


def on_each_loop(test: Test) -> Callable[..., None]:
    """Runs the test on asyncio's loop and on uvloop."""
    run: Any = in_debug_mode(test)
    new_loop = inspect.Parameter("new_loop", inspect.Parameter.POSITIONAL_OR_KEYWORD)
    kept = inspect.signature(test).parameters.values()
    run.__signature__ = inspect.Signature([new_loop, *kept])
    return run  # type: ignore[no-any-return]


def on_an_alarm(test: Test) -> Callable[..., None]:
    """The same for each timer, with an alarm that is closed behind the test."""

    async def run(timer: TimerFactory) -> None:
        alarm = Alarm(timer)
        await test(alarm)
        alarm.close()

    return on_each_loop(run)


@pytest.fixture(params=[asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
def new_loop(request: pytest.FixtureRequest) -> Any:
    return request.param


@pytest.fixture(params=[pytest.param(TimerDescriptor, marks=linux), LoopTimer])
def timer(request: pytest.FixtureRequest) -> TimerFactory:
    factory: TimerFactory = request.param
    return factory


class CountingTimer:
    """Goes off when the test says so; records the instants that it was armed for."""

    def __init__(self, went_off: Callable[[], None]) -> None:
        self.go_off = went_off
        self.armed: list[float | None] = []
        self.closed = 0

    def arm(self, at_s: float | None) -> None:
        self.armed.append(at_s)

    def close(self) -> None:
        self.closed += 1


def counting() -> tuple[Alarm, CountingTimer]:
    made: list[CountingTimer] = []

    def make(went_off: Callable[[], None]) -> Timer:
        made.append(CountingTimer(went_off))
        return made[0]

    return Alarm(make), made[0]


async def rings(alarm: Alarm) -> bool:
    """Whether it has rung; takes the ring."""
    waiting = asyncio.ensure_future(alarm.wait())
    for _ in range(3):
        await asyncio.sleep(0)
    if waiting.done():
        return True
    waiting.cancel()
    return False


async def set_soon(alarm: Alarm) -> float:
    """Set it to an instant that is still to come once it is set: a starved process misses some."""
    at_s = 0.0
    while at_s <= time.monotonic():
        alarm.set(None)
        await rings(alarm)
        at_s = time.monotonic() + SOON_S
        alarm.set(at_s)
    return at_s


@on_an_alarm
async def test_it_rings_at_the_instant_and_never_before(alarm: Alarm) -> None:
    for wait_s in (0.0, 1e-6, 0.0004, 0.001, 0.0014, 0.0036, SOON_S) * 5:
        at_s = time.monotonic() + wait_s
        alarm.set(at_s)
        await alarm.wait()
        assert time.monotonic() >= at_s
    assert not await rings(alarm)


@on_an_alarm
async def test_an_instant_in_the_past_rings_at_once(alarm: Alarm) -> None:
    for at_s in (time.monotonic(), 0.0, -1.0):
        alarm.set(at_s)
        assert await rings(alarm)
        assert not await rings(alarm)


@on_an_alarm
async def test_many_rings_while_no_task_waits_are_one(alarm: Alarm) -> None:
    for _ in range(3):
        alarm.ring()
    alarm.set(time.monotonic() - 1)
    assert await rings(alarm)
    assert not await rings(alarm)


@on_an_alarm
async def test_a_ring_wakes_the_waiting_task_and_leaves_the_instant_set(alarm: Alarm) -> None:
    at_s = await set_soon(alarm)
    waiting = asyncio.ensure_future(alarm.wait())
    await asyncio.sleep(0)
    alarm.ring()
    await waiting
    while time.monotonic() < at_s:  # else it rang for both
        await alarm.wait()


@on_an_alarm
async def test_setting_again_replaces_the_instant(alarm: Alarm) -> None:
    alarm.set(time.monotonic() + FAR_S)
    alarm.set(time.monotonic() + SOON_S)
    await alarm.wait()
    await set_soon(alarm)
    later_s = time.monotonic() + 2 * SOON_S
    alarm.set(later_s)
    await alarm.wait()
    assert time.monotonic() >= later_s


@on_each_loop
async def test_a_withdrawn_instant_does_not_ring(timer: TimerFactory) -> None:
    alarm, other = Alarm(timer), Alarm(timer)
    at_s = await set_soon(alarm)
    alarm.set(None)
    other.set(at_s + SOON_S)
    await other.wait()
    assert not await rings(alarm)
    alarm.close()
    other.close()


def busy_until(at_s: float) -> None:
    """The event loop is busy: the timer goes off, and no task has noticed yet."""
    while time.monotonic() <= at_s:
        pass


@on_an_alarm
async def test_an_alarm_set_again_after_it_went_off_unseen_waits_for_the_new_instant(
    alarm: Alarm,
) -> None:
    at_s = await set_soon(alarm)
    busy_until(at_s)
    later_s = time.monotonic() + 2 * SOON_S
    alarm.set(later_s)
    await alarm.wait()
    assert time.monotonic() >= later_s


@on_each_loop
async def test_an_alarm_set_again_just_before_the_loop_sees_that_it_went_off_does_not_block(
    timer: TimerFactory,
) -> None:
    alarm = Alarm(timer)
    loop = asyncio.get_running_loop()
    ours, theirs = socket.socketpair()

    def set_again() -> None:
        ours.recv(1)
        alarm.set(time.monotonic() + FAR_S)

    with ours, theirs:
        # Readable before the timer, so handled before it, in the same turn of the loop.
        loop.add_reader(ours, set_again)
        at_s = time.monotonic() + SOON_S
        alarm.set(at_s)
        theirs.send(b"x")
        busy_until(at_s)
        for _ in range(5):
            await asyncio.sleep(0)
        loop.remove_reader(ours)
    alarm.set(time.monotonic() + SOON_S)
    await alarm.wait()
    alarm.close()


@on_an_alarm
async def test_a_cancelled_wait_leaves_the_ring_for_the_next_wait(alarm: Alarm) -> None:
    waiting = asyncio.ensure_future(alarm.wait())
    await asyncio.sleep(0)
    alarm.ring()
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert await rings(alarm)


@on_each_loop
async def test_after_close_nothing_can_be_set(timer: TimerFactory) -> None:
    alarm = Alarm(timer)
    alarm.set(time.monotonic() + SOON_S)
    alarm.close()
    alarm.close()
    alarm.ring()
    with pytest.raises(RuntimeError, match="closed"):
        alarm.set(time.monotonic() + SOON_S)


def timer_descriptors() -> list[int]:
    """Of this process; its other threads may open and close others at any time."""
    found = [path for path in Path("/proc/self/fd").iterdir() if path.is_symlink()]
    return [int(path.name) for path in found if "timerfd" in os.readlink(path)]


@linux
@on_each_loop
async def test_close_closes_every_descriptor(timer: TimerFactory) -> None:
    before = timer_descriptors()
    alarms = [Alarm(timer) for _ in range(20)]
    for alarm in alarms:
        alarm.set(time.monotonic() + SOON_S)
    await alarms[0].wait()
    for alarm in alarms:
        alarm.close()
    await asyncio.sleep(0)
    assert timer_descriptors() == before


@linux
@on_each_loop
async def test_a_descriptor_that_is_reused_after_close_is_left_alone() -> None:
    alarm = Alarm(TimerDescriptor)
    alarm.set(time.monotonic() + SOON_S)
    alarm.close()
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.send(b"not for the alarm")
        other = Alarm(LoopTimer)
        other.set(time.monotonic() + 2 * SOON_S)
        await other.wait()
        other.close()
        assert ours.recv(64) == b"not for the alarm"


@in_debug_mode
async def test_the_instant_already_set_costs_no_call() -> None:
    alarm, timer = counting()
    at_s = time.monotonic() + FAR_S
    alarm.set(None)
    alarm.set(at_s)
    alarm.set(at_s)
    alarm.set(time.monotonic())
    alarm.set(time.monotonic())
    alarm.set(None)
    assert timer.armed == [at_s, None]
    soon_s = await set_soon(alarm)
    armed = [*timer.armed]
    assert armed[-1] == soon_s and armed.count(soon_s) == 1
    busy_until(soon_s)
    timer.go_off()
    alarm.set(None)
    assert timer.armed == armed
    alarm.close()
    alarm.close()
    assert timer.closed == 1


@in_debug_mode
async def test_a_timer_that_goes_off_early_or_for_nothing_is_armed_again_or_ignored() -> None:
    alarm, timer = counting()
    at_s = time.monotonic() + FAR_S
    alarm.set(at_s)
    timer.go_off()
    assert not await rings(alarm)
    assert timer.armed == [at_s, at_s]
    alarm.set(None)
    timer.go_off()
    assert not await rings(alarm)
    alarm.close()


@on_each_loop
async def test_a_timer_armed_twice_goes_off_once(timer: TimerFactory) -> None:
    gone_off: list[float] = []
    first = timer(lambda: gone_off.append(time.monotonic()))
    last = Alarm(timer)
    at_s = time.monotonic() + SOON_S
    first.arm(at_s)
    first.arm(at_s)
    while not gone_off:
        await asyncio.sleep(0)
    last.set(time.monotonic() + SOON_S)
    await last.wait()
    assert len(gone_off) == 1
    first.close()
    last.close()


@linux
@in_debug_mode
async def test_linux_gets_a_timer_descriptor_that_children_do_not_inherit() -> None:
    timer = best_timer(lambda: None)
    assert isinstance(timer, TimerDescriptor)
    descriptors = timer_descriptors()
    assert descriptors
    assert not any(os.get_inheritable(descriptor) for descriptor in descriptors)
    timer.close()


@pytest.mark.parametrize(
    "missing",
    [AttributeError("timerfd_create"), OSError(errno.ENOSYS, ""), OSError(errno.EPERM, "")],
    ids=["libc", "kernel", "sandbox"],
)
@in_debug_mode
async def test_without_timer_descriptors_the_loop_keeps_the_time(
    monkeypatch: pytest.MonkeyPatch, missing: Exception
) -> None:
    def create() -> int:
        raise missing

    monkeypatch.setattr(alarm_module, "_create", create)
    timer = best_timer(lambda: None)
    assert isinstance(timer, LoopTimer)
    timer.close()


@linux
@in_debug_mode
async def test_running_out_of_descriptors_is_an_error_and_makes_no_worse_alarm(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def create() -> int:
        raise OSError(errno.EMFILE, "too many open files")

    monkeypatch.setattr(alarm_module, "_create", create)
    with pytest.raises(OSError, match="too many"):
        Alarm()


@linux
@pytest.mark.skipif(sys.version_info >= (3, 13), reason="the os module does it there")
def test_a_refusal_by_libc_is_raised_with_its_reason() -> None:
    with pytest.raises(OSError, match="timerfd_settime") as refused:
        alarm_module._arm(-1, 1)
    assert refused.value.errno == errno.EBADF
