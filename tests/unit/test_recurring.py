"""Due times through changes of clocks, templates, and what a worker makes of a definition."""

from __future__ import annotations

import random
from datetime import UTC, datetime, timedelta
from itertools import islice, pairwise, takewhile
from typing import Any
from zoneinfo import ZoneInfo

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from delaybridge.errors import MessageError
from delaybridge.recurring.client import definition_of, preview_of
from delaybridge.recurring.cron import check_cron, check_zone, cron_times
from delaybridge.recurring.definition import MISSED, Definition
from delaybridge.recurring.plan import plan, ttl_ms
from delaybridge.recurring.repair import mend_looks
from delaybridge.recurring.stored import read_entry, spans_until, spans_with
from delaybridge.recurring.template import check_template, filled

LEAD_MS = 3000

NOW_MS = 1_800_000_000_000
BERLIN, NEW_YORK, LORD_HOWE = "Europe/Berlin", "America/New_York", "Australia/Lord_Howe"
# Zone, the local midnight before a change in 2026.
CHANGES = {
    "Berlin, spring": (BERLIN, "2026-03-29"),
    "Berlin, autumn": (BERLIN, "2026-10-25"),
    "New York, spring": (NEW_YORK, "2026-03-08"),
    "New York, autumn": (NEW_YORK, "2026-11-01"),
    "Lord Howe, spring": (LORD_HOWE, "2026-10-04"),
    "Lord Howe, autumn": (LORD_HOWE, "2026-04-05"),
    "Apia, a day is left out": ("Pacific/Apia", "2011-12-29"),
    "no change": ("Asia/Kolkata", "2026-10-25"),
}


def epoch_ms(zone: str, local: str) -> int:
    return int(datetime.fromisoformat(local).replace(tzinfo=ZoneInfo(zone)).timestamp() * 1000)


def runs(cron: str, zone: str, day: str, hours: int = 30) -> list[str]:
    """The runs from a local midnight on, as the clock on the wall shows them, with its offset."""
    begin_ms = epoch_ms(zone, day) - 1000
    found = []
    for due_ms in cron_times(cron, zone, begin_ms):
        if due_ms > begin_ms + hours * 3_600_000:
            break
        found.append(f"{datetime.fromtimestamp(due_ms / 1000, ZoneInfo(zone)):%d %H:%M%z}")
    return found


@pytest.mark.parametrize(
    ("cron", "change", "expected"),
    [
        ("30 2 * * *", "Berlin, spring", ["29 03:00+0200", "30 02:30+0200"]),
        ("0,30 2 * * *", "Berlin, spring", ["29 03:00+0200", "30 02:00+0200", "30 02:30+0200"]),
        ("0 2,3 * * *", "Berlin, spring", ["29 03:00+0200", "30 02:00+0200", "30 03:00+0200"]),
        ("15 30 2 * * *", "Berlin, spring", ["29 03:00+0200", "30 02:30+0200"]),
        ("30 2 * * *", "Berlin, autumn", ["25 02:30+0200", "26 02:30+0100"]),
        ("15 30 2 * * *", "Berlin, autumn", ["25 02:30+0200", "26 02:30+0100"]),
        ("0 */2 1-3 * *", "no change", []),
        ("30 2 * * *", "New York, spring", ["08 03:00-0400", "09 02:30-0400"]),
        ("30 1 * * *", "New York, autumn", ["01 01:30-0400", "02 01:30-0500"]),
        ("15 2 * * *", "Lord Howe, spring", ["04 02:30+1100", "05 02:15+1100"]),
        ("45 1 * * *", "Lord Howe, autumn", ["05 01:45+1100", "06 01:45+1030"]),
        ("0 12 * * *", "Apia, a day is left out", ["29 12:00-1000", "31 00:00+1400"]),
    ],
)
def test_a_run_at_a_fixed_time_comes_once_each_day(
    cron: str, change: str, expected: list[str]
) -> None:
    assert runs(cron, *CHANGES[change]) == expected


@pytest.mark.parametrize(
    ("cron", "change", "hour", "expected"),
    [
        ("*/30 * * * *", "Berlin, spring", "29 0[123]", ["01:00", "01:30", "03:00", "03:30"]),
        ("*/30 * * * *", "Berlin, autumn", "25 02", ["02:00", "02:30", "02:00", "02:30"]),
        ("*/30 * * * *", "New York, autumn", "01 01", ["01:00", "01:30", "01:00", "01:30"]),
        ("*/15 3 * * *", "Lord Howe, spring", "04 03", ["03:00", "03:15", "03:30", "03:45"]),
        ("45 * * * *", "Lord Howe, autumn", "05 0[12]", ["00:45", "01:45", "01:45", "02:45"]),
    ],
)
def test_a_run_through_the_day_comes_whenever_the_clock_on_the_wall_matches(
    cron: str, change: str, hour: str, expected: list[str]
) -> None:
    found = [run[3:8] for run in runs(cron, *CHANGES[change], hours=26)]
    assert found[: len(found)] and all(run in found for run in expected)
    matching = [run for run in found if run[:2] in {each[:2] for each in expected}]
    assert matching[: len(expected)] == expected


FIELDS = st.tuples(
    st.sampled_from(["*", "*/7", "*/15", "0", "30", "5,35", "10-50/20"]),
    st.sampled_from(["*", "*/2", "*/5", "1-3", "0", "2", "2,3", "23"]),
    st.sampled_from(["*", "1-15", "25", "L"]),
    st.sampled_from(["*", "3,4,10,11"]),
    st.sampled_from(["*", "SUN", "MON-FRI", "SUN#1"]),
)


@given(FIELDS, st.sampled_from(sorted(CHANGES)), st.integers(0, 3 * 24 * 60))
def test_due_times_are_those_of_a_walk_minute_by_minute(
    fields: tuple[str, ...], change: str, minutes: int
) -> None:
    cron, (zone, day) = " ".join(fields), CHANGES[change]
    begin_ms = epoch_ms(zone, day) - 36 * 3_600_000 + minutes * 60_000 - 30_000
    end_ms = begin_ms + 72 * 3_600_000
    found = [*takewhile(lambda due_ms: due_ms <= end_ms, cron_times(cron, zone, begin_ms))]
    assert all(one < other for one, other in pairwise(found))
    assert found == walked(cron, zone, begin_ms, end_ms)
    # and from wherever one begins, the same follow
    if found:
        again = cron_times(cron, zone, found[len(found) // 2])
        rest = found[len(found) // 2 + 1 :]
        assert [*islice(again, len(rest))] == rest


def walked(cron: str, zone: str, begin_ms: int, end_ms: int) -> list[int]:
    """The same by looking at each minute: does the wall clock match, or a time that it skipped?"""
    minute, hour = cron.split()[:2]
    is_fixed = "*" not in (minute[0], hour[0])
    found = []
    matches = walls(cron, zone, begin_ms, end_ms)
    seen: set[datetime] = set()
    before = None
    # A wall clock time that was shown before this span began does not come again in it.
    for due_ms in range(begin_ms // 60_000 * 60_000 - 26 * 3_600_000, end_ms + 1, 60_000):
        wall = datetime.fromtimestamp(due_ms / 1000, ZoneInfo(zone)).replace(tzinfo=None)
        now = [wall]
        if is_fixed:
            if before is not None and wall - before > timedelta(minutes=1):
                gap = int((wall - before) / timedelta(minutes=1))
                now += [before + timedelta(minutes=n) for n in range(1, gap)]
            now = [each for each in now if each not in seen]
            seen.update(now)
        before = wall
        if due_ms > begin_ms and any(each in matches for each in now):
            found.append(due_ms)
    return found


def walls(cron: str, zone: str, begin_ms: int, end_ms: int) -> set[datetime]:
    """The wall clock times that match, without any zone: cronsim's own work."""
    from cronsim import CronSim

    begin = datetime.fromtimestamp(begin_ms / 1000, ZoneInfo(zone)).replace(tzinfo=None)
    end = datetime.fromtimestamp(end_ms / 1000, ZoneInfo(zone)).replace(tzinfo=None)
    found = set()
    for wall in CronSim(cron, begin - timedelta(days=3)):
        if wall > end + timedelta(days=2):
            break
        found.add(wall)
    return found


@pytest.mark.parametrize(
    "cron",
    ["", "x", "* * * *", "60 * * * *", "* * * * FRI#9", "0 0 30 2 *", "MON#1/2 * * * *", "9" * 300,
     "٣ * * * *", None, 5, "* * * * * * *"],
)  # fmt: skip
def test_a_cron_expression_that_never_runs_is_refused(cron: Any) -> None:
    with pytest.raises(MessageError, match="cron"):
        check_cron(cron, NOW_MS)


@pytest.mark.parametrize(
    "zone", ["", "Mars/X", "../etc/passwd", "/etc/passwd", "\0", "Europe", 5, "/".join("a" * 400)]
)
def test_a_zone_that_does_not_exist_is_refused(zone: Any) -> None:
    with pytest.raises(MessageError, match="tz"):
        check_zone(zone)


def test_an_interval_counts_real_time_also_when_clocks_change() -> None:
    begin_ms = epoch_ms(BERLIN, "2026-03-29")
    definition = Definition(name="n", destination="kafka:t", every_ms=7_200_000)
    found = [*islice(definition.times(begin_ms), 5)]
    assert {later - sooner for sooner, later in pairwise(found)} == {7_200_000}
    assert found[0] % 7_200_000 == 0


def test_a_preview_says_in_words_when_it_runs() -> None:
    found = preview_of("*/15 9-17 * * MON-FRI", None, "UTC", 5)
    assert found.words.startswith("Every 15th minute from")
    assert len(found.times) == 5
    assert all(time > datetime.now(UTC) and time.minute % 15 == 0 for time in found.times)


# templates

VALUES = {"due": "D", "due_ms": "7", "name": "N"}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (b'{"a": {"b": "${due}"}}', b'{"a": {"b": "D"}}'),
        (b"${due_ms}${name}", b"7N"),
        (b"$${due} $$${due} $5 {due} $due }{", b"${due} $${due} $5 {due} $due }{"),
        (b"\xff${due}\x00", b"\xffD\x00"),
    ],
)
def test_only_placeholders_are_replaced(text: bytes, expected: bytes) -> None:
    check_template(text, "body")
    assert filled(text, VALUES) == expected


@pytest.mark.parametrize("text", [b"${dew}", b"${", b"${due", b"${ due}", b"${DUE}", b"${}"])
def test_an_unknown_placeholder_is_refused(text: bytes) -> None:
    with pytest.raises(MessageError, match="bad_template"):
        check_template(text, "body")


# plans

MINUTE = Definition(name="n", destination="kafka:t", every_ms=60_000)


def planned(missed: str, planned_ms: int, now_ms: int, **fields: Any) -> Any:
    made = Definition(name="n", destination="kafka:t", every_ms=60_000, missed=missed)  # type: ignore[arg-type]
    return plan(made, planned_ms, now_ms, **{"is_first": False, **fields})


def test_the_next_run_is_made_shortly_before_the_one_before_it_is_due() -> None:
    found = plan(MINUTE, NOW_MS, NOW_MS - LEAD_MS, is_first=False)
    assert (found.due_ms, found.look_ms) == ([NOW_MS + 60_000], NOW_MS + 60_000 - LEAD_MS)
    assert plan(MINUTE, NOW_MS, NOW_MS - LEAD_MS - 1, is_first=False).due_ms == []


def test_a_run_is_missed_two_seconds_after_it_was_due() -> None:
    due_ms, next_ms = NOW_MS + 60_000, NOW_MS + 120_000
    in_time, late = (planned("skip", NOW_MS, due_ms + after_ms) for after_ms in (1999, 2000))
    assert (in_time.due_ms, in_time.missed) == ([due_ms, next_ms], 0)
    assert (late.due_ms, late.missed) == ([next_ms], 1)


@given(st.sampled_from(MISSED), st.integers(-10, 10**7), st.booleans())
def test_a_plan_is_ascending_and_later_than_what_is_decided(
    missed: str, ago_ms: int, is_first: bool
) -> None:
    found = planned(missed, NOW_MS, NOW_MS + ago_ms, is_first=is_first)
    assert all(one < other for one, other in pairwise([NOW_MS, *found.due_ms]))
    assert found.planned_ms > NOW_MS + ago_ms + LEAD_MS or found.planned_ms == NOW_MS
    assert found.missed == len(range(NOW_MS + 60_000, NOW_MS + ago_ms - 2000 + 1, 60_000))


def test_a_run_that_may_be_skipped_gets_a_time_to_live() -> None:
    fields: dict[str, Any] = {"name": "n", "destination": "kafka:t", "missed": "skip"}
    assert ttl_ms(Definition(**fields, every_ms=5000), NOW_MS) == 5000
    assert ttl_ms(Definition(**fields, every_ms=500_000), NOW_MS) == 60_000
    assert ttl_ms(Definition(**fields, every_ms=5000, ttl_ms=9), NOW_MS) == 9
    assert ttl_ms(MINUTE, NOW_MS) is None


# definitions


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"name": "a b"}, "bad_name"),
        ({"name": "x" * 101}, "bad_name"),
        ({"every": None}, "time_required"),
        ({"cron": "* * * * *"}, "time_required"),
        ({"every": "1500ms"}, "bad_every"),
        ({"every": 0.5}, "bad_every"),
        ({"tz": "Europe/Berlin"}, "bad_tz"),
        ({"missed": "some"}, "bad_missed"),
        ({"body": "${x}"}, "bad_template"),
        ({"headers": {"a": "${x}"}}, "bad_template"),
        ({"headers": {"a": [1]}}, "bad_header"),
        ({"headers": {"a": b"\xff"}}, "bad_header"),
        ({"body": 5}, "bad_body"),
        ({"body": "x" * 200_000}, "body_too_large"),
        ({"body": "\ud800"}, "bad_text"),
        ({"key": "\ud800"}, "bad_text"),
        ({"start": "2030-01-01T00:00:00Z", "end": "2029-01-01T00:00:00Z"}, "bad_time"),
    ],
)
def test_a_wrong_definition_is_refused_with_the_field(fields: dict[str, Any], code: str) -> None:
    given: dict[str, Any] = {"name": "n", "destination": "kafka:t", "body": "x", "every": "5s"}
    with pytest.raises(MessageError) as found:
        definition_of(**{**given, **fields}).checked(NOW_MS)
    assert found.value.code == code


@given(st.binary(max_size=200))
def test_whatever_is_stored_can_be_read(raw: bytes) -> None:
    entry = read_entry(b"n", raw, raw)
    assert entry.definition is not None or entry.error


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(0, 50)), max_size=12), st.integers(0, 50))
def test_spans_hold_what_was_added_and_nothing_else(added: list[tuple[int, int]], end: int) -> None:
    spans: tuple[tuple[int, int], ...] = ()
    for low, high in added:
        spans = spans_with(spans, low, high)
    assert all(one[1] < other[0] for one, other in pairwise(spans))
    for at in range(52):
        expected = any(low < at <= high for low, high in added)
        assert any(low < at <= high for low, high in spans) is expected
        cut = any(low < at <= high for low, high in spans_until(spans, end))
        assert cut is (expected and at <= end)


def test_a_definition_is_read_as_it_was_written() -> None:
    draw = random.Random(1)
    for body in ("x", b"\xff\x00", None, "", "é"):
        one = definition_of("n", "kafka:t", body, every=draw.randrange(1, 9), headers={"a": 1})
        assert read_entry("n", msgspec.json.encode(one)).definition == one


def test_only_definitions_that_may_be_lost_are_read_each_minute() -> None:
    call = mend_looks("shop")
    next(call)
    (looks,) = call.send([{b"sound": b"", b"lost": b""}, NOW_MS * 1000])
    assert looks.name == "ZMSCORE"
    (read,) = call.send([[None, str(NOW_MS).encode()]])
    assert (read.name, read.args[1:]) == ("HMGET", (b"lost",))
    with pytest.raises(StopIteration):
        call.send([[None]])
