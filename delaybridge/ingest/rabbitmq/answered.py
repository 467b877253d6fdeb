"""What becomes of held messages once the store has answered."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from msgspec.structs import replace

from delaybridge.ingest.entries import Change, Schedule, instead
from delaybridge.ingest.rabbitmq.channel import HeldMessage
from delaybridge.ingest.storing import PATIENCE_S, Found, shard_key_of
from delaybridge.message import Answer
from delaybridge.store.protocol.verbs import new_stamp


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
        elif (kept := instead(each.entry, answer)) is not None:
            each.entry = kept
            refused.append(each)
        else:
            done.append((each, answer))
    return done, late, refused


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
