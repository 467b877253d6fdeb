"""Recurring messages while everything happens at once: no run is lost, doubled or early.

Workers, clients and the scanner take turns at each round trip, in an order drawn from a seed; some
die on the way, and some wake up much later. The oracle knows only what callers were told.
"""

from __future__ import annotations

import random

import pytest
from hypothesis import settings

from delaybridge.message import Answer
from delaybridge.recurring.definition import Definition, due_text
from delaybridge.recurring.definitions import Definitions
from delaybridge.store.calls import Calls
from tests.rigs.timetable import NAME, NOW_MS, Caller, Timetable, make_runs

EVERY_MS, PAUSE_MS = 4000, 1500
SEEDS = settings().max_examples
STEPS = 400


def definition(body: str = "x", every_ms: int = EVERY_MS) -> Definition:
    return Definition(name=NAME, destination="memory:q", body=body, every_ms=every_ms, missed="all")


class Fleet:
    """Workers that look at random moments, and one client that makes changes one after another."""

    def __init__(self, table: Timetable, seed: int, *, kill: bool) -> None:
        self.table, self.draw, self.kill = table, random.Random(seed), kill
        self.makers: list[Caller] = []
        self.sleeping: list[Caller] = []
        self.change: Caller | None = None
        self.active = False  # as the client was told
        self.since_ms = self.born_ms = NOW_MS
        self.active_spans: list[tuple[int, int]] = []  # every run in them arrives
        self.quiet_spans: list[tuple[int, int]] = []  # none in them arrives
        self.backfilled: list[tuple[int, int]] = []
        self.killed_client = False

    def run(self, steps: int) -> None:
        for _ in range(steps):
            self.step()

    def step(self) -> None:
        moves = [self.look, self.look, self.work, self.work, self.work, self.scan, self.scan]
        moves += [self.time_passes, self.time_passes, self.begin_change, *[self.do_change] * 3]
        self.draw.choice(moves)()

    def look(self) -> None:
        if len(self.makers) < 3:
            steps = make_runs(self.table.calls, now_ms=self.table.now_ms)
            self.makers.append(self.table.call(steps))

    def work(self) -> None:
        if not self.makers:
            return
        maker = self.draw.choice(self.makers)
        maker.step()
        if not maker.done and self.draw.random() < 0.15:  # it is stopped, for long or for ever
            self.makers.remove(maker)
            self.sleeping.append(maker)
        if self.sleeping and self.draw.random() < 0.1:
            self.makers.append(self.sleeping.pop(self.draw.randrange(len(self.sleeping))))
        self.makers = [each for each in self.makers if not each.done]

    def scan(self) -> None:
        self.draw.choice([self.table.claim, self.table.fire, self.table.settle])()

    def time_passes(self) -> None:
        self.table.pass_ms(self.draw.choice([1, 300, 999, 1500]))

    def begin_change(self) -> None:
        if self.change is not None or self.draw.random() < 0.5:
            return
        calls: Calls = self.table.calls
        self.table.pass_ms(PAUSE_MS)  # what a sleeping worker has taken, others may take
        self.table.make()  # a run that is due and not made is not made after a definition has ended
        body = self.draw.choice("xyz")
        steps, what = self.draw.choice(
            [
                (Definitions(calls).add(definition(body), replace=True), "add"),
                (Definitions(calls).add(definition(body), replace=True), "add"),
                (Definitions(calls).pause(NAME, paused=True), "pause"),
                (Definitions(calls).pause(NAME, paused=False), "resume"),
                (Definitions(calls).remove(NAME), "remove"),
                (Definitions(calls).backfill(NAME, self.born_ms + 1, None), "backfill"),
            ][: 5 if self.kill else 6]  # after a death nobody knows when the definition was added
        )
        self.change = self.table.call(steps, what)

    def do_change(self) -> None:
        """One step of the change; what it answers changes what the client expects."""
        change = self.change
        if change is None:
            return
        if self.kill and change.what != "backfill" and self.draw.random() < 0.03:
            self.killed_client, self.change = True, None
            return
        change.step()
        if change.done:
            self.change = None
            self._changed(change)

    def _changed(self, change: Caller) -> None:
        assert change.error is None or change.what == "backfill", change.error
        result = change.result
        if change.what == "backfill":
            if result is not None:
                self.backfilled.append((result.from_ms, result.to_ms))
            return
        was_active, since_ms = self.active, self.since_ms
        if change.what == "add" and result is Answer.DUPLICATE:
            return
        if result is Answer.CREATED:  # what an earlier definition has made is not remembered
            self.born_ms = self.table.now_ms
        if change.what in ("pause", "resume") and result in (None, {}) and change.what == "pause":
            return
        if change.what == "resume" and (result is None or was_active):
            return
        if change.what == "remove" and result is None:
            return
        spans = self.active_spans if was_active else self.quiet_spans
        # While one definition replaces another of the same times, each run comes from either.
        end_ms = self.table.now_ms if was_active and change.what == "add" else change.began_ms
        spans.append((since_ms, end_ms))
        self.active = change.what in ("add", "resume")
        self.since_ms = end_ms if was_active and change.what == "add" else self.table.now_ms

    def end(self) -> None:
        """Everyone finishes; then time passes in which workers look and all is delivered."""
        while self.change is not None:
            self.kill = False
            self.do_change()
        for maker in [*self.makers, *self.sleeping]:
            while not maker.done:
                maker.step()
        spans = self.active_spans if self.active else self.quiet_spans
        spans.append((self.since_ms, self.table.now_ms))
        for _ in range(20):
            self.table.pass_ms(1000)
            self.table.make()
            self.table.deliver()


def runs_in(span: tuple[int, int]) -> list[str]:
    low, high = span
    first = (low // EVERY_MS + 1) * EVERY_MS
    return [f"{NAME}@{due_text(due_ms)}" for due_ms in range(first, high + 1, EVERY_MS)]


@pytest.mark.parametrize(
    "kill",
    [pytest.param(False, id="", marks=pytest.mark.slow), pytest.param(True, id="clients die")],
)
def test_no_run_is_lost_or_doubled(redis_url: str, namespace: str, kill: bool) -> None:
    arrived = 0
    for seed in range(SEEDS):
        with Timetable(redis_url, f"{namespace}-{seed}") as table:
            fleet = Fleet(table, seed, kill=kill)
            fleet.run(STEPS)
            fleet.end()
            assert not table.twice, seed
            arrived += len(table.arrived)
            if fleet.killed_client:
                continue  # what it would have been told is unknown
            expected = {run for span in fleet.active_spans for run in runs_in(span)}
            unwanted = {run for span in fleet.quiet_spans for run in runs_in(span)}
            made_up = {
                run for low, high in fleet.backfilled for run in runs_in((low - 1, high - 1))
            }
            assert expected <= set(table.arrived), (seed, expected - set(table.arrived))
            assert not (unwanted - expected - made_up) & set(table.arrived), seed
            assert made_up <= set(table.arrived), seed
    assert arrived > 5 * SEEDS
