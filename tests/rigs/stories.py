"""Calls of several clients with a ledger, step by step in any order, in one thread.

A step is one transaction of the ledger, or one pipeline of Redis: what another process may see.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from msgspec.structs import replace

from delaybridge import Client
from delaybridge.store.protocol.verbs import Each, Work, as_received

Made = Callable[[], Client]


@contextmanager
def ledger_clients(redis_url: str, namespace: str, ledger_url: str) -> Iterator[Made]:
    """Makes clients whose messages are cold if they are due in more than ten seconds.

    The bucket has had a message: else the first call that asks Redis would be made twice.
    """
    with ExitStack() as stack:
        kept: dict[str, Any] = {"durability": "ledger", "ledger": ledger_url, "hot_window_s": 10.0}

        def make() -> Client:
            named = {"namespace": namespace, "brokers": {"memory": "memory://"}, "buckets": 1}
            client = stack.enter_context(Client(redis_url, **named, **kept))
            client.schedule("memory:a", b"x", delay=5, id="hot", on_conflict="keep")
            return client

        yield make


class Actor:
    """One call under way. answer: its result, or the error that it ended with; None so far.

    loses: the script whose first reply is lost; what was sent with it is sent again.
    """

    def __init__(self, client: Client, call: Callable[[Any], Any], *, loses: str = "") -> None:
        self.answer: Any = None
        self._loses = loses
        self.is_over = False
        self._steps = self._run(client, call(client._calls))
        self._asked_ledger = False

    def step(self) -> bool:
        """Do its next step; whether it is over."""
        try:
            self._asked_ledger = next(self._steps)
        except StopIteration as done:
            self.answer, self.is_over = done.value, True
        except Exception as exc:
            self.answer, self.is_over = exc, True
        return self.is_over

    def end(self) -> Any:
        """All that is left of it."""
        while not self.step():
            pass
        return self.answer

    def until(self, condition: Callable[[], bool]) -> None:
        """Its next steps, until this is true."""
        while not condition():
            assert not self.step(), self.answer

    def until_ledger(self) -> None:
        """Its next steps, up to one that asks the ledger."""
        self._asked_ledger = False
        self.until(lambda: self._asked_ledger)

    def _run(self, client: Client, steps: Any) -> Generator[bool, None, Any]:
        """Yields after each step whether it asked the ledger."""
        store = client._store
        try:
            asked = next(steps)
            while True:
                if isinstance(asked, Work):
                    result = store.recorder.ledger.run(asked)  # type: ignore[union-attr]
                    yield True
                else:
                    result = yield from self._recorded(store, asked)
                asked = steps.send(result)
        except StopIteration as done:
            return done.value

    def _recorded(self, store: Any, commands: Any) -> Generator[bool, None, Any]:
        if not store.recorder.concerns(commands):
            found = store._piped(commands)
            yield False
            return found.answers if isinstance(commands, Each) else found.result()
        found = store.recorder.record(commands, store.node_of)
        while (asked := found.asked) is not None:
            of_ledger = isinstance(asked, Work)
            if not of_ledger and self._loses in [command.name for command in asked]:
                self._loses = ""
                store._piped([replace(command, parse=as_received) for command in asked])
                yield False
            try:
                result = (
                    store.recorder.ledger.run(asked) if of_ledger else store._piped(asked).answers
                )
            except Exception as exc:
                found.fail(exc)
            else:
                found.take_result(result)
            yield of_ledger
        return found.answers if isinstance(commands, Each) else found.result()


def played(actors: Iterable[Actor], draw: random.Random) -> None:
    """All of them to their ends; whose turn it is, and for how many steps, is drawn."""
    left = [*actors]
    while left:
        who = draw.choice(left)
        for _ in range(draw.choice((1, 2, 4, 8))):
            if who.step():
                left.remove(who)
                break
