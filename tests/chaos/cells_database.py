"""Cells with a ledger whose database refuses, or comes back with an older past."""

from __future__ import annotations

import shutil
import subprocess
import time
from collections.abc import Callable
from contextlib import suppress

from tests.chaos.cell import Cell, Setup
from tests.chaos.cells_ledger import (
    DATABASE,
    OFTEN,
    REFUSED,
    TOLD_S,
    YOUNG_S,
    ask,
    cell,
    meanwhile_messages_go_out,
    wait_restored,
)  # fmt: skip
from tests.chaos.site import Site
from tests.rigs.waiting import until

FULL_S = 4
DISK_FULL = "No space left on device"
FORGOT = (
    "Redis decides: what it delivered or cancelled since does not come again, what was accepted is "
    "delivered, once"
)
OWN = Setup(ledger=True, settings=OFTEN)


def refused(site: Site, why: str) -> bool:
    """Whether a call was refused with LedgerUnavailable and this reason."""
    lines = site.history.read_text().splitlines()
    return any("LedgerUnavai" in line and why in line for line in lines)


def say_why(site: Site, why: str) -> None:
    """Workers log the reason, and stats have it."""
    logs = "".join(log for name, log in site.logs().items() if name.startswith("w"))
    site.expect("I14", f"a worker logs {why}", why in logs)
    site.expect("I14", "the log is not flooded", logs.count("ledger_silent") < 3 * FULL_S)


def fill_the_table(site: Site) -> None:
    fill(site, DISK_FULL)


def fill_the_file(site: Site) -> None:
    fill(site, "database or disk is full")


def fill(site: Site, why: str) -> None:
    with meanwhile_messages_go_out(site):
        site.disk.fill()
        until(lambda: refused(site, why), f"{why} is said")
        site.wait(FULL_S)
        said = site.bridge.client.stats().ledger
        site.notes.append(f"stats said: {said and said.silent}")
        site.disk.free()
    say_why(site, why)


def fill_it_all(site: Site) -> None:
    """PostgreSQL ends if it has no room for its log."""
    with meanwhile_messages_go_out(site):
        site.disk.fill()
        until(lambda: refused(site, DISK_FULL), "calls are refused")
        until(lambda: has_ended(site), "the server ends", interval_s=0.1)
        site.wait(FULL_S)
        site.disk.free()
        site.database.start()


def has_ended(site: Site) -> bool:
    if site.database.running:
        try:
            ask(site.database.url, "SELECT pg_switch_wal()")
        except Exception as error:
            site.notes.append(f"pg_switch_wal: {str(error)[:100]}")
    return not site.database.running


def count_ended(site: Site) -> int:
    return site.ledger.states()["published"]


def count_live(site: Site) -> int:
    return site.ledger.states()["delayed"] + site.ledger.states()["in_flight"]


def lose_the_last(seconds: float) -> Callable[[Site], None]:
    """What the database committed within this time is gone when it is back."""

    def run(site: Site) -> None:
        with site.fault(after_s=YOUNG_S):
            data, before = site.database.folder / "data", site.database.folder / "before"
            told = count_ended(site)
            site.database.kill()
            subprocess.run(["cp", "-a", data, before], check=True)
            site.database.start()
            site.load_until(lambda: count_ended(site) > told, "workers tell it what left")
            began_s = time.monotonic()
            site.wait(seconds)
            lost = count_ended(site) - told
            site.database.kill()
            shutil.rmtree(data)
            before.rename(data)
            site.notes.append(f"{lost} had left within {time.monotonic() - began_s:.1f} s")
            site.database.start()
        site.finish_load()
        words = ("ledger_went_back", "ledger_rows_ended")
        with suppress(AssertionError):
            wait_restored(site)
        site.notes += [
            f"{name}: {line}"
            for name, log in site.logs().items()
            for line in log.splitlines()
            if any(word in line for word in words)
        ]
        is_said = seconds < 2 * TOLD_S or words[0] in str(site.notes)  # else it is told again
        site.expect("I14", "a worker says that it went back", is_said)
        site.expect("I1", f"all rows have ended: {site.ledger.states()}", not count_live(site))

    return run


CELLS: list[Cell] = [
    cell(
        "F57e", "the disk that has its tables is full for some seconds", REFUSED, fill_the_table,
        setup=Setup(ledger="table space"), seconds=15.0, **DATABASE,
    ),
    cell(
        "F57f", "the disk that has all of it is full: it ends, and starts again some seconds later",
        REFUSED, fill_it_all, setup=Setup(ledger="small disk"), seconds=15.0, **DATABASE,
    ),
    cell(
        "F57g", "it is a SQLite file, and its disk is full for some seconds", REFUSED,
        fill_the_file, setup=Setup(ledger="sqlite"), seconds=20.0, **DATABASE,
    ),
    cell(
        "F57h", "its database forgets the last second, as a replica that was behind", FORGOT,
        lose_the_last(1.0), setup=OWN, seconds=12.0, back_off_ms=YOUNG_S * 1000, **DATABASE,
    ),
    cell(
        "F57i", "its database is restored from a backup that is 10 s old", FORGOT,
        lose_the_last(10.0), setup=OWN, seconds=25.0, back_off_ms=YOUNG_S * 1000, **DATABASE,
    ),
]  # fmt: skip
