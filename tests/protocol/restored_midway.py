"""A ledger while messages move to other buckets, as a small model of its own.

One message with a row: in Redis (hot), or in the ledger alone (cold). It moves from a source to a
target in a page; owners deliver it; two readers read the row and bring the message into Redis if
that lacks it, as a comparison, a promotion and `ledger restore` do (`ledger/comparing/along.py`);
and a client cancels it by its row, since no bucket knew it. What left stays in `gone` of its bucket
until the ledger was told, and some seals longer. Which number the row has does not matter: whoever
asks for it finds it under any, and asks all buckets that may have its message.

The promise: it is in one place, is delivered once at most, and not if it was cancelled.
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
    fenced_at_target: bool = True  # whose seals are read again, before the row
    read_again: bool = True  # of which nothing is brought if it has ended since
    noted_there: bool = True  # a row is cancelled where its message would be brought to
    left_is_final: bool = True  # and nowhere if it has left the source


class Gone(NamedTuple):
    """What is known of the message in `gone` of a bucket. told: the seal by which it was told.

    noted: in `calls`, that its row was cancelled.
    """

    has_left: bool = False
    told: int = -1
    seals: int = 0
    noted: bool = False


class Reader(NamedTuple):
    """Who brings the message, or cancels it. seals: of the bucket that is asked, as read before."""

    seals: int = 0
    at: str = "source"  # then help, row, target
    cancels: bool = False


class Midway(NamedTuple):
    """Everything. place: of the message: cold, source, page, target, none. cut: it has begun."""

    place: str
    cut: bool = False
    over: bool = False  # the source creates nothing any more
    retired: bool = False
    moved: bool = False
    source: Gone = Gone()
    target: Gone = Gone()
    is_live: bool = True  # the row
    readers: tuple[Reader | None, ...] = (None, None, None)
    reads: int = 3
    cancels: int = 1
    delivered: int = 0
    noted: bool = False  # that it is cancelled; committed and answered later
    cancelled: bool = False
    twice: bool = False  # in two places


changed = Midway._replace


def steps(rules: MidwayRules, now: Midway) -> Iterator[Midway]:
    """All that may happen next."""
    if now.place in ("source", "target"):
        yield _left(changed(now, delivered=now.delivered + 1), now.place)
    yield from _moves(rules, now)
    for name in ("source", "target"):
        if name == "target" or not now.retired:
            yield from _told(now, name)
    for n, reader in enumerate(now.readers):
        if reader is None and now.is_live and (now.cancels if n == 2 else now.reads):
            made = Reader(now.source.seals, cancels=n == 2)
            left = {"cancels": 0} if made.cancels else {"reads": now.reads - 1}
            yield _with(changed(now, **left), n, made)
        elif reader is not None:
            yield from _asked(rules, now, n, reader)
    if now.noted:  # it is committed; if the row has ended, the answer is `unknown`
        yield changed(now, noted=False, is_live=False, cancelled=now.is_live)


def _left(now: Midway, name: str) -> Midway:
    gone = getattr(now, name)._replace(has_left=True, told=-1)
    return changed(now, place="none", **{name: gone})


def _moves(rules: MidwayRules, now: Midway) -> Iterator[Midway]:
    if not now.cut:
        yield changed(now, cut=True)
    elif now.place == "source":
        yield changed(now, place="page", moved=True)
    elif now.place == "page":
        yield changed(now, place="target")
    if now.cut and not now.over and now.place != "source":
        yield changed(now, over=True)
    is_told = not now.source.has_left or now.source.told >= 0 or not rules.told_first
    if now.over and not now.retired and now.place not in ("source", "page") and is_told:
        noted = now.target.noted or now.source.noted  # calls move, too
        source, target = Gone(seals=now.source.seals), now.target._replace(noted=noted)
        yield changed(now, retired=True, source=source, target=target)


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


def _asked(rules: MidwayRules, now: Midway, n: int, reader: Reader) -> Iterator[Midway]:
    """The next step of one that brings the message of a row, finds it, or cancels it."""
    if reader.at == "help":
        place = "target" if now.place == "page" and rules.helped else now.place
        seals = now.target.seals if rules.fenced_at_target else _SEALS
        yield _with(changed(now, place=place), n, reader._replace(at="row", seals=seals))
    elif reader.at == "row":
        is_over = rules.read_again and not now.is_live and not reader.cancels
        yield _with(now, n, None if is_over else reader._replace(at="target"))
    elif reader.at == "source" and (now.retired or not rules.source_first):
        yield _with(now, n, reader._replace(at="help"))
    elif reader.cancels:
        yield from _cancels(rules, now, n, reader)
    else:
        yield from _brings(rules, now, n, reader)


def _brings(rules: MidwayRules, now: Midway, n: int, reader: Reader) -> Iterator[Midway]:
    gone: Gone = getattr(now, reader.at)
    is_source = reader.at == "source"
    is_late = rules.fenced and gone.seals > reader.seals + 1
    is_known = gone.noted or (gone.has_left and (rules.gone_of_source or not is_source))
    if is_late or now.place == reader.at or is_known:
        yield _with(now, n, None)
    elif is_source and now.cut:
        yield _with(changed(now, moved=True), n, reader._replace(at="help"))
        if not now.over and not (now.moved and rules.known_moved):  # it is due before the cut
            yield _with(_put(now, "source"), n, None)
    else:
        yield _with(_put(now, reader.at), n, None)


def _cancels(rules: MidwayRules, now: Midway, n: int, reader: Reader) -> Iterator[Midway]:
    gone: Gone = getattr(now, reader.at)
    is_source = reader.at == "source"
    if now.place == reader.at:
        yield _with(_left(changed(now, noted=True), reader.at), n, None)
    elif gone.has_left and (rules.left_is_final or not is_source):
        yield _with(now, n, None)
    elif is_source and ((now.cut and rules.noted_there) or gone.has_left):
        yield _with(changed(now, moved=True), n, reader._replace(at="help"))
    else:
        noted = {reader.at: gone._replace(noted=True)}
        yield _with(changed(now, noted=True, **noted), n, None)


def _put(now: Midway, place: str) -> Midway:
    return changed(now, place=place, twice=now.twice or now.place in ("source", "page", "target"))


def _with(now: Midway, n: int, reader: Reader | None) -> Midway:
    return changed(now, readers=(*now.readers[:n], reader, *now.readers[n + 1 :]))


def explore_midway(
    rules: MidwayRules, place: str, reads: int, cancels: int
) -> tuple[int, Midway | None]:
    """How many states there are, and the first that breaks the promise. place: cold, or source."""
    start = Midway(place, reads=reads, cancels=cancels)
    seen, left = {start}, deque([start])
    while left:
        state = left.popleft()
        if state.twice or state.delivered + state.cancelled > 1:
            return len(seen), state
        for each in steps(rules, state):
            if each not in seen:
                seen.add(each)
                left.append(each)
    return len(seen), None
