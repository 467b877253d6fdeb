"""Whatever comes between two steps of those who change rules and compare them, none is lost."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import pytest

from delaybridge.errors import LedgerUnavailable
from delaybridge.ledger.comparing import reinstating
from delaybridge.ledger.comparing.rule_controls import controls_of
from delaybridge.ledger.sql.rows import Control
from delaybridge.store.namespace import rules
from delaybridge.store.protocol import keys
from delaybridge.store.protocol.verbs import Each, Work
from tests.rigs.controls_site import ControlsSite
from tests.rigs.ledgers import made

PLACE = b"kafka:a"
CHAPTERS, STEPS = 12, 20
CHANGES: list[dict[str, Any]] = [{"paused": True}, {"paused": None}, {"rate": 5}, {"rate": None}]


class Story:
    """Calls under way, each a step further at a time; what the ledger was told, and Redis has."""

    def __init__(self, site: ControlsSite, seed: int) -> None:
        self.site, self.chance = site, random.Random(seed)
        self.calls: list[Iterator[None]] = []
        self.is_down = False
        self.here: dict[bytes, Control] = {}
        self.there: dict[bytes, Control] = {}
        self.snapshot = site.snapshot(), dict(self.here)

    def changing(self) -> Iterator[None]:
        """A client's change, command by command; it may die after each."""
        change = self.chance.choice(CHANGES)
        steps = rules.change(self.site.namespace, PLACE.decode(), change)
        asked = next(steps)
        while True:
            yield
            recorded = self.site.recorder.record(asked, self.site.store.node_of)
            while recorded.asked is not None:
                self._answer(recorded)
                yield
            try:
                asked = steps.send(recorded.result())
            except StopIteration:
                return

    def _answer(self, recorded: Any) -> None:
        asked = recorded.asked
        if not isinstance(asked, Work):
            recorded.take_result(self.site.store.run_each(asked))
        elif self.is_down:
            recorded.fail(LedgerUnavailable("ledger: down; nothing was written to it"))
        else:
            recorded.take_result(self.site.recorder.ledger.run(asked))

    def comparing(self, who: str) -> Iterator[None]:
        steps = self.site.agreeing(who)
        asked = next(steps)
        while True:
            yield
            if isinstance(asked, Work):
                if self.is_down:
                    return
                answer: Any = self.site.recorder.ledger.run(asked)
            else:
                run = self.site.store.run_each if isinstance(asked, Each) else self.site.store.run
                answer = run(asked)
            try:
                asked = steps.send(answer)
            except StopIteration:
                return

    def go_on(self) -> None:
        """One thing that may happen."""
        what = self.chance.random()
        if what < 0.15:
            self.begin(self.changing())
        elif what < 0.21:
            self.begin(self.comparing(f"w{self.chance.randrange(2)}"))
        elif what < 0.26:
            self.site.wipe()
            self.here = {}
        elif what < 0.27:
            self.snapshot = self.site.snapshot(), dict(self.here)
        elif what < 0.28:
            self.site.go_back(self.snapshot[0])
            self.here = dict(self.snapshot[1])
        elif what < (0.33 if self.is_down else 0.29):
            self.is_down = not self.is_down
        elif self.calls:
            call = self.chance.choice(self.calls)
            if next(call, self) is self or self.chance.random() < 0.1:  # it died
                self.calls.remove(call)
        self.look()

    def end(self) -> None:
        """All who were at work have died, and one compares them."""
        self.calls, self.is_down = [], False
        self.site.redis.hset(keys.controls(self.site.namespace), "healed", "another run:x")
        assert self.site.agree() is not None and self.site.are_agreed
        self.look()

    def begin(self, call: Iterator[None]) -> None:
        if len(self.calls) < 4:
            self.calls.append(call)

    def look(self) -> None:
        """Note the last change that Redis, and the ledger, ever had of each field."""
        stored = self.site.recorder.ledger.run(Work(self.site.recorder.controls.all))
        times = self.site.store.run([reinstating.unrecorded(self.site.namespace)])[0]
        changed = self.site.store.complete(reinstating.read_changed(self.site.namespace, times))
        for seen, controls in ((self.here, changed), (self.there, stored)):
            for each in controls:
                if each.wins(seen.get(each.name)):
                    seen[each.name] = each

    def last(self) -> dict[bytes, bytes]:
        """The rules that are to be in force."""
        found = dict(self.there)
        found |= {name: each for name, each in self.here.items() if each.wins(found.get(name))}
        return {name: each.value for name, each in found.items() if each.value}


@pytest.mark.parametrize("seed", range(6))
def test_the_last_change_that_is_known_anywhere_is_in_force_in_the_end(
    redis_url: str, namespace: str, tmp_path: Any, seed: int
) -> None:
    site = ControlsSite(redis_url, namespace, made(f"sqlite:///{tmp_path / 'ledger.db'}"))
    try:
        story = Story(site, seed)
        for _ in range(CHAPTERS):
            for _ in range(STEPS):
                story.go_on()
            story.end()
            rules = site.redis.hgetall(keys.destinations(namespace))
            here = {e.name: e.value for e in controls_of(PLACE, rules.get(PLACE, b""), {})}
            stored = site.recorder.ledger.run(Work(site.recorder.controls.all))
            there = {each.name: each.value for each in stored if each.value}
            assert here == there == story.last()
    finally:
        site.close()
