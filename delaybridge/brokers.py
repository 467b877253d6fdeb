"""The brokers of one worker: connected side by side, each waited for by nobody, closed together."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from functools import partial

from delaybridge.errors import PublishUnavailable
from delaybridge.eventlog import say
from delaybridge.lanes import Broker
from delaybridge.publish import PublishOptions, Report, connect, kind_of

_log = logging.getLogger("delaybridge")


class Brokers:
    """A publisher for each configured broker.

    by_name: empty once they are closed. tried: set once a connection to each of them was tried.
    """

    def __init__(
        self,
        urls: Mapping[str, str],
        options: PublishOptions,
        *,
        report: Report,
        on_change: Callable[[], None],
    ) -> None:
        """on_change: called when a broker went away, blocks, or is back."""
        self._report, self._on_change, self._options = report, on_change, options
        self.by_name = {name: self._made(name, url) for name, url in urls.items()}
        self.tried = asyncio.Event()

    async def keep(self) -> None:
        """Connect and warm up, all at once; run until cancelled. Raises what no wait can mend.

        A broker that is not connected yet is `unavailable`, and goes on trying by itself.
        """
        tries = [self._connect(name, broker) for name, broker in self.by_name.items()]
        await asyncio.gather(*tries)
        self.tried.set()
        await asyncio.Event().wait()

    async def close(self, timeout_s: float) -> None:
        """Wait at most so long for what is unconfirmed, then disconnect from all."""
        brokers, self.by_name = self.by_name, {}
        await asyncio.gather(*(broker.publisher.close(timeout_s) for broker in brokers.values()))

    def _made(self, name: str, url: str) -> Broker:
        publisher = connect(
            *(name, url),
            report=self._report,
            on_change=partial(self._changed, name),
            options=self._options,
        )
        return Broker(kind_of(url), publisher)

    async def _connect(self, name: str, broker: Broker) -> None:
        try:
            await broker.publisher.connect()
        except PublishUnavailable:
            return  # `_changed` has said so
        _log.info("broker %s: %s", name, broker.publisher.describe())

    def _changed(self, name: str) -> None:
        if name in self.by_name:
            reason = self.by_name[name].publisher.unavailable
            if reason is None:
                say(logging.INFO, "broker_available", name=name)
            else:
                say(logging.WARNING, "broker_unavailable", name=name, reason=reason)
        self._on_change()
