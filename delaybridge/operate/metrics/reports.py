"""Reports: what each process says of itself once a second, and the totals of all of them."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from threading import Lock

from delaybridge.operate.metrics.catalog import METRICS
from delaybridge.operate.metrics.counts import MOST_DESTINATIONS, Capped, Counts, Key
from delaybridge.worker.service import ProcessReport

LIVE_S = 30.0  # a process that is silent for longer does not live


class ProcessReports:
    """The latest report of each process that runs, by name. Thread-safe.

    Totals never fall: the last report of a process that ended is kept in them.
    """

    def __init__(
        self, names: Collection[str], *, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        """names: of the processes that are to run; each has `LIVE_S` for its first report."""
        self._monotonic = monotonic
        self._heard_s = dict.fromkeys(names, monotonic())
        self._latest: dict[str, ProcessReport] = {}
        self._past = Counts()
        self._labels = {
            label: Capped(MOST_DESTINATIONS) for label in ("destination", "source", "name")
        }
        self._lock = Lock()

    def put(self, name: str, report: ProcessReport) -> None:
        """The process of this name says so now."""
        with self._lock:
            self._heard_s[name] = self._monotonic()
            self._latest[name] = report

    def ended(self, name: str, *, crashed: bool) -> None:
        """The process of this name has ended; another may take its name."""
        with self._lock:
            self._add(self._past, self._latest.pop(name, ProcessReport()))
            if crashed:
                self._past.totals["process_crashes_total",] += 1

    @property
    def latest(self) -> dict[str, ProcessReport]:
        """Name of each process that runs -> its latest report."""
        with self._lock:
            return dict(self._latest)

    def totals(self) -> Counts:
        """The totals of all processes since the first one started."""
        found = Counts()
        with self._lock:
            for report in (ProcessReport(*self._past.copy()), *self._latest.values()):
                self._add(found, report)
        return found

    def silent(self) -> dict[str, float]:
        """Processes that do not live -> the seconds since they were last heard."""
        with self._lock:
            ages_s = {name: self._monotonic() - at_s for name, at_s in self._heard_s.items()}
        return {name: age_s for name, age_s in ages_s.items() if age_s > LIVE_S}

    def _add(self, to: Counts, report: ProcessReport) -> None:
        for key, total in report.totals.items():
            known = self._capped(key)
            if METRICS[key[0]].kind == "counter":
                to.totals[known] += total
            else:  # a time: the latest
                to.totals[known] = max(to.totals[known], total)
        for key, histogram in report.histograms.items():
            counts = dict(enumerate(histogram.counts))
            to.histograms[self._capped(key)].add(counts, histogram.sum)

    def _capped(self, key: Key) -> Key:
        """The same with bounded labels: each process has bounded its own, but they may differ."""
        labels = METRICS[key[0]].labels
        return key[0], *(
            self._labels[label](value) if label in self._labels else value
            for label, value in zip(labels, key[1:], strict=True)
        )
