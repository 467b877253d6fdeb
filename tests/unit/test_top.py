"""`delaybridge top` without a terminal: its pages for any size, its keys, its looks."""

from __future__ import annotations

import io
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from rich.cells import cell_len

from delaybridge.errors import StoreDenied, StoreUnavailable
from delaybridge.operate.notices.announcements import IngestInfo, SourceInfo, WorkerInfo
from delaybridge.operate.terminal.output import rate_text
from delaybridge.operate.top.controls import View, keys_of
from delaybridge.operate.top.page import page
from delaybridge.operate.top.picture import Picture, Watcher
from delaybridge.operate.views.bucket_counts import BucketStats
from delaybridge.operate.views.destinations import Place, Places
from delaybridge.operate.views.horizon import Cell, Horizon
from delaybridge.operate.views.retrying import Retrying
from delaybridge.operate.views.series import Lateness, Rates, Recent
from delaybridge.operate.views.stats import Stats
from delaybridge.operate.views.tally import Tally
from delaybridge.store.namespace.rules import Rule
from delaybridge.store.protocol.record import Trouble
from tests.rigs.golden import compare
from tests.rigs.waiting import until

NOW_MS = 1_800_000_000_000
HOSTILE = "\x1b[31m\u202eevil\n日本語" * 30
SIZES = ((80, 24), (40, 10), (39, 10), (40, 9), (1, 1), (66, 15), (200, 60), (80, 11))


def place(name: str, messages: int, *, paused: bool = False, error: int = 0) -> Place:
    levels = [(name, Rule(paused=True))] if paused else []
    counts = [Tally(messages, error), Tally(0), Tally(0), Tally(0)]
    return Place(name, *counts, next_due_ms=None, levels=levels, trouble=None)


def places(*each: Place) -> Places:
    return Places(NOW_MS, list(each), 0, {}, [])


def stats(**fields: Any) -> Stats:
    buckets = [BucketStats(n, 10, 1, 0, 0, NOW_MS, 0, "w", 900) for n in range(16)]
    worker = WorkerInfo("w", "h", 1, "0.1.0", NOW_MS - 5000, 16, NOW_MS + 9000)
    found = Stats(NOW_MS, 160, 16, 0, 0, NOW_MS + 41, 0, buckets, [worker])
    return found._replace(**fields)


def horizon(*counts: int) -> Horizon:
    cells = [Cell(NOW_MS + n * 1000, NOW_MS + (n + 1) * 1000, c) for n, c in enumerate(counts)]
    return Horizon(NOW_MS, cells, sum(counts), 0, 0, None, None, 7, 0)


def recent(**fields: Any) -> Recent:
    late = Lateness(1.9, 6.2, 31)
    per_s = {"scheduled": 1902.0, "published": 1911.4, "retried": 0.01}
    rates = [
        Rates(window_s, window_s, per_s, late, {"kafka:a": per_s}) for window_s in (1, 60, 900)
    ]
    return Recent(NOW_MS, rates)._replace(**fields)


def everything() -> Picture:
    source = SourceInfo(HOSTILE, HOSTILE, HOSTILE, 1, 1, 1, 1, 1.0)
    troubled = stats(
        ingests=[IngestInfo(HOSTILE, "h", 1, "v", None, [source], NOW_MS)],
        retrying=[Retrying(HOSTILE, "nack", 3, NOW_MS - 9, HOSTILE)] * 9,
        troubles=[Trouble(HOSTILE, HOSTILE, "w"), Trouble(HOSTILE, HOSTILE, "v")],
        overdue_ms=99_000,
    )
    listed = [place(f"{n}{HOSTILE}", n * 1000, paused=n % 2 == 0, error=n) for n in range(50)]
    return Picture(
        troubled, horizon(*range(61)), recent(silent={HOSTILE: HOSTILE}), places(*listed)
    )


PICTURES = {
    "nothing yet": Picture(),
    "empty": Picture(stats(workers=[], buckets=[]), horizon(*[0] * 61), recent(), places()),
    "only stats": Picture(stats()),
    "everything": everything(),
    "away": Picture(everything().stats, error=HOSTILE, away_s=time.monotonic()),
    "never there": Picture(error="redis: gone", away_s=time.monotonic()),
    "no rates": Picture(stats(), horizon(1), recent(missing="no worker has reported yet")),
}


@pytest.mark.parametrize("picture", PICTURES.values(), ids=list(PICTURES))
@pytest.mark.parametrize("tab", range(4))
@pytest.mark.parametrize("encoding", ["utf-8", "latin-1"])
def test_a_page_has_the_size_of_its_terminal(
    picture: Picture, tab: int, encoding: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdout", io.TextIOWrapper(io.BytesIO(), encoding))
    for width, height in SIZES:
        for helps in (False, True):
            lines = page(picture, View(tab, helps=helps), width, height, "redis://h/0  ns")
            assert len(lines) == height
            assert max(cell_len(line.plain) for line in lines) <= width
            assert all(line.plain.isprintable() for line in lines)
            assert encoding == "utf-8" or not {*"█▁…"} & {*"".join(line.plain for line in lines)}


def shown(picture: Picture, view: View | None = None, height: int = 24) -> str:
    return "\n".join(line.plain for line in page(picture, view or View(), 80, height))


def test_the_overview_of_80_by_24_shows_each_part_and_what_is_wrong_first() -> None:
    well = Picture(stats(), horizon(*[5] * 60), recent(), places(place("kafka:a", 160)))
    buckets = [each._replace(owner=None) for each in stats().buckets[:3]]
    trouble = [Trouble("kafka:a", "refused", name) for name in ("v", "w")]
    wrong = Picture(
        stats(buckets=buckets, troubles=trouble, overdue_ms=9000),
        places=places(place("kafka:b", 0, paused=True)),
    )
    screens = [line.rstrip() for each in (well, wrong) for line in shown(each).splitlines()]
    compare(Path(__file__).parent / "golden" / "top.screen", screens)


def test_any_second_with_a_message_has_a_bar_and_the_fullest_reaches_the_top() -> None:
    counts = [0] * 60
    counts[10], counts[50] = 1, 100_000
    text = shown(Picture(stats(), horizon(*counts)))
    bars = [line[12:] for line in text.splitlines() if set(line[12:]) & set("▁▂▃▄▅▆▇█")]
    assert bars[-1][10] == "▁" and bars[-1].count(" ") == 58
    assert [line[50] for line in bars] == ["█"] * len(bars)


@pytest.mark.parametrize(
    ("per_s", "text"),
    [(0, "0"), (0.01, "<0.1"), (0.05, "0.1"), (0.2, "0.2"), (9.94, "9.9"), (9.96, "10"),
     (1234.5, "1,234")],
)  # fmt: skip
def test_a_rate_that_is_not_zero_never_looks_like_it(per_s: float, text: str) -> None:
    assert rate_text(per_s) == text


@pytest.mark.parametrize(
    ("typed", "keys"),
    [
        (b"q", "q"),
        (b"jjP", "j j P"),
        (b"\x1b[A\x1b[B\x1bOA\x1bOB", "k j k j"),
        (b"\t\x1b[Z", "tab backtab"),
        (b"\x1b[15~\x1b[1;5C", ""),
        (b"\x03", "q"),
        (b"\x1b", "escape"),
        ("é\xff".encode(), "é ÿ"),
        (b"\xff\xfe", "\ufffd \ufffd"),
    ],
)
def test_keys(typed: bytes, keys: str) -> None:
    assert list(keys_of(typed)) == keys.split()


def pressed(view: View, picture: Picture, keys: str) -> View:
    for key in keys:
        page(picture, view, 80, 24)
        view.press(key)
    page(picture, view, 80, 24)
    return view


def test_a_line_stays_selected_when_the_order_changes() -> None:
    before = Picture(stats(), places=places(place("a", 9), place("b", 5), place("c", 1)))
    after = Picture(stats(), places=places(place("a", 1), place("b", 5), place("c", 9)))
    view = pressed(View(), before, "2jj")
    assert view.selected == "b"
    assert pressed(view, after, "").selected == "b"
    view.press("P")
    assert view.toggles == "b"
    assert pressed(view, after, "j").selected == "a"
    assert pressed(view, after, "g").selected == "c"
    assert pressed(view, after, "kG").selected == "a"


def test_nothing_is_paused_that_is_not_selected_and_shown() -> None:
    picture = Picture(stats(), places=places(place("a", 9)))
    for keys in ("P", "2P", "3jP", "4jP", "2j1P"):
        view = pressed(View(), picture, keys)
        assert (view.toggles, bool(view.note)) == ("", True), keys
    view = pressed(View(), picture, "2j")
    assert view.selected == "a"
    pressed(view, Picture(stats(), places=places(place("b", 1))), "P")
    assert view.toggles == "", "it is gone"


def test_a_long_list_is_scrolled_to_what_is_selected() -> None:
    picture = Picture(stats(), places=places(*(place(f"p{n:03}", 900 - n) for n in range(100))))
    view = pressed(View(), picture, "2" + "j" * 60)
    assert view.selected == "p059"
    assert "p059" in shown(picture, view) and "of 100" in shown(picture, view)


class Fake:
    """A client whose answers a test decides."""

    def __init__(self) -> None:
        self.answer: Callable[[], Picture] = lambda: Picture(stats())
        self.changes: list[str] = []
        self.destinations = self  # which has the verbs pause and resume

    def run(self, call: object) -> Picture:
        return self.answer()

    def pause(self, name: str) -> None:
        self.changes.append(f"pause {name}")

    def resume(self, name: str) -> None:
        raise StoreUnavailable("redis: gone")


def fail() -> Picture:
    raise StoreUnavailable("redis: gone")


def deny() -> Picture:
    raise StoreDenied("redis: access refused")


def test_the_watcher_keeps_its_last_picture_while_redis_is_away_and_heals() -> None:
    client = Fake()
    watcher = Watcher(client, 0.01, lambda: None)  # type: ignore[arg-type]
    watcher.start()
    until(lambda: watcher.picture.stats is not None)
    client.answer = fail
    until(lambda: watcher.picture.away_s is not None)
    away = watcher.picture
    assert away.stats is not None and away.error == "redis: gone"
    until(lambda: watcher.picture is not away)
    assert watcher.picture.away_s == away.away_s, "since when, not since the last try"
    client.answer = lambda: Picture(stats(), places=places(place("b", 1, paused=True)))
    until(lambda: watcher.picture.away_s is None)
    watcher.toggle("a")
    assert until(watcher.outcome).startswith("a is paused")
    watcher.toggle("b")
    assert until(watcher.outcome).endswith(" changed: redis: gone")
    assert client.changes == ["pause a"] and watcher.outcome() == ""
    client.answer = deny
    until(lambda: watcher.picture.error == "redis: access refused")
    text = shown(watcher.picture)
    assert "no look has succeeded" in text and "has not answered" not in text
    watcher.stop()
