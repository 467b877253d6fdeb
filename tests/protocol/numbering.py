"""Equal states under different numbers are one state: its canonical form.

Only the order of turns and of stamps matters, and nothing that was forgotten. Turns that a store
which went back in time would draw a second time keep their distances.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from typing import Any, NamedTuple

from tests.protocol.bounds import Bounds
from tests.protocol.bucket import Content, Record, Revocation, Token
from tests.protocol.calls import Call, ClientCall, Copy, OwnerCall
from tests.protocol.witness import Fate
from tests.protocol.world import Firing, Given, Past, State, Worker

CACHED = 2**18
Permits = tuple[int | None, ...]
Fates = tuple[Fate | None, ...]


class Numbering(NamedTuple):
    """Old number -> new number. names: whether the random parts of tokens matter."""

    turns: dict[int, int]
    stamps: dict[int, int]
    names: bool = True


class _Seen(dict[int, int]):
    """A numbering that changes nothing, and remembers what it was asked for."""

    def __missing__(self, number: int) -> int:
        self[number] = number
        return number


def canonical(state: State, bounds: Bounds) -> State:
    """The form that all states share which differ only in their numbers."""
    past = state.past
    asked, noted = _asked(state.requests), _noted(state.workers)
    content = state.content
    if bounds.rules.expires:
        content = _unexpired(content, state.clock)
    content = _plain(content, asked, noted, bounds)
    parts = [_in_worker(worker) for worker in state.workers]
    parts += [_in_call(call) for call in state.requests]
    parts.append((frozenset(), frozenset(given.receipt for given in state.given)))
    parts.append(_in_content(content))
    parts.append((_turns_in(state.lost), frozenset()))
    if past is not None:
        past = past._replace(content=_plain(past.content, asked, noted, bounds))
        parts.append(_in_content(past.content))
        parts.append((_turns_in(past.lost), frozenset()))
    turns = {turn for used, _ in parts for turn in used}
    top = max(turns, default=0)
    if past is None:
        content = content._replace(
            turn=min(content.turn, top)
        )  # the next is the highest either way
    names = bounds.rolls_back or not bounds.rules.new_token
    new = Numbering(_new_turns(turns, content, past), _new_stamps(parts, state), names)
    workers, requests = state.workers, state.requests
    if not _is_same(new, state.owners):
        workers = tuple([_worker(worker, new) for worker in workers])
        requests = tuple([_call(call, new) for call in requests])
    return State(
        state.clock,
        _content(content, new),
        tuple(sorted(workers, key=hash)) if len(workers) > 1 else workers,
        tuple(sorted(requests, key=hash)) if len(requests) > 1 else requests,
        _fates(state.fates, new, state.clock),
        _permits(state.allowed, content, new),
        state.left,
        state.calls,
        state.wake,
        past and _past(past, new),
        state.owners if bounds.rolls_back else 0,
        state.node,
        tuple(sorted([Given(id, new.stamps[receipt]) for id, receipt in state.given])),
        _turns_of(state.lost, new),
        tuple([until if until > state.clock else 0 for until in state.settled]),
        state.window,
        paced=tuple([tick if tick > state.clock else 0 for tick in state.paced]),
    )


# what matters


def _unexpired(content: Content, clock: int) -> Content:
    if not any(content.delivered) and not any(content.spans):
        return content
    delivered, spans = (
        tuple(None if until is None or until <= clock else until for until in each)
        for each in (content.delivered, content.spans)
    )
    return content._replace(delivered=delivered, spans=spans)


def _asked(requests: Iterable[Call]) -> frozenset[int]:
    """The stamps that may come again."""
    clients = (call for call in requests if isinstance(call, ClientCall))
    return frozenset(target.stamp for call in clients for target in call.targets)


def _noted(workers: Iterable[Worker]) -> frozenset[tuple[int, int]]:
    return frozenset((copy.claim, copy.id) for worker in workers for copy in worker.out)


@lru_cache(CACHED)
def _plain(
    content: Content, asked: frozenset[int], noted: frozenset[tuple[int, int]], bounds: Bounds
) -> Content:
    """Without what nothing can bring up any more."""
    tried = tuple((True, 0) if each is not None and each[0] else None for each in content.attempts)
    return content._replace(
        attempts=tried,
        calls=tuple(call for call in content.calls if call[0] in asked),
        notes=tuple(note for note in content.notes if note in noted),
        look=min(content.look, bounds.ends + 1) if bounds.sleeps else 0,
    )


# new numbers


def _is_same(new: Numbering, owners: int) -> bool:
    """Whether it changes nothing. owners: that were drawn so far."""
    if not new.names and owners > 1:
        return False
    return all(old == number for each in new[:2] for old, number in each.items())


def _new_turns(turns: set[int], content: Content, past: Past | None) -> dict[int, int]:
    fixed = content.turn
    numbers = {*turns, fixed}
    if past is not None:
        fixed = min(fixed, past.content.turn)  # turns above may be drawn again
        numbers |= {fixed, past.content.turn}
    new = {-1: -1, 0: 0}
    for turn in sorted(numbers - {-1, 0}):
        new[turn] = len(new) - 1 if turn <= fixed else new[fixed] + turn - fixed
    return new


def _new_stamps(parts: list[tuple[frozenset[int], frozenset[int]]], state: State) -> dict[int, int]:
    stamps = sorted({stamp for _, used in parts for stamp in used})
    return {stamp: number for number, stamp in enumerate(stamps)}


@lru_cache(CACHED)
def _in_worker(worker: Worker) -> tuple[frozenset[int], frozenset[int]]:
    """The turns and the stamps that it names."""
    seen = Numbering(_Seen(), _Seen())
    _worker(worker, seen)
    return frozenset(seen.turns), frozenset(seen.stamps)


@lru_cache(CACHED)
def _in_call(call: Call) -> tuple[frozenset[int], frozenset[int]]:
    seen = Numbering(_Seen(), _Seen())
    _call(call, seen)
    return frozenset(seen.turns), frozenset(seen.stamps)


@lru_cache(CACHED)
def _in_content(content: Content) -> tuple[frozenset[int], frozenset[int]]:
    seen = Numbering(_Seen(), _Seen())
    _content(content._replace(turn=0), seen)
    return frozenset(seen.turns), frozenset(seen.stamps)


# each part under new numbers


def _token(token: Token, new: Numbering) -> Token:
    return token[0] if new.names else min(token[0], 1), new.turns[token[1]]


def _copies(copies: tuple[Copy, ...], new: Numbering) -> tuple[Copy, ...]:
    return tuple([_copy(copy, new) for copy in copies]) if copies else copies


def _copy(copy: Copy, new: Numbering) -> Copy:
    id, claim, score, stamp, generation, allowed = copy
    return Copy(id, new.turns[claim], score, new.stamps[stamp], generation, allowed)


def _content(content: Content, new: Numbering) -> Content:
    (messages, due, mirror, parked, dead, reasons, attempts, revoked, receipts, delivered,
     calls, notes, ready, lease, turn, claimed, fired_score, fired_claim, look,
     *rest) = content  # fmt: skip
    turns, stamps, _ = new
    return Content(
        tuple([each and Record(each[0], stamps[each[1]], each[2]) for each in messages]),
        due,
        tuple([claim and turns[claim] for claim in mirror]),
        parked,
        dead,
        reasons,
        attempts,
        tuple([each and Revocation(turns[each[0]], each[1]) for each in revoked]),
        tuple([None if each is None else stamps[each] for each in receipts]),
        delivered,
        tuple([(stamps[stamp], id, answer) for stamp, id, answer in calls]),
        tuple([(turns[claim], id) for claim, id in notes]),
        ready,
        lease and _token(lease, new),
        turns[turn],
        turns[claimed],
        fired_score,
        turns[fired_claim],
        look,
        *rest,
    )


def _worker(worker: Worker, new: Numbering) -> Worker:
    (token, ready, wheel, have, seen, watermark, claimed, firing, out, confirmed, failed, aside,
     look, node, mending, *rest) = worker  # fmt: skip
    turns = new.turns
    if claimed is not None:
        claimed = claimed._replace(
            number=turns[claimed.number], copies=_copies(claimed.copies, new)
        )
    return Worker(
        _token(token, new),
        ready,
        _copies(wheel, new),
        turns[have],
        _seen(seen, new),
        watermark,
        claimed,
        firing and _firing(firing, new),
        _copies(out, new),
        _copies(confirmed, new),
        tuple([(_copy(copy, new), maybe) for copy, maybe in failed]),
        tuple([(_copy(copy, new), verb) for copy, verb in aside]),
        look,
        node,
        mending,
        *rest,
    )


def _seen(seen: Any, new: Numbering) -> Any:
    return new.turns[seen] if isinstance(seen, int) else seen


def _firing(firing: Firing, new: Numbering) -> Firing:
    call, fired, allowed = firing
    revoked = tuple((id, new.turns[turn], score) for id, turn, score in fired.revoked)
    fired = fired._replace(claimed=new.turns[fired.claimed], revoked=revoked)
    return Firing(_owner_call(call, new), fired, _copies(allowed, new))


def _owner_call(call: OwnerCall, new: Numbering) -> OwnerCall:
    return call._replace(
        token=_token(call.token, new),
        have=new.turns[call.have],
        seen=_seen(call.seen, new),
        copies=_copies(call.copies, new),
    )


def _call(call: Call, new: Numbering) -> Call:
    if isinstance(call, OwnerCall):
        return _owner_call(call, new)
    targets = [target._replace(stamp=new.stamps[target.stamp]) for target in call.targets]
    receipt = call.receipt if call.receipt < 0 else new.stamps[call.receipt]
    return call._replace(targets=tuple(targets), receipt=receipt)


def _fates(fates: Fates, new: Numbering, clock: int) -> Fates:
    return tuple([_fate(fates[stamp], new, clock) for stamp in new.stamps if stamp < len(fates)])


def _fate(fate: Fate | None, new: Numbering, clock: int) -> Fate | None:
    if fate is None or fate.receipt < 0:
        return fate
    held = fate.held if fate.held > clock else 0
    return fate._replace(held=held, receipt=new.stamps.get(fate.receipt, -1))


def _permits(allowed: Permits, content: Content, new: Numbering) -> Permits:
    """Only those whose claim is still in the mirror."""
    pairs = zip(allowed, content.mirror, strict=True)
    return tuple([new.turns[claim] if claim and claim == held else None for claim, held in pairs])


def _past(past: Past, new: Numbering) -> Past:
    content, fates, allowed, lost = past
    permits = _permits(allowed, content, new)
    return Past(_content(content, new), _fates(fates, new, -1), permits, _turns_of(lost, new))


def _turns_in(claims: Permits) -> frozenset[int]:
    return frozenset(claim for claim in claims if claim)


def _turns_of(claims: Permits, new: Numbering) -> Permits:
    return tuple([claim and new.turns[claim] for claim in claims])
