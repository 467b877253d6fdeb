"""What becomes of held messages once the store has answered."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from hashlib import sha256

from msgspec.structs import replace

from delaybridge.ingest.entries import Change, Schedule, instead
from delaybridge.ingest.rabbitmq.channel import HeldMessage
from delaybridge.ingest.storing import PATIENCE_S, Found, shard_key_of
from delaybridge.message import Answer
from delaybridge.store.protocol.verbs import new_stamp

_TAKEN = frozenset((Answer.DUPLICATE, Answer.CONFLICT, Answer.FOREIGN, Answer.IN_FLIGHT))
_KEPT_OF_ID = 64  # of an id that another message has


def ready(held: Sequence[HeldMessage]) -> tuple[list[HeldMessage], list[HeldMessage]]:
    """Those to be sent now, and those that are to be sent once these are answered.

    Messages wait for what came before in their id: a change, or a message of another key. If that
    has to be tried again, they must not be in the store, where it would find them. What has the key
    of one that waits stays behind it.
    """
    if len({each.id for each in held}) == len(held):
        return [*held], []
    now: list[HeldMessage] = []
    later: list[HeldMessage] = []
    before: dict[str, bytes | None] = {}  # by id: the key of a message; None: a change
    kept: set[str | bytes | None] = set()  # ids and keys
    for each in held:
        key, is_change = shard_key_of(each.entry), isinstance(each.entry, Change)
        waits = not is_change and before.get(each.id, key) != key
        if waits or each.id in kept or key in kept:
            later.append(each)
            kept |= {each.id} if is_change else {each.id, key}
        else:
            now.append(each)
            before[each.id] = None if is_change else key
    return now, later


def sorted_out(
    held: Sequence[HeldMessage], answers: Sequence[Found], now_s: float
) -> tuple[list[tuple[HeldMessage, Answer | None]], dict[int, Found], list[HeldMessage]]:
    """Those that are done; the tags of those that must wait; and those to be quarantined now."""
    done: list[tuple[HeldMessage, Answer | None]] = []
    late: dict[int, Found] = {}
    refused: list[HeldMessage] = []
    ids: set[str] = set()  # of those that wait
    for each, answer in zip(held, answers, strict=True):
        if isinstance(answer, Exception) or _must_wait(each, answer, now_s, ids):
            late[each.message.tag] = answer
            ids.add(each.id)
            if isinstance(each.entry, Change) and not isinstance(answer, Exception):
                # A new call: this one may have taken effect on a message before that which waits.
                each.stamp = new_stamp()
                each.entry = replace(each.entry, stamp=each.stamp)
        elif (kept := _renamed(each, answer) or instead(each.entry, answer)) is not None:
            each.entry, each.stamp = kept, kept.stamp
            each.id = kept.accepted.id if isinstance(kept, Schedule) else each.id
            refused.append(each)
        else:
            done.append((each, answer))
    return done, late, refused


def _renamed(held: HeldMessage, answer: Answer | None) -> Schedule | None:
    """The same message under another id, if another one has its own by chance.

    One that is delivered again may be the message that has it, or gets the same other id as before.
    """
    entry = held.entry
    if not isinstance(entry, Schedule) or not entry.is_loose or answer not in _TAKEN:
        return None
    is_double = answer is Answer.DUPLICATE
    if is_double and held.message.redelivered:
        return None
    mine = entry.accepted
    mark = sha256((entry.stamp if is_double else b"") + entry.payload).hexdigest()[:12]
    id = f"{mine.id[:_KEPT_OF_ID]}~{mark}"
    has_key = mine.shard_key != mine.id.encode()
    accepted = replace(mine, id=id, shard_key=mine.shard_key if has_key else id.encode())
    return replace(entry, accepted=accepted, stamp=new_stamp())


def _must_wait(
    held: HeldMessage, answer: Answer | None, now_s: float, ids: Collection[str]
) -> bool:
    """Whether its id is in flight, or it changes a message that waits. ids: of those that do."""
    if isinstance(held.entry, Change):
        return held.id in ids
    if answer is not Answer.IN_FLIGHT or not isinstance(held.entry, Schedule):
        return False
    held.since_s = held.since_s or now_s
    return now_s - held.since_s < PATIENCE_S
