"""Cells with a ledger: Redis is lost, the database is, or the two disagree."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace

from tests.chaos.cell import Cell, Setup
from tests.chaos.cells_redis import roll_back
from tests.chaos.cells_sites import split_brain
from tests.chaos.site import WINDOW, Site
from tests.rigs.waiting import until

KEPT = Setup(redis="own", ledger=True)
WIPED = Setup(redis="own", redis_args=("--save", ""), ledger=True)
WIPED_PROXIED = replace(WIPED, through=("ledger",))
OFTEN = {"LEDGER__RECONCILE_S": "2"}
PROXIED = Setup(ledger=True, through=("ledger",))
TOLD_S = 1  # so often workers tell the ledger what left
YOUNG_S = 30  # a row without a message may be of a call under way for so long
# What left and was not told yet, at 150/s, and what was in flight.
TWICE = 2 * TOLD_S * 150 + 2 * WINDOW


def vanish(site: Site) -> None:
    with site.fault(after_s=5):
        site.redis.kill()
        site.redis.start()
    must_be_rebuilt(site)


def be_flushed(site: Site) -> None:
    with site.fault(after_s=5):
        site.direct.flushall()
    must_be_rebuilt(site)


def be_flushed_without_database(site: Site) -> None:
    with site.fault(after_s=5):
        site.database.kill()
        be_flushed_twice(site)
        site.database.start()
    wait_restored(site)  # until then Redis has nothing


def be_flushed_while_it_is_slow(site: Site) -> None:
    with site.fault(after_s=5):
        site.ledger_proxy.delay_s = 0.5  # in each direction
        be_flushed_twice(site)
        site.ledger_proxy.delay_s = 0


def be_flushed_twice(site: Site) -> None:
    for _ in range(2):
        site.direct.flushall()
        site.wait(6)
    waiting = [name for name, log in site.logs().items() if "buckets_wait" in log]
    site.expect("I14", "workers say that they wait for the database", waiting)


def must_be_rebuilt(site: Site) -> None:
    """A worker says within 5 s that data was gone; all of them go on."""
    words = ("store_wiped", "store_went_back", "ledger_differs")  # by who made the namespace again
    began_s = time.monotonic()
    with suppress(AssertionError):
        until(
            lambda: any(word in log for log in site.logs().values() for word in words),
            interval_s=0.05,
        )  # fmt: skip
    took_s = time.monotonic() - began_s
    site.notes.append(f"said after {took_s:.1f} s")
    is_soon = took_s <= 5 + site.slack_s
    site.expect("I14", "a worker says within 5 s that data was gone", is_soon)


def be_rolled_back(site: Site) -> None:
    with site.fault(after_s=site.lease_s):
        roll_back(site)


def have_two_masters(site: Site) -> None:
    with site.fault(after_s=YOUNG_S + 5):
        split_brain(site)
    wait_restored(site)


def be_away(site: Site) -> None:
    with meanwhile_messages_go_out(site):
        site.database.kill()
        site.wait(5)
        site.database.start()


def be_silent(site: Site) -> None:
    with meanwhile_messages_go_out(site):
        site.database.pause()
        site.wait(5)
        site.database.resume()


def be_read_only(site: Site) -> None:
    """As after a fail-over, if the address still leads to the old primary."""

    def set_it(value: str) -> None:
        url = f"{site.database.url}?options=-c%20default_transaction_read_only%3Doff"
        ask(url, f"ALTER SYSTEM SET default_transaction_read_only = {value}")
        ask(url, "SELECT pg_reload_conf()")

    with meanwhile_messages_go_out(site):
        set_it("on")
        site.wait(5)
        set_it("off")


def ask(url: str, statement: str) -> None:
    from sqlalchemy import create_engine, text

    engine = create_engine(url, isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        connection.execute(text(statement))
    engine.dispose()


@contextmanager
def meanwhile_messages_go_out(site: Site) -> Iterator[None]:
    """Calls are refused in this block, and what was accepted goes out on time."""
    until(site.bridge.deliveries, "something is due")
    began_us = time.time_ns() // 1000
    with site.fault():
        yield
    ended_us = time.time_ns() // 1000
    refused = [line for line in site.history.read_text().splitlines() if "LedgerUnavai" in line]
    site.expect("I1", "calls were refused with LedgerUnavailable", refused)
    site.bridge.wait_consumed()
    came = [d for d in site.bridge.deliveries() if d.at_us < ended_us]
    before_ms = [d.at_us / 1000 - d.due_ms for d in came if d.due_ms * 1000 < began_us]
    late_ms = [d.at_us / 1000 - d.due_ms for d in came if d.due_ms * 1000 > began_us]
    latest_ms, most_ms = max(late_ms, default=9e9), max(before_ms) + 1000 + site.slack_s * 1000
    site.notes.append(f"meanwhile {len(late_ms)} came, up to {latest_ms:.0f} ms late")
    said = f"they are on time: {latest_ms:.0f} ms late, and before {max(before_ms):.0f}"
    site.expect("I16", said, latest_ms < most_ms)


def be_slow(site: Site) -> None:
    with site.fault():
        site.ledger_proxy.delay_s = 0.1  # in each direction
        site.wait(site.seconds - 2)
        site.ledger_proxy.delay_s = 0


def lose_buckets(site: Site) -> None:
    """Somebody deletes every other bucket."""
    with site.fault(after_s=5):
        lose(site, lambda name: True)
    site.finish_load()


def lose_messages(site: Site) -> None:
    """Somebody deletes the messages of every other bucket, and leaves what belongs to them."""
    with site.fault(after_s=YOUNG_S + 5):
        lose(site, lambda name: name in ("due", "messages"))
    wait_restored(site)


def wait_restored(site: Site) -> None:
    """Wait until the ledger has nothing left that is to go out."""

    def left() -> int:
        states = site.ledger.states()
        return states["delayed"] + states["in_flight"]

    began_s = time.monotonic()
    site.finish_load()
    until(lambda: not left(), lambda: f"{site.ledger.states()}", interval_s=0.5)
    site.notes.append(f"all were delivered after {time.monotonic() - began_s:.0f} s")


def lose(site: Site, is_lost: Callable[[str], bool]) -> None:
    """Delete these keys of every other bucket, each bucket's at once."""
    site.wait(4)
    lost: dict[int, list[bytes]] = {}
    for key in site.direct.scan_iter(f"{{{site.namespace}:*}}:*"):
        tag, _, name = key.decode().rpartition(":")
        number = int(tag.rpartition(":")[2].rstrip("}"))
        if number % 2 and is_lost(name):
            lost.setdefault(number, []).append(key)
    for keys in lost.values():
        site.direct.delete(*keys)
    site.notes.append(f"deleted {sum(map(len, lost.values()))} keys of {len(lost)} buckets")


def cell(id: str, fault: str, expects: str, run: Callable[[Site], None], **more: object) -> Cell:
    return Cell(id=id, fault=fault, expects=expects, run=run, **more)  # type: ignore[arg-type]


REBUILT = (
    "workers rebuild it: nothing is lost, nothing goes out after `cancelled`. What was published "
    "just before may be answered `cancelled`, or come twice, also if it was to come at most once"
)
LOST = {"component": "Redis with a ledger", "cancels_delivered": True, "cannot_hold": ("I11",)}
LOST_IN_PART = {**LOST, "component": "ledger"}
DATABASE = {"component": "ledger"}
REFUSED = "calls are refused with LedgerUnavailable; what was accepted goes out on time, once"
CELLS = [
    cell(
        "F11", "killed and started again under load, nothing on disk", REBUILT, vanish,
        setup=WIPED, duplicates=TWICE, is_test=True, **LOST,
    ),
    cell(
        "F16-ledger", "with Sentinels: for 5 s there are two masters, as in F16b",
        f"within ledger.reconcile_s (here 2 s) and {YOUNG_S} s what the losing master accepted is "
        "restored. What both knew may come twice, also what one of them cancelled or moved, and "
        "what is to come at most once",
        have_two_masters, setup=Setup(redis="sentinel", ledger=True, settings=OFTEN),
        duplicates=16 * WINDOW, back_off_ms=YOUNG_S * 1000 + 10_000,
        component=LOST["component"], cannot_hold=("I3", "I4", "I11"),
    ),
    cell(
        "F26-ledger", "FLUSHALL under load", REBUILT, be_flushed,
        setup=WIPED, duplicates=TWICE, **LOST,
    ),
    cell(
        "F26-ledger-down", "its database is killed, and FLUSHALL, twice; it is back after 12 s",
        f"no worker ends: they wait for the database. Then {REBUILT}", be_flushed_without_database,
        setup=WIPED, duplicates=TWICE, **LOST,
    ),
    cell(
        "F26-ledger-slow", "a second for each round trip to its database, and FLUSHALL, twice",
        f"no worker ends: they compare their buckets as fast as it answers. {REBUILT[0].upper()}"
        f"{REBUILT[1:]}",
        be_flushed_while_it_is_slow, setup=WIPED_PROXIED, duplicates=TWICE, **LOST,
    ),
    cell(
        "F74-ledger", "restored from files that are two seconds older, under load",
        REBUILT, be_rolled_back, setup=KEPT, duplicates=2 * TWICE, **LOST,
    ),
    cell(
        "F57", "its database is killed, and away for 5 s", REFUSED, be_away,
        setup=Setup(ledger=True), is_test=True, **DATABASE,
    ),
    cell(
        "F57b", "its database does not answer for 5 s", REFUSED, be_silent,
        setup=Setup(ledger=True), **DATABASE,
    ),
    cell(
        "F57c", "its database is read-only for 5 s", REFUSED, be_read_only,
        setup=Setup(ledger=True), **DATABASE,
    ),
    cell(
        "F57d", "200 ms for each round trip to its database",
        "nothing is lost or repeated; each call waits for several of them", be_slow,
        setup=PROXIED, **DATABASE,
    ),
    cell(
        "F58", "every other bucket is deleted under load", REBUILT, lose_buckets,
        setup=KEPT, duplicates=TWICE, **LOST_IN_PART,
    ),
    cell(
        "F58b", "the keys `due` and `messages` of every other bucket are deleted under load",
        f"within ledger.reconcile_s (here 2 s) and {YOUNG_S} s the messages are restored. What a "
        "worker had claimed goes out all the same, although a cancel is answered `cancelled`, and "
        "may come twice",
        lose_messages,
        setup=Setup(redis="own", ledger=True, settings=OFTEN, load={"first_s": 4.0}),
        duplicates=TWICE, back_off_ms=YOUNG_S * 1000,
        cannot_hold=("I3", "I11"), **DATABASE,
    ),
]  # fmt: skip
