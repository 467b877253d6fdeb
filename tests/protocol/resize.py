"""A resize as a model of its own: one bucket whose messages move to another, page by page.

Two movers, clients that schedule and cancel, the owner of the old bucket and that of the new one.
A script is one step; every order of steps is tried. A mover may end after any step, and each call
of it may be executed once more at any later time. The old bucket is the source, the new one the
target. Messages of one key: they are to be published in order of their scores.

Promises:

1. A message that was accepted is in one place, until it is published or cancelled.
2. It is published once.
3. What was cancelled is not published; who is told `unknown` could not have cancelled it: no
   message of that id was there from the beginning of the call to its end.
4. An id that is pending is not created once more.
5. Messages of a key are published in order, if both were accepted before either was claimed.
6. In the end the source is empty, and all that was accepted is published or cancelled.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Any, NamedTuple

_CLOSED, _NEVER = 0, 99  # before and after all


class MoveRules(NamedTuple):
    """What can be taken out, to see what it is for."""

    refused: bool = True  # a client that does not know of the resize finds no bucket any more
    source_first: bool = True  # a client asks the source before the target
    helped: bool = True  # and lands the page that is on its way before it asks the target
    one_page: bool = True  # no page is lifted before the last one has landed
    ack_named: bool = True  # a page is forgotten by its stamp only
    landed_once: bool = True  # the target knows the page that landed last, for ever
    landed_lately: bool = True  # and all others for ten minutes
    elsewhere: bool = True  # the source creates nothing due after the cut
    known_moved: bool = True  # nor an id that it has given away, or refused to create, before
    gate: bool = True  # the target claims nothing due after its gate: the cut, closed, then open
    gate_falls: bool = True  # with the cut, even if no message goes then
    cut_ends: bool = True  # once it is over it falls below all: nothing is created before that
    closed_again: bool = True  # and the gate with it, since earlier ones may be in flight
    stops: bool = True  # the source claims nothing any more then: what is left goes in any order
    in_flight: bool = True  # the gate is opened when nothing of the source is in flight any more


class Item(NamedTuple):
    """A message. call: the one that scheduled it."""

    id: str
    call: int
    score: int
    claimed: bool = False


class Task(NamedTuple):
    """A client's call. knows: of the resize. at: which step is next."""

    verb: str
    id: str
    score: int = 0
    knows: bool = False
    at: str = "source"
    met: frozenset[int] = frozenset()  # calls whose messages of this id were pending when it began


class Page(NamedTuple):
    """Messages on their way. stamp: which lift it is of. gate: of the target, once it landed."""

    stamp: int
    gate: int
    items: frozenset[Item] = frozenset()


class MoveState(NamedTuple):
    """Everything. begun: the source has its other names. page: lifted, and not forgotten yet.

    landed: stamp of the page that landed last; lately: of all others. lifts: how many pages there
    were. movers: the page that each has lifted, or the stamp that it is to have forgotten. again:
    pages whose landing may be executed once more. answers: of the clients' calls. ends: how often
    a mover may still end.
    """

    source: frozenset[Item]
    calls: tuple[Task | None, ...]
    answers: tuple[str, ...]
    now: int = 1
    begun: bool = False
    cut: int = _NEVER
    page: Page | None = None
    passed: bool = False  # whether nothing of the source can be published any more
    moved: frozenset[str] = frozenset()
    gate: int = _NEVER  # of the target
    target: frozenset[Item] = frozenset()
    landed: int = 0
    lately: frozenset[int] = frozenset()
    lifts: int = 0
    movers: tuple[Page | int | None, ...] = (None, None)
    again: frozenset[Page] = frozenset()
    published: tuple[Item, ...] = ()
    made: frozenset[int] = frozenset()  # calls whose messages were accepted
    both: frozenset[tuple[int, int]] = frozenset()  # those of them that were pending together
    cancelled: frozenset[int] = frozenset()
    ends: int = 1
    broken: frozenset[int] = frozenset()


changed = MoveState._replace


class Resize:
    """The steps from a state. calls: of clients; call n makes or looks for a message of its id."""

    def __init__(
        self, rules: MoveRules, pending: tuple[Item, ...], calls: tuple[Task, ...], last: int
    ) -> None:
        self.rules, self.last = rules, last
        self.start = MoveState(frozenset(pending), calls, ("",) * len(calls))

    def steps(self, now: MoveState) -> Iterator[MoveState]:
        if now.now <= self.last or now.now < now.cut < _NEVER:
            yield changed(now, now=now.now + 1)
        if not now.begun and not any(each.claimed for each in now.source):
            yield changed(now, begun=True)
        yield from self._owners(now)
        for n, mover in enumerate(now.movers):
            if now.begun:
                yield from self._move(now, n, mover)
        for page in now.again:
            yield self._land(changed(now, again=now.again - {page}), page)
        for n, task in enumerate(now.calls):
            if task is not None:
                yield self._call(now, n, task)

    # the owners

    def _owners(self, now: MoveState) -> Iterator[MoveState]:
        """Claim the first that is due; publish the first that is claimed; at the target at once."""
        first = _first(now.source, now.now)
        if first and (now.cut or not self.rules.stops):
            yield changed(now, source=now.source - {first} | {first._replace(claimed=True)})
        if claimed := [each for each in now.source if each.claimed]:
            first = min(claimed, key=lambda each: each.score)
            yield _published(changed(now, source=now.source - {first}), first)
        gate = min(now.now, now.gate - 1) if self.rules.gate else now.now
        if first := _first(now.target, gate):
            yield _published(changed(now, target=now.target - {first}), first)

    # the movers

    def _move(self, now: MoveState, n: int, mover: Page | int | None) -> Iterator[MoveState]:
        if mover is not None and now.ends:
            yield changed(_mover(now, n, None), ends=now.ends - 1)
        if isinstance(mover, Page):
            landed = self._land(now, mover)
            yield _mover(changed(landed, again=landed.again | {mover}), n, mover.stamp)
        else:
            yield from self._lift(now, n, mover)

    def _lift(self, now: MoveState, n: int, ack: int | None) -> Iterator[MoveState]:
        """Forget the page that has landed, and take the next one."""
        page = now.page
        if page and ack is not None and (page.stamp == ack or not self.rules.ack_named):
            page = None
        now = changed(now, page=page)
        if page is not None and self.rules.one_page:
            yield _mover(now, n, page)
            return
        stamp = now.lifts + 1
        due = [each for each in now.source if not each.claimed]
        later = [each for each in due if each.score > now.now]
        cut = min(now.cut, max((e.score for e in later), default=now.now + 1))
        if not later and now.now >= now.cut:
            cut = _CLOSED
        has_fallen, now = cut < now.cut, changed(now, cut=cut)
        gate = cut if cut or self.rules.closed_again else now.gate
        if has_fallen and not later and self.rules.gate_falls:
            yield self._lifted(now, n, Page(stamp, gate))
        elif later or (due and now.now >= cut):
            some = [max(later, key=lambda each: each.score)] if later else due
            for one in some:
                gone = {"source": now.source - {one}, "moved": now.moved | {one.id}}
                yield self._lifted(now, n, Page(stamp, gate, frozenset({one})), **gone)
        elif not now.passed and now.now >= cut and (not now.source or not self.rules.in_flight):
            yield self._lifted(now, n, Page(stamp, _NEVER), passed=True)
        else:
            yield _mover(now, n, None)

    def _lifted(self, now: MoveState, n: int, page: Page, **more: Any) -> MoveState:
        return changed(_mover(now, n, page), page=page, lifts=page.stamp, **more)

    def _land(self, now: MoveState, page: Page) -> MoveState:
        """Put a page into the target, once."""
        if self.rules.landed_once and page.stamp == now.landed:
            return now
        if self.rules.landed_lately and page.stamp in now.lately:
            return now
        lately = now.lately | {now.landed}
        broken = now.broken | ({1} if _ids(page.items) & _ids(now.target) else set())
        target = now.target | page.items
        landed = {"landed": page.stamp, "lately": lately, "gate": page.gate}
        return changed(now, target=target, broken=broken, **landed)

    # the clients

    def _call(self, now: MoveState, n: int, task: Task) -> MoveState:
        """The next step of a client's call."""
        if not task.met:
            task = task._replace(met=_pending(now, task.id) | {0})
        if not task.knows and now.begun and self.rules.refused:
            return _task(now, n, task._replace(knows=True, at=self._order[0]))
        if not (task.knows and now.begun):
            return self._act(now, n, task, now.source, is_last=True)
        if task.at == "help":
            now = self._land(now, now.page) if now.page and self.rules.helped else now
            return _task(now, n, task._replace(at="target"))
        here = now.source if task.at == "source" else now.target
        return self._act(now, n, task, here, is_last=task.at == self._order[-1])

    @property
    def _order(self) -> tuple[str, ...]:
        """Where an id is looked for."""
        return ("source", "help", "target") if self.rules.source_first else ("target", "source")

    def _act(
        self, now: MoveState, n: int, task: Task, here: frozenset[Item], *, is_last: bool
    ) -> MoveState:
        side = "source" if here is now.source else "target"
        found = next((each for each in here if each.id == task.id), None)
        creates = task.verb == "schedule" and not (side == "source" and self._gives_away(now, task))
        if found is None and not creates and not is_last:
            moved = now.moved | {task.id} if task.verb == "schedule" else now.moved
            following = self._order[self._order.index(task.at) + 1]
            return _task(changed(now, moved=moved), n, task._replace(at=following))
        if found is None and task.verb == "schedule":
            now = _noted(now, 4 if _pending(now, task.id) & task.met else 0)
            made = Item(task.id, n + 10, task.score)
            return _together(_told(changed(now, **{side: here | {made}}), n, "created"), made)
        if found is None:
            return _told(_noted(now, 3 if _pending(now, task.id) & task.met else 0), n, "unknown")
        if task.verb == "schedule" or found.claimed:
            return _told(now, n, "in_flight" if found.claimed else "duplicate")
        now = changed(now, **{side: here - {found}}, cancelled=now.cancelled | {found.call})
        return _told(now, n, "cancelled")

    def _gives_away(self, now: MoveState, task: Task) -> bool:
        """Whether the source refuses to create this message."""
        if not now.begun or not task.knows:
            return False
        is_over = not self.rules.cut_ends and now.now >= now.cut
        after = self.rules.elsewhere and (task.score >= now.cut or is_over)
        return after or (self.rules.known_moved and task.id in now.moved)


def _first(items: frozenset[Item], now: int) -> Item | None:
    due = [each for each in items if not each.claimed and each.score <= now]
    return min(due, key=lambda each: each.score, default=None)


def _published(now: MoveState, item: Item) -> MoveState:
    """It goes to the broker; which promises that breaks."""
    before = [each.call for each in now.published]
    broken = {2} if item.call in before else set[int]()
    broken |= {3} if item.call in now.cancelled else set()
    earlier = [e for e in now.published if e.score > item.score and (item.call, e.call) in now.both]
    broken |= {5} if earlier else set()
    now = changed(now, published=(*now.published, item._replace(claimed=False)))
    return changed(now, broken=now.broken | broken)


def _together(now: MoveState, made: Item) -> MoveState:
    """Note which messages that nobody has claimed are pending together with a new one."""
    calls = {each.call for each in _everywhere(now) if not each.claimed and each != made}
    pairs = {pair for call in calls for pair in ((call, made.call), (made.call, call))}
    return changed(now, both=now.both | pairs, made=now.made | {made.call})


def _everywhere(now: MoveState) -> list[Item]:
    page = now.page.items if now.page and not _has_landed(now, now.page) else frozenset[Item]()
    return [*now.source, *now.target, *page]


def _has_landed(now: MoveState, page: Page) -> bool:
    return page.stamp == now.landed or page.stamp in now.lately


def _pending(now: MoveState, id: str) -> frozenset[int]:
    """The calls whose messages of this id are pending."""
    return frozenset(each.call for each in _everywhere(now) if each.id == id)


def _ids(items: frozenset[Item]) -> set[str]:
    return {each.id for each in items}


def _mover(now: MoveState, n: int, mover: Page | int | None) -> MoveState:
    return changed(now, movers=(*now.movers[:n], mover, *now.movers[n + 1 :]))


def _task(now: MoveState, n: int, task: Task | None) -> MoveState:
    return changed(now, calls=(*now.calls[:n], task, *now.calls[n + 1 :]))


def _told(now: MoveState, n: int, answer: str) -> MoveState:
    answers = (*now.answers[:n], answer, *now.answers[n + 1 :])
    return _task(changed(now, answers=answers), n, None)


def _noted(now: MoveState, promise: int) -> MoveState:
    return changed(now, broken=now.broken | {promise}) if promise else now


def explore_resize(
    model: Resize, stop: int | None = None
) -> tuple[int, dict[int, list[MoveState]]]:
    """How many states there are; and the promises that break, each with the way there.

    stop: once this promise is broken, no further states are looked at.
    """
    start = model.start
    for each in model.start.source:
        start = _together(start, each)
    came: dict[MoveState, MoveState | None] = {start: None}
    left, broken = deque([start]), dict[int, list[MoveState]]()
    while left and stop not in broken:
        state = left.popleft()
        is_last = True
        found = set(state.broken) | _lost(state)
        if not found:
            for step in model.steps(state):
                if step != state:
                    is_last = False
                    if step not in came:
                        came[step] = state
                        left.append(step)
        if is_last and not found and _is_unfinished(state):
            found = {6}
        for promise in found - broken.keys():
            way: list[MoveState] = []
            at: MoveState | None = state
            while at is not None:
                way.insert(0, at)
                at = came[at]
            broken[promise] = way
    return len(came), broken


def _lost(state: MoveState) -> set[int]:
    """Promise 1: each message that was accepted is in one place."""
    places = [each.call for each in _everywhere(state)]
    ended = {each.call for each in state.published} | state.cancelled
    is_lost = state.made - ended - {*places}
    return {1} if is_lost or len(places) != len({*places}) else set()


def _is_unfinished(state: MoveState) -> bool:
    return bool(state.source or state.target or state.page or not state.passed)


def shown(way: list[MoveState]) -> str:
    """The steps, each as what it changed."""
    lines: list[str] = []
    for before, after in zip(way, way[1:], strict=False):
        pairs: Any = zip(MoveState._fields, before, after, strict=True)
        lines.append(", ".join(f"{name}={b}" for name, a, b in pairs if a != b))
    return "\n".join(lines)
