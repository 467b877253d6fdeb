"""Runs one cell: warm-up, load with the fault, heal, drain, check."""

from __future__ import annotations

import os
import re
import tempfile
import time
import uuid
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from tests.chaos.cell import Cell
from tests.chaos.checker import Fate, Found, Terms, check, fold, p99_ms, read_history, timeline
from tests.chaos.history_page import page
from tests.chaos.site import Shared, Site
from tests.rigs.bridge import UNAVAILABLE
from tests.rigs.stall import Stall
from tests.rigs.waiting import until

WARM_UP_S = 1.0
SHOWN = 20  # ids whose whole history is printed
SETTLE_MS = 5000  # to start what was killed, and to send what has piled up
EXITS = {0, -9, 137, -15}
SECRET = re.compile(r"guest:guest|s3cret")


@dataclass
class Result:
    """Of one run of a cell. found: invariant -> what breaks it."""

    cell: Cell
    found: Found
    figures: dict[str, float]
    notes: list[str]
    timelines: list[str]
    took_s: float

    @property
    def broken(self) -> dict[str, list[str]]:
        """Without those that cannot hold."""
        exempt = self.cell.cannot_hold
        return {name: what for name, what in self.found.items() if what and name not in exempt}

    def __str__(self) -> str:
        verdict = "RED" if self.broken else "green"
        lines = [f"{self.cell.id} {verdict} {self.took_s:.0f} s  {in_words(self.figures)}"]
        lines += [f"   {name}: {len(what)}: {what[:4]}" for name, what in self.broken.items()]
        return "\n".join([*lines, *(f"   {note}" for note in self.notes), *self.timelines])


def run_cell(
    cell: Cell,
    shared: Shared,
    stall: Stall,
    *,
    seconds: float = 8.0,
    environment: Mapping[str, str] | None = None,
    pages: Path | None = None,
) -> Result:
    """Run it once. shared: the servers for all cells. environment: of all processes.

    stall: measures this machine meanwhile. pages: a folder for the cell's history as a page.
    """
    began_s, name = time.monotonic(), f"c-{uuid.uuid4().hex[:12]}"
    with (
        tempfile.TemporaryDirectory(prefix=f"chaos-{cell.id}-") as folder,
        Site(cell, Path(folder), name, shared, environment or {}, stall) as site,
    ):
        site.seconds = max(seconds, cell.seconds)
        try:
            site.start()
        except AssertionError as error:
            raise AssertionError(f"{error}\n{site.logs()}") from error
        resident = {name: rss_mib(site.bridge.pid(name)) for name in site.bridge.workers}
        until(lambda: '"ok"' in "".join(read_history(site.history)[-200:]), "the load")
        site.wait(WARM_UP_S)
        cell.run(site)
        site.finish_load()
        drained = site.wait_drained()
        site.bridge.wait_consumed()
        found, figures, fates = judged(site)
        if not drained:
            found["I9"] = ["not drained", *found.get("I9", [])]
        found["I14"] = ended_badly(site)
        found["I13"] = [name for name, log in site.logs().items() if SECRET.search(log)]
        grown = [peak_mib(site.bridge.pid(n)) - resident.get(n, 1e9) for n in alive(site)]
        found["I15"] = [f"a worker grew by {g:.0f} MiB" for g in grown if g > 100]
        for name, what in site.wrong.items():
            found[name] = [*found.get(name, []), *what]
        ids = list(dict.fromkeys(id for what in found.values() for id in what if id in fates))
        shown = [timeline(fates[id]) for id in ids[:SHOWN]]
        if pages is not None:
            text = page(cell, [*fates.values()], site.faults, found, in_words(figures), shown)
            (pages / f"{cell.id}.html").write_text(text)
        keep = os.environ.get("CHAOS_KEEP")
        if keep:
            for log in Path(folder).iterdir():
                with suppress(OSError):
                    (Path(keep) / f"{cell.id}-{log.name}").write_bytes(log.read_bytes())
    return Result(cell, found, figures, site.notes, shown, time.monotonic() - began_s)


def in_words(figures: Mapping[str, float]) -> str:
    return "  ".join(f"{name} {value:g}" for name, value in figures.items())


def judged(site: Site) -> tuple[Found, dict[str, float], dict[str, Fate]]:
    """What the checker says, with the figures of the run."""
    cell = site.cell
    dead = site.bridge.dead()
    lines = [line for file in site.folder.glob("*.jsonl") for line in read_history(file)]
    fates = fold((each for each in lines if '"phase"' in each), site.bridge.deliveries())
    terms = Terms(
        duplicates=cell.duplicates,
        clock=site.clock,
        late_ms=cell.late_ms,
        settle_ms=cell.setup.lease_ms + cell.back_off_ms + SETTLE_MS,
        slack_ms=site.slack_s * 1000,
        may_lose_s=cell.may_lose_s,
        cancels_delivered=cell.cancels_delivered,
        others=[site.other] if cell.setup.other else [],
        faults=site.faults,
    )
    found = check(fates, dead, terms)
    for name, what in found.items():
        found[name] = [w for w in what if w not in fates or name not in cell.excuses(w)]
    found["I8"] = site.misplaced()
    known = [fate for fate in fates.values() if fate.accepted]
    figures = {
        "accepted": len(known),
        "delivered": sum(1 for f in fates.values() if f.deliveries),
        "cancelled": sum(1 for f in known if f.cancelled),
        "moved": sum(1 for f in known if f.moved),
        "unknown": sum(1 for f in fates.values() if f.to and not f.accepted),
        "dead": len(dead),
        "lost": sum(1 for f in known if f.is_owed and not f.deliveries and f.id not in dead),
        "duplicates": sum(len(f.again) for f in fates.values()),
        "p99_ms": round(p99_ms(known)),
    }
    if cell.setup.other:
        figures["other_p99_ms"] = round(p99_ms(f for f in known if f.to == site.other))
    return found, figures, fates


def alive(site: Site) -> list[str]:
    return [name for name in site.bridge.workers if not site.bridge.has_ended(name)]


def ended_badly(site: Site) -> list[str]:
    """I14: workers that ended with another exit code than those documented, or with a traceback."""
    logs = site.logs()
    bad = [f"{name}: a traceback" for name, log in logs.items() if "Traceback" in log]
    for name in filter(site.bridge.has_ended, site.bridge.workers):
        code, has_worked = site.bridge.exit_code(name), "lease_acquired" in logs.get(name, "")
        if code not in EXITS and (has_worked or code != UNAVAILABLE):
            bad.append(f"{name} ended with {code}")
    return bad


def rss_mib(pid: int) -> float:
    return _status_mib(pid, "VmRSS")


def peak_mib(pid: int) -> float:
    return _status_mib(pid, "VmHWM")


def _status_mib(pid: int, field: str) -> float:
    with suppress(FileNotFoundError, ProcessLookupError):
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith(field):
                return int(line.split()[1]) / 1024
    return 0.0
