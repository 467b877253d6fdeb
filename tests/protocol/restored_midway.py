"""A ledger while messages move to other buckets: a small model of what is not built yet.

`bucket resize` refuses a namespace with a ledger. This is the design that it waits for, and what
breaks without each of its rules. One message with a row: in Redis (hot), or in the ledger alone
(cold). It moves from a source to a target in a page; owners deliver it; two readers read the row
and bring the message into Redis if that lacks it, as a comparison, a promotion and `ledger restore`
do. What left stays in `gone` of its bucket until the ledger was told, and some seals longer.

So cold messages need not wait for the end of a resize, and rows are not renamed while it is under
way: whoever reads a row asks all buckets that may have its message, in the order in which it moves.

The promise: it is in one place, and is delivered once at most.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import NamedTuple

_SEALS = 3  # of each bucket at most


class MidwayRules(NamedTuple):
    """What can be taken out, to see what it is for."""

    source_first: bool = True  # who brings a message asks the source, and only then the target
    helped: bool = True  # and lands the page that is on its way, in between
    known_moved: bool = True  # the source brings nothing that it has sent to the target before
    gone_of_source: bool = True  # what has left the source is not brought to the target
    told_first: bool = True  # the source retires only when the ledger knows all that left it
    fenced: bool = True  # a restore does nothing if too much was sealed since its row was read
    fenced_by_retiring: bool = True  # nor if the source has retired since


class Gone(NamedTuple):
    """What is known of the message in `gone` of a bucket. told: the seal by which it was told."""

    has_left: bool = False
    told: int = -1
    seals: int = 0


class Reader(NamedTuple):
    """Who has read a live row. source, target: their seals then. retired: whether it had."""

    source: int
    target: int
    retired: bool
    at: str = "source"


class Midway(NamedTuple):
    """Everything. place: of the message: cold, source, page, target, none."""

    place: str
    begun: bool = False
    over: bool = False  # the source creates nothing any more
    retired: bool = False
    moved: bool = False
    source: Gone = Gone()
    target: Gone = Gone()
    is_live: bool = True  # the row
    readers: tuple[Reader | None, Reader | None] = (None, None)
    reads: int = 3
    delivered: int = 0
    twice: bool = False  # in two places


changed = Midway._replace


def steps(rules: MidwayRules, now: Midway) -> Iterator[Midway]:
    """All that may happen next."""
    if now.place in ("source", "target"):
        gone = getattr(now, now.place)._replace(has_left=True, told=-1)
        yield changed(now, place="none", delivered=now.delivered + 1, **{now.place: gone})
    yield from _moves(rules, now)
    for name in ("source", "target"):
        if name == "target" or not now.retired:
            yield from _told(now, name)
    for n, reader in enumerate(now.readers):
        if reader is None and now.is_live and now.reads:
            made = Reader(now.source.seals, now.target.seals, now.retired)
            yield _with(changed(now, reads=now.reads - 1), n, made)
        elif reader is not None:
            yield from _brought(rules, now, n, reader)


def _moves(rules: MidwayRules, now: Midway) -> Iterator[Midway]:
    if not now.begun:
        yield changed(now, begun=True)
    elif now.place == "source":
        yield changed(now, place="page", moved=True)
    elif now.place == "page":
        yield changed(now, place="target")
    if now.begun and not now.over and now.place != "source":
        yield changed(now, over=True)
    is_told = not now.source.has_left or now.source.told >= 0 or not rules.told_first
    if now.over and not now.retired and now.place not in ("source", "page") and is_told:
        yield changed(now, retired=True, source=Gone(seals=now.source.seals))


def _told(now: Midway, name: str) -> Iterator[Midway]:
    """Seal what left, tell the ledger; at the second seal after that it is forgotten."""
    gone: Gone = getattr(now, name)
    if gone.seals == _SEALS:
        return
    sealed = gone._replace(seals=gone.seals + 1)
    if gone.has_left and gone.told < 0:
        told = {name: sealed._replace(told=sealed.seals)}
        yield changed(now, is_live=False, **told)
    elif gone.has_left and sealed.seals >= gone.told + 2:
        yield changed(now, **{name: sealed._replace(has_left=False, told=-1)})
    else:
        yield changed(now, **{name: sealed})


def _brought(rules: MidwayRules, now: Midway, n: int, reader: Reader) -> Iterator[Midway]:
    """The next step of one that brings the message of a row, or finds it."""
    old = now.source.seals > reader.source + 1 or now.target.seals > reader.target + 1
    is_late = rules.fenced and old
    is_late |= rules.fenced_by_retiring and now.retired and not reader.retired
    if is_late:
        yield _with(now, n, None)
    elif reader.at == "source" and rules.source_first and not now.retired:
        is_gone = now.source.has_left and rules.gone_of_source
        if now.place == "source" or is_gone:
            yield _with(now, n, None)
        elif now.begun and (now.over or (now.moved and rules.known_moved)):
            yield _with(changed(now, moved=True), n, reader._replace(at="help"))
        elif now.begun:  # due after the cut: sent on; or before it: brought here
            yield _with(changed(now, moved=True), n, reader._replace(at="help"))
            yield _with(_put(now, "source"), n, None)
        else:
            yield _with(_put(now, "source"), n, None)
    elif reader.at == "help":
        place = "target" if now.place == "page" and rules.helped else now.place
        yield _with(changed(now, place=place), n, reader._replace(at="target"))
    elif now.place == "target" or now.target.has_left:
        yield _with(now, n, None)
    else:
        yield _with(_put(now, "target"), n, None)


def _put(now: Midway, place: str) -> Midway:
    return changed(now, place=place, twice=now.twice or now.place in ("source", "page", "target"))


def _with(now: Midway, n: int, reader: Reader | None) -> Midway:
    readers = (reader, now.readers[1]) if n == 0 else (now.readers[0], reader)
    return changed(now, readers=readers)


def explore_midway(rules: MidwayRules, place: str, reads: int) -> tuple[int, Midway | None]:
    """How many states there are, and the first that breaks the promise. place: cold, or source."""
    start = Midway(place, reads=reads)
    seen, left = {start}, deque([start])
    while left:
        state = left.popleft()
        if state.twice or state.delivered > 1:
            return len(seen), state
        for each in steps(rules, state):
            if each not in seen:
                seen.add(each)
                left.append(each)
    return len(seen), None
