"""The brokers of one worker: connected at the same time, replaced on a reload, closed together."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Mapping, Set
from functools import partial

from delaybridge.errors import PublishUnavailable
from delaybridge.message import PULL
from delaybridge.publish import PublishOptions, Report, connect, kind_of
from delaybridge.publish.guarded import GuardedPublisher
from delaybridge.publish.pull import PullPublisher
from delaybridge.scan.lanes.lane import ERROR_CHARS, Broker, Lane
from delaybridge.store.protocol.record import first_word
from delaybridge.worker.eventlog import say
from delaybridge.worker.service import Background

_OUTCOMES_POLL_S = 0.05


class Brokers:
    """A publisher for each configured broker, and one for pull topics.

    by_name: empty once they are closed. tried: set once a connection to each broker configured at
    the start has succeeded or failed.
    """

    def __init__(
        self,
        urls: Mapping[str, str],
        options: PublishOptions,
        *,
        report: Report,
        on_change: Callable[[], None],
    ) -> None:
        """on_change: called when a broker becomes unavailable or available."""
        self._report, self._on_change, self._options = report, on_change, options
        pull = GuardedPublisher(PullPublisher, report, options.confirm_timeout_s)
        self.by_name = {PULL: Broker(PULL, pull)}
        self.by_name |= {name: self._create(name, url) for name, url in urls.items()}
        self.tried = asyncio.Event()
        self._logged: dict[str, str | None] = {}  # the word logged last; None: available
        self._background = Background()

    async def keep(self) -> None:
        """Connect to all at the same time; run until cancelled.

        A broker that cannot be reached is `unavailable`, and its publisher keeps trying. Raises the
        first error that another try cannot fix, for example ConfigError.
        """
        attempts = [self._background.start(self._connect(name)) for name in self.configured]
        for task in attempts:
            either = [task, self._background.failure]
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        self.tried.set()
        await self._background.failed()

    def change(self, urls: Mapping[str, str], names: Set[str]) -> list[Broker]:
        """Replace the brokers of these names by those at `urls`, if any; returns the old, open."""
        replaced = [self.by_name.pop(name) for name in names if name in self.by_name]
        for name in names & urls.keys():
            self.by_name[name] = self._create(name, urls[name])
            self._background.start(self._connect(name))
        return replaced

    def announced(self) -> dict[str, str | None]:
        """Why each is unavailable, for the worker's announcement; None if it is not."""
        reasons = {name: each.publisher.unavailable for name, each in self.configured.items()}
        return {name: why and why[:ERROR_CHARS] for name, why in reasons.items()}

    @property
    def configured(self) -> dict[str, Broker]:
        """The brokers that the settings name."""
        return {name: broker for name, broker in self.by_name.items() if name != PULL}

    def retire(self, brokers: Collection[Broker], lanes: Collection[Lane]) -> None:
        """Close replaced brokers once their lanes have every outcome, or confirms time out."""
        self._background.start(self._retire(brokers, lanes))

    async def close(self, timeout_s: float) -> None:
        """Wait at most `timeout_s` for outstanding confirms, then disconnect from all."""
        brokers, self.by_name = self.by_name, {}
        work = [*self._background.tasks]
        for task in work:
            task.cancel()
        await asyncio.gather(*(broker.publisher.close(timeout_s) for broker in brokers.values()))
        await asyncio.gather(*work, return_exceptions=True)

    def _create(self, name: str, url: str) -> Broker:
        publisher = connect(
            name,
            url,
            report=self._report,
            on_change=partial(self._changed, name),
            options=self._options,
        )
        return Broker(kind_of(url), publisher)

    async def _connect(self, name: str) -> None:
        publisher = self.by_name[name].publisher
        try:
            await publisher.connect()
        except PublishUnavailable:
            return  # logged by `_changed`
        say(logging.INFO, "broker_connected", name=name, about=publisher.describe())

    async def _retire(self, brokers: Collection[Broker], lanes: Collection[Lane]) -> None:
        try:
            async with asyncio.timeout(self._options.confirm_timeout_s):
                while any(lane.load for lane in lanes):
                    await asyncio.sleep(_OUTCOMES_POLL_S)
        except TimeoutError:
            pass  # the remaining outcomes are unknown: these messages are published again
        finally:
            await asyncio.gather(*(broker.publisher.close(0.0) for broker in brokers))

    def _changed(self, name: str) -> None:
        if name in self.by_name:
            reason = self.by_name[name].publisher.unavailable
            word = None if reason is None else first_word(reason)
            if word == self._logged.get(name, ""):
                pass  # librdkafka varies its words; or the change is a replaced broker's
            elif reason is None:
                say(logging.INFO, "broker_available", name=name)
            else:
                say(logging.WARNING, "broker_unavailable", name=name, reason=reason)
            self._logged[name] = word
        self._on_change()
