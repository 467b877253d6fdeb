"""Due times of a cron expression in a time zone, without a run skipped or doubled by DST.

cronsim reads and matches the expression, on wall-clock times without a zone. What happens when
clocks change is decided here, by the rule of Debian's cron:

- If neither the minute nor the hour field begins with `*`, the runs have wall-clock times. Each
  comes exactly once: a time that the clocks skip is due at the end of the gap, and one that they
  show twice is due the first time. Two runs moved to the same instant are one.
- All others recur through the day, and are due at each instant whose wall-clock time matches: none
  in the gap, and again when the clocks show the hour for the second time.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING
from zoneinfo import ZoneInfo

from delaybridge.errors import MessageError, quoted

if TYPE_CHECKING:
    from cronsim import CronSim

_CHARS = 200
_STEP_S = 6 * 3600  # no two changes of a zone's offset are so close together
_EPOCH = datetime(1970, 1, 1)
_MINUTE = timedelta(minutes=1)
_OR = "a list, a range or */N"
# What cronsim says is wrong -> what to write.
_REMEDIES = {
    "Wrong number of fields": "write 5, as '0 9 * * MON-FRI', or 6 with seconds in front",
    "Bad second": f"write 0-59, {_OR}",
    "Bad minute": f"write 0-59, {_OR}",
    "Bad hour": f"write 0-23, {_OR}",
    "Bad day-of-month": f"write 1-31, as far as the month goes, L, LW, {_OR}",
    "Bad month": f"write 1-12, JAN-DEC, {_OR}",
    "Bad day-of-week": f"write 0-7, SUN-SAT, MON#2, 5L, {_OR}",
}


def check_cron(expression: object, now_ms: int) -> str:
    """The expression with single spaces. MessageError `bad_cron`."""
    if not isinstance(expression, str) or len(expression) > _CHARS:
        raise _bad(f"got {quoted(expression)}; write 5 fields, as '*/15 9-17 * * MON-FRI'")
    clean = " ".join(expression.split())
    if next(_matches(clean, _EPOCH + timedelta(milliseconds=now_ms)), None) is None:
        raise _bad(f"{quoted(clean)} has no run in the next 50 years")
    return clean


def check_zone(name: object) -> str:
    """The name of a time zone. MessageError `bad_tz`."""
    _zone(str(name))
    return str(name)


def explained(expression: str) -> str:
    """When a cron expression runs, in words."""
    return _simulated(expression, _EPOCH).explain()


def cron_times(expression: str, zone: str, after_ms: int) -> Iterator[int]:
    """Due times after `after_ms`, in epoch ms, strictly ascending."""
    fields = expression.split()
    if len(fields) not in (5, 6):
        raise _bad(f"{quoted(expression)} has {len(fields)} fields; write 5, or 6 with seconds")
    minute, hour = fields[-5:-3]
    walk = _recurring if "*" in (minute[0], hour[0]) else _at_fixed_times
    for due_s in walk(expression, _zone(zone), after_ms // 1000):
        yield due_s * 1000


def _recurring(expression: str, zone: ZoneInfo, after_s: int) -> Iterator[int]:
    """Each instant whose wall-clock time matches: between two changes the offset is fixed."""
    while True:
        offset_s = _offset_s(zone, after_s + 1)
        begin = _EPOCH + timedelta(seconds=after_s + offset_s)
        for wall in _matches(expression, begin):
            due_s = _seconds(wall) - offset_s
            change_s = _next_change_s(zone, after_s + 1, due_s)
            if change_s is not None:
                after_s = change_s - 1
                break
            yield due_s
            after_s = due_s
        else:
            return


def _at_fixed_times(expression: str, zone: ZoneInfo, after_s: int) -> Iterator[int]:
    """Each wall-clock time once: the first of two, or the end of the gap that it is in."""
    begin = _EPOCH + timedelta(seconds=after_s + _offset_s(zone, after_s))
    for wall in _matches(expression, begin):
        due_s = _instant_s(zone, wall)
        if due_s > after_s:
            yield due_s
            after_s = due_s


def _instant_s(zone: ZoneInfo, wall: datetime) -> int:
    while True:
        due_s = int(wall.replace(tzinfo=zone).timestamp())
        if due_s + _offset_s(zone, due_s) == _seconds(wall):
            return due_s
        wall = wall.replace(second=0) + _MINUTE


def _next_change_s(zone: ZoneInfo, begin_s: int, end_s: int) -> int | None:
    """The first second in (begin_s, end_s] with another offset than the one before; None if none.

    begin_s may be after end_s.
    """
    offset_s = _offset_s(zone, begin_s)
    for low_s in range(begin_s, end_s, _STEP_S):
        high_s = min(low_s + _STEP_S, end_s)
        if _offset_s(zone, high_s) == offset_s:
            continue
        while high_s - low_s > 1:
            middle_s = (low_s + high_s) // 2
            if _offset_s(zone, middle_s) == offset_s:
                low_s = middle_s
            else:
                high_s = middle_s
        return high_s
    return None


def _matches(expression: str, begin: datetime) -> Iterator[datetime]:
    """Wall-clock times after `begin` that match, until the year 9998 or none in 50 years."""
    times = _simulated(expression, begin)
    while True:
        try:
            found = next(times)
        except (StopIteration, OverflowError, ValueError):
            return
        if found.year > 9998:
            return
        yield found


def _simulated(expression: str, begin: datetime) -> CronSim:
    from cronsim import CronSim, CronSimError

    try:
        return CronSim(expression, begin)
    except CronSimError as exc:
        what = f"{exc}; {_REMEDIES[str(exc)]}" if str(exc) in _REMEDIES else str(exc)
        raise _bad(f"{quoted(expression)}: {what[:1].lower()}{what[1:]}") from None
    except Exception:  # it asserts and indexes where it could check
        raise _bad(f"{quoted(expression)} cannot be read") from None


def _zone(name: str) -> ZoneInfo:
    try:
        if 0 < len(name) <= _CHARS and name == name.strip("/"):
            return ZoneInfo(name)
    except (ValueError, OSError, KeyError):
        pass
    detail = f"{quoted(name)} is not known; write a name as Europe/Berlin or UTC"
    raise MessageError("bad_tz", "tz", detail)


def _offset_s(zone: ZoneInfo, at_s: int) -> int:
    offset = datetime.fromtimestamp(at_s, UTC).astimezone(zone).utcoffset()
    return int((offset or timedelta(0)).total_seconds())


def _seconds(wall: datetime) -> int:
    return (wall - _EPOCH) // timedelta(seconds=1)


def _bad(detail: str) -> MessageError:
    return MessageError("bad_cron", "cron", detail)
