"""The monitor: answers scrapes and probes about the processes behind one port."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Collection
from concurrent.futures import ThreadPoolExecutor
from http import HTTPStatus

from delaybridge.operate.metrics import health
from delaybridge.operate.metrics.exposition import OPENMETRICS, TEXT, exposed
from delaybridge.operate.metrics.gauges import gauges_of
from delaybridge.operate.metrics.health import Health
from delaybridge.operate.metrics.reader import Reader, Reading
from delaybridge.operate.metrics.reports import ProcessReports
from delaybridge.operate.metrics.server import Response, not_found

_FRESH_S = 1.0  # for how long an answer is given again
PATIENCE_S = 6.0  # for Redis


class Monitor:
    """Reads Redis only when asked, at most once a second and never twice at a time."""

    def __init__(self, reports: ProcessReports, reader: Reader, *, patience_s: float) -> None:
        """patience_s: how long a bucket may be unowned before this is not ready."""
        self._reports, self._reader, self._patience_s = reports, reader, patience_s
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="metrics")
        self._read_s = float("-inf")
        self._reading: asyncio.Future[Reading] | None = None
        self._texts: dict[str, tuple[float, Response]] = {}  # format -> when it was made

    async def answer(self, path: str, accept: str) -> Response:
        """The answer to a GET."""
        if path == "/metrics":
            return await self._metrics(OPENMETRICS if OPENMETRICS in accept else TEXT)
        if path == "/health/live":
            return _told(health.live(self._reports.latest, self._reports.silent()))
        if path == "/health/ready":
            found = await self._read()
            return _told(health.ready(self._reports.latest, found, patience_s=self._patience_s))
        return not_found()

    def close(self) -> None:
        """Stop reading, and disconnect from Redis."""
        self._pool.shutdown(wait=False, cancel_futures=True)
        self._reader.close()

    async def _metrics(self, format: str) -> Response:
        found = await self._read()
        made_s, response = self._texts.get(format, (float("-inf"), None))
        if response is None or time.monotonic() - made_s > _FRESH_S:
            gauges = gauges_of(self._reports.latest, found)
            body, content_type = exposed(self._reports.totals(), gauges, format)
            response = Response(HTTPStatus.OK, body, content_type)
            self._texts[format] = time.monotonic(), response
        return response

    async def _read(self) -> Reading:
        """The answer of Redis; a reading of the last second, or one under way, is shared."""
        reading = self._reading
        if reading is None or (reading.done() and time.monotonic() - self._read_s > _FRESH_S):
            held = {b for report in self._reports.latest.values() for b in report.buckets}
            loop = asyncio.get_running_loop()
            reading = self._reading = loop.run_in_executor(self._pool, self._ask, held)
        try:
            async with asyncio.timeout(PATIENCE_S):
                return await asyncio.shield(reading)
        except TimeoutError:
            return Reading(error="redis: no answer in time")

    def _ask(self, held: Collection[int]) -> Reading:
        try:
            return self._reader.read(held)
        finally:  # before anyone sees that it is done
            self._read_s = time.monotonic()


def _told(found: Health) -> Response:
    status = HTTPStatus.OK if found.is_well else HTTPStatus.SERVICE_UNAVAILABLE
    body = json.dumps(found.as_json).encode() + b"\n"
    return Response(status, body, "application/json")
