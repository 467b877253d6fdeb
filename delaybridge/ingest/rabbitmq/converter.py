"""Gives delay exchanges of an earlier form today's form: `ingest rabbitmq --convert`."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from delaybridge.ingest.process import Ingester
from delaybridge.ingest.rabbitmq.conversion import Converted
from delaybridge.ingest.rabbitmq.ingest import connected
from delaybridge.ingest.routes import Route
from delaybridge.ingest.storing import EntryStore
from delaybridge.settings.settings import Settings
from delaybridge.worker.open_namespace import open_namespace
from delaybridge.worker.parts import Part
from delaybridge.worker.service import Identity

OnConverted = Callable[[Route, Converted], None]


class Converter(Ingester):
    """Converts its routes, one after the other, and ends."""

    def __init__(
        self,
        settings: Settings,
        routes: Sequence[Route],
        on_converted: OnConverted,
        parts: Sequence[Part] = (),
    ) -> None:
        super().__init__(settings, Identity.of_this_process(None), routes, parts=parts)
        self._on_converted = on_converted

    async def work(self) -> None:
        """Raises what stops it; it can be run again."""
        self._make_store()
        try:
            await open_namespace(self._store, self._calls, self.parts)
            store = EntryStore(self._store, self._calls, self.emit)
            for options in self._options.values():
                async with connected(options, store, self.emit) as ingest:
                    for route in options.routes:
                        self._on_converted(route, await ingest.convert(route))
        finally:
            self.emit.flush()
            await self._store.close()


def convert(
    settings: Settings,
    routes: Sequence[Route],
    on_converted: OnConverted,
    parts: Sequence[Part] = (),
) -> None:
    """Give these delay exchanges today's form. Safe to repeat. parts: of the process."""
    asyncio.run(Converter(settings, routes, on_converted, parts).work())
