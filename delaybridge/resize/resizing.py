"""What an operator asks of a resize: begin it, pause it, go on, and how far it is."""

from __future__ import annotations

from typing import NamedTuple

from delaybridge.errors import ConfigError, StoreError
from delaybridge.settings.durability import Keeping
from delaybridge.settings.namespace import is_bucket_count
from delaybridge.store.namespace import announcements, registry
from delaybridge.store.namespace.announcements import FOLLOWS
from delaybridge.store.namespace.namespace import Namespace
from delaybridge.store.protocol import keys
from delaybridge.store.protocol.layout import Layout
from delaybridge.store.protocol.verbs import Each, Steps, plain

MOST = 1024
_NAMED = 5
_WITH_LEDGER = (
    "durability: this namespace has a ledger, which is to know its buckets: "
    "set durability = ledger, and ledger.url, for this command, too"
)
_MOST_WAITING = 2  # layouts: the one that messages move to, and one after it


class ResizeProgress(NamedTuple):
    """A resize. buckets, to: their number now, and when it is over; then: that of the next resize.

    waiting, moving, done: buckets that have not begun, that give their messages away, that have
    given all. left: messages in buckets that are to have none.
    """

    buckets: int
    to: int | None
    then: int | None
    is_paused: bool
    waiting: int
    moving: int
    done: int
    left: int


def begin(calls: Namespace, buckets: int, *, dry: bool = False) -> Steps[Layout]:
    """Have messages move to this number of buckets. Workers do it; nothing waits for them.

    dry: only check. ConfigError: the number is not allowed, two resizes are under way already, or a
    process lives that would not find what has moved.
    """
    if buckets > MOST or not is_bucket_count(buckets):
        raise ConfigError(f"buckets: {buckets} is not accepted; use a power of two up to {MOST}")
    layout = yield from _read(calls)
    has_ledger = yield [plain("EXISTS", keys.ledger(calls.namespace), parse=bool)]
    if has_ledger[0] and calls.durability.mode is not Keeping.LEDGER:
        raise ConfigError(_WITH_LEDGER)
    if layout.epochs[-1].size == buckets:
        return layout
    if len(layout.epochs) - layout.at > _MOST_WAITING:
        raise ConfigError("buckets: two resizes are under way; wait until one is over")
    if older := (yield from _not_following(calls)):
        shown = ", ".join(older[:_NAMED])
        raise ConfigError(
            f"buckets: {shown} would not find what has moved: restart them with this version first"
        )
    after = layout.resized(buckets)._replace(paused=False)
    return after if dry else (yield from _changed(calls, layout, after))


def _not_following(calls: Namespace) -> Steps[list[str]]:
    """The living processes of a version that knows no resize."""
    found: list[str] = []
    for kind in registry.KINDS:
        *replies, now_us = yield Each([*registry.fleet(calls.namespace, kind), calls.clock()])
        living = announcements.announced(replies, now_us // 1000)
        found += [f"{kind} {name}" for name, about, _ in living if not about.get(FOLLOWS)]
    return found


def pause(calls: Namespace, *, paused: bool) -> Steps[Layout]:
    """Begin with no other bucket, or go on. Those that have begun are moved to the end."""
    layout = yield from _read(calls)
    return (yield from _changed(calls, layout, layout._replace(paused=paused)))


def progress(calls: Namespace) -> Steps[ResizeProgress]:
    """How far the resize is."""
    layout = yield from _read(calls)
    following, here = calls.following, layout.here
    if layout.next is None:
        return ResizeProgress(here.size, None, None, layout.paused, 0, 0, 0, 0)
    yield from following.look_at(here.numbers)
    begun = [n for n in here.numbers if following.has_begun(n)]
    done = sum(map(following.is_retired, here.numbers))
    counts = yield Each(
        plain("HLEN", following.bucket(n).key("messages"), parse=int)
        for n in here.numbers
        if not following.is_retired(n)
    )
    left = sum(each for each in counts if not isinstance(each, StoreError))
    then = layout.epochs[layout.at + 2].size if len(layout.epochs) > layout.at + 2 else None
    return ResizeProgress(
        here.size, layout.next.size, then, layout.paused,
        here.size - len(begun), len(begun) - done, done, left,
    )  # fmt: skip


def _read(calls: Namespace) -> Steps[Layout]:
    yield from calls.open()
    record = (yield [registry.read_layout(calls.namespace)])[0]
    if record is None:
        raise calls.wiped()
    calls.following.learn(*record)
    return record[0]  # type: ignore[no-any-return]


def _changed(calls: Namespace, before: Layout, after: Layout) -> Steps[Layout]:
    birth = calls.following.birth
    (done,) = yield [registry.relayout(calls.namespace, before, after, birth)]
    if not done:
        raise StoreError("redis: another process changed the layout meanwhile: call again")
    calls.following.learn(after, birth)
    return after
