"""Commands that run beside a measurement, in turn, again and again, until it is over."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import groupby
from threading import Event, Thread
from urllib.request import urlopen

from bench.rig import POLL_S, Bench

AND_THEN = "/"  # between two commands
SCRAPE_S = 1.0
Command = Sequence[str]


def commands_of(words: Sequence[str]) -> list[list[str]]:
    """`bucket resize 64 / bucket resize 16` as two commands."""
    return [list(each) for is_mark, each in groupby(words, AND_THEN.__eq__) if not is_mark]


class Beside:
    """took_s: how long each command took, with the start of its process. Those of one round run to
    their end, so that the last undoes what the first did."""

    def __init__(self, bench: Bench, commands: Sequence[Command]) -> None:
        self.took_s: list[float] = []
        self._bench, self._commands = bench, commands
        self._over, self._failed = Event(), ""
        self._thread = Thread(target=self._run)

    def _run(self) -> None:
        while not self._over.is_set():
            for command in self._commands:
                began_s = time.monotonic()
                if code := self._bench.outcome(self._bench.start(*command)):
                    self._failed = f"{' '.join(command)} ended with {code}"
                    return
                self.took_s.append(time.monotonic() - began_s)

    @contextmanager
    def running(self) -> Iterator[None]:
        """Run them until the block ends; RuntimeError if one fails."""
        self._thread.start()
        try:
            yield
        finally:
            self._over.set()
            self._thread.join()
            self._bench.look_again()
        if self._failed:
            raise RuntimeError(self._failed)


@contextmanager
def scraped(port: int) -> Iterator[list[int]]:
    """Scrape again and again; the bytes of each scrape that was answered."""
    stopped, sizes = Event(), list[int]()

    def scrape() -> None:
        while not stopped.wait(SCRAPE_S if sizes else POLL_S):  # a tiny drain is soon over
            try:
                sizes.append(len(urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5).read()))
            except OSError:
                pass  # the worker has not started yet, or has ended

    thread = Thread(target=scrape)
    thread.start()
    try:
        yield sizes
    finally:
        stopped.set()
        thread.join()
