"""Redis commands, calls of several of them, and what clients ask of one bucket, without I/O.

A call is a generator (`Steps`): it yields the commands to run next and is sent their replies.
`Store.complete` and `AsyncStore.complete` run it to its end. The scripts are in lua/, under the
verbs' names. Each may be sent again, also after other calls.
"""

from __future__ import annotations

import random
import struct
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain, islice
from typing import Any, Generic, Literal, NamedTuple, TypeVar
from zlib import crc32

import msgspec
from hiredis import pack_command

from delaybridge.accept.accept import Accepted
from delaybridge.errors import StoreDenied, StoreError, StoreMisnamed, StoreNewer, StoreUnavailable
from delaybridge.gathering import FIRST_CHAR
from delaybridge.message import (
    CARRIED,
    KNOWN,
    TENANT_BYTES,
    Answer,
    ConflictPolicy,
    OnConflict,
    State,
)
from delaybridge.store.protocol import keys, replies
from delaybridge.store.protocol.keys import LISTED, SCRIPT_KEYS
from delaybridge.store.protocol.record import FRACTIONS, Carried, ForDeadSet, runs_of
from delaybridge.store.protocol.scripts import packed, scripts

T = TypeVar("T")
Arg = str | bytes | int | float
_STORE_WIDE = (StoreUnavailable, StoreDenied, StoreMisnamed, StoreNewer)


class RedisCommand(msgspec.Struct, Generic[T], frozen=True):
    """One script call, or one command of Redis itself (`is_plain`); `parse` reads its reply.

    Every command is safe to send again when its reply was lost. near: a key whose server is to
    answer a command without keys, such as TIME; empty: any server may. shard_key: what the bucket
    of its message is made of, if the command must not be asked of any other; None: it may be.
    """

    name: str
    keys: tuple[str, ...]
    args: Sequence[Arg]
    parse: Callable[[Any], T]
    is_plain: bool = False
    near: str = ""
    shard_key: bytes | None = None


def as_received(reply: Any) -> Any:
    """The reply as Redis gave it."""
    return reply


def plain(
    name: str, *args: Arg, parse: Callable[[Any], T] = as_received, near: str = ""
) -> RedisCommand[T]:
    """A command of Redis itself, not a script. name: may be two words, as in `SCRIPT LOAD`."""
    return RedisCommand(name, (), args, parse, is_plain=True, near=near)


@dataclass(frozen=True, slots=True)
class Work(Generic[T]):
    """A step for the recorder's database: `run` is called in a transaction, perhaps twice."""

    run: Callable[[Any], T]


Steps = Generator[Sequence[RedisCommand[Any]], list[Any], T]
"""A call: yields the commands to run next, is sent their replies, returns its result.

Yielding none gives an event loop a turn in a long calculation.

The first error among the replies ends it, unless the commands were yielded as `Each`.
"""


LedgerSteps = Generator[Work[Any] | Sequence[RedisCommand[Any]], Any, T]
"""`Steps` that also yields `Work` for the recorder's database, and is sent its result."""


class Each(list[RedisCommand[Any]]):
    """Commands whose errors are sent as replies, each in its command's place.

    after_s: they are sent after this pause.
    """

    def __init__(self, commands: Iterable[RedisCommand[Any]], *, after_s: float = 0.0):
        super().__init__(commands)
        self.after_s = after_s


class EachMade(Each):
    """The same of functions that return commands.

    One is called when its command is sent first, so that Redis works on one while the next is made,
    and never again: the same bytes are sent.
    """

    def __init__(self, makers: Iterable[Callable[[], RedisCommand[Any]]], *, after_s: float = 0.0):
        super().__init__(makers, after_s=after_s)  # type: ignore[arg-type]  # until they are sent

    def __getitem__(self, place: Any) -> Any:
        command: Any = list.__getitem__(self, place)
        if not isinstance(command, RedisCommand):
            command = self[place] = command()
        return command

    def __iter__(self) -> Iterator[RedisCommand[Any]]:
        return map(self.__getitem__, range(len(self)))


def store_wide_error(answers: Iterable[Any]) -> StoreError | None:
    """The first error among answers that concerns the whole store, not one bucket."""
    return next((a for a in answers if isinstance(a, _STORE_WIDE)), None)


def grouped(groups: Sequence[Sequence[RedisCommand[Any]]]) -> Steps[list[list[Any]]]:
    """Groups of commands as one pipeline: the replies by group, errors among them."""
    replies = iter((yield Each(chain.from_iterable(groups))))
    return [list(islice(replies, len(group))) for group in groups]


def request(command: RedisCommand[Any]) -> bytes:
    """The command as it goes over the wire."""
    if command.is_plain:
        return packed(*command.name.split(), *command.args)
    head, count = _head(command.name, command.keys)
    return b"*%d\r\n%b%b" % (count + len(command.args), head, _without_count(command.args))


# Verb, digest and keys are the same in every call for a bucket: packed once, they cost no more.
@lru_cache(10_000)
def _head(verb: str, keys: tuple[str, ...]) -> tuple[bytes, int]:
    """The beginning of a script call, and its number of words."""
    words = ("EVALSHA", scripts()[verb][1], len(keys), *keys)
    return _without_count(words), len(words)


def _without_count(words: Sequence[Any]) -> bytes:
    """Words packed, without the first line, which says how many they are."""
    request: bytes = pack_command(tuple(words))
    return request[request.index(b"\n") + 1 :]


def bucket_of(shard_key: bytes, buckets: int) -> int:
    """The bucket of a message: CRC-32 (zlib) of its key, else of its id, modulo `buckets`."""
    return crc32(shard_key) % buckets


_POLICIES = {OnConflict.FAIL: 0, OnConflict.KEEP: 1, OnConflict.REPLACE: 2, CARRIED: 6, KNOWN: 4}
_MAYBE_DELIVERED = 3  # as FAIL, and an earlier publish of the message may have arrived
GATHERED = 8  # added to the policy if some messages are of gatherings
_DESTINATION_BYTES = 1100  # a record begins with its destination, which is never longer than this
_TALLIED_BYTES = 2**20  # of records that one call reads: about half a millisecond


def new_stamp() -> bytes:
    """A call stamp. Draw one per call, and send the same one whenever that call is sent again."""
    # Python reseeds this generator after a fork, so two processes never draw the same series.
    return random.getrandbits(32).to_bytes(4, "big")


def new_stamps(count: int) -> list[bytes]:
    """As many stamps, in a third of the time."""
    drawn = random.randbytes(4 * count)
    return [drawn[i : i + 4] for i in range(0, 4 * count, 4)]


class SourceOffsets(NamedTuple):
    """The source that messages were read from, and their offsets, which grow from call to call."""

    name: str
    offsets: Sequence[int]


NO_SOURCE = SourceOffsets("", ())


class BucketForCallers:
    """The verbs of clients for one bucket.

    Sent again, a command gets the same answer. now_ms: epoch milliseconds, None for Redis' clock;
    only tests pass a number. wake: `keys.wake_channel`; home: a name in the slot of the
    namespace's own.
    """

    def __init__(self, namespace: str, number: int, birth: str) -> None:
        self.number, self.birth = number, birth
        self.home, self.wake = keys.wake(namespace), keys.wake_channel(namespace, number, birth)
        known = (*keys.BUCKET_KEYS, keys.LEAVING)
        name = {key: keys.bucket_key(namespace, number, key, birth) for key in known}
        self._keys = {
            script: tuple(name[key] for key in used)
            for script, used in SCRIPT_KEYS.items()
            if name.keys() >= {*used}
        }
        self._wakes = f"{number} {self.wake}"
        self._drawn_keys = self._keys["schedule_one"][:4]
        self._page_keys = {
            state: (name[listed], *(name[key] for key in SCRIPT_KEYS["page"][1:]))
            for state, listed in LISTED.items()
        }
        self._name, self.offers = name, keys.offers(namespace)

    def key(self, name: str) -> str:
        """The key `name` (one of `keys.BUCKET_KEYS`) of this bucket."""
        return self._name[name]

    def schedule(
        self,
        messages: Sequence[tuple[bytes, Accepted]],
        policy: ConflictPolicy = OnConflict.FAIL,
        *,
        source: SourceOffsets = NO_SOURCE,
        reach: str | bytes = "",
        maybe: bool = False,
        first: bool = False,
        now_ms: int | None = None,
    ) -> RedisCommand[list[tuple[Answer, int]] | None]:
        """Accept (stamp, message) pairs. Answers with the answer and due time in ms of each.

        Answers None if the bucket has another birth id, or none yet: read the namespace's record
        again, then pass first=True, which lets a bucket without a birth id or messages take it.

        source: messages at offsets that this source delivered before are skipped and answered
        `duplicate`, even if published already. The answers end with the first `conflict`,
        `foreign` or `in_flight`; that message and all after it count as not read.
        reach: the caller's destination patterns, as JSON. If the id is pending for a destination
        outside them, the answer is `foreign`, whatever the policy. Or `=` and a stamp: only the
        message of the call with that stamp is replaced, and anything else is `foreign`.
        maybe: an earlier publish of these messages had an unknown outcome and may have arrived.
        With the policy CARRIED all are `Carried`.
        """
        if policy is CARRIED:
            carried = [one for _, one in messages if isinstance(one, Carried)]
            reach = msgspec.json.encode([(one.tried, one.failing) for one in carried])
        number = _MAYBE_DELIVERED if maybe and policy is OnConflict.FAIL else _POLICIES[policy]
        runs = runs_of(messages)
        number += GATHERED * (max(map(str, runs[::2]), default="") >= FIRST_CHAR)
        offsets = struct.pack(f">{len(source.offsets)}Q", *source.offsets)
        args: list[Arg] = [
            now_arg(now_ms), number, self.birth, int(first), self.wake, self.number, source.name,
            offsets, reach, len(messages), *[message.id for _, message in messages],
            *[stamp + message.payload for stamp, message in messages], *runs,
        ]  # fmt: skip
        return self.call("schedule", args, replies.read_scheduled)

    def schedule_one(
        self, message: tuple[bytes, Accepted], *, is_drawn: bool, now_ms: int | None = None
    ) -> RedisCommand[int]:
        """Accept a new (stamp, message) pair, in the usual case. Answers its due time in ms.

        0: nothing was written; ask `schedule`, with the same stamp. is_drawn: its id was drawn for
        it, so nothing can be known of it. No gathered message.
        """
        stamp, one = message
        args = (
            now_arg(now_ms), self.birth, one.id, stamp + one.payload,
            one.when + FRACTIONS[one.rank], self._wakes,
        )  # fmt: skip
        if is_drawn:
            return RedisCommand("schedule_one", self._drawn_keys, args, int)
        return self.call("schedule_one", (*args, 1), int)

    def quarantine(
        self,
        messages: Iterable[tuple[bytes, str, bytes, str] | ForDeadSet],
        *,
        first: bool = False,
        now_ms: int | None = None,
    ) -> RedisCommand[list[Answer] | None]:
        """Put (stamp, id, payload, reason) into the dead set, or what `ForDeadSet` says.

        Answers `created` for each, or `conflict` if another has its id; None as `schedule` does.
        For one that replaces another `replaced`, `in_flight` or `foreign`.
        """
        args: list[Arg] = [now_arg(now_ms), self.birth, int(first)]
        for message in messages:
            args += ForDeadSet(*message)
        return self.call("quarantine", args, replies.read_answers)

    def cancel(
        self,
        stamp: bytes,
        id: str,
        *,
        source: str = "",
        offset: int | Literal[""] = 0,
        otherwise: bool = False,
        reach: str | bytes = "",
        row: bytes = b"",
        now_ms: int | None = None,
    ) -> RedisCommand[Answer]:
        """Remove a message that was not fired. A call read from a source acts once.

        otherwise: if the answer is `unknown` or `foreign`, the offset does not count as read.
        reach: as for `schedule`; `=` with score and stamp: only one whose head has them. row: its
        stamp in the ledger: the message is not restored then.
        """
        args = (now_arg(now_ms), stamp, id, source, offset, int(otherwise), reach, "", row)
        return self.call("cancel", args, replies.read_answer)

    def reschedule(
        self,
        stamp: bytes,
        id: str,
        when: str,
        *,
        source: str = "",
        offset: int = 0,
        reach: str = "",
        now_ms: int | None = None,
    ) -> RedisCommand[Answer]:
        """Give a message that was not fired another due time. source, reach: as for `cancel`."""
        place = self.wake, self.number
        args = (now_arg(now_ms), stamp, id, when, *place, source, offset, reach, "", 0, "")
        return self.call("reschedule", args, replies.read_answer)

    def kick(
        self, stamp: bytes, id: str, delay_ms: int = 0, *, now_ms: int | None = None
    ) -> RedisCommand[Answer]:
        """Bring a message back from the dead set, due in `delay_ms`, without failures."""
        args = (now_arg(now_ms), stamp, id, delay_ms, self.wake, self.number, "")
        return self.call("kick", args, replies.read_answer)

    def discard(self, stamp: bytes, id: str, *, now_ms: int | None = None) -> RedisCommand[Answer]:
        """Delete a message of the dead set."""
        return self.call("discard", (now_arg(now_ms), stamp, id, ""), replies.read_answer)

    def get(self, id: str) -> RedisCommand[replies.Row | None]:
        """The message in any state, None if there is none with this id."""
        return self.call("get", (id, ""), lambda reply: replies.read_message(id, reply))

    def dead_reason(self, id: str) -> RedisCommand[str]:
        """Why a message is in the dead set; empty if it is not."""
        return plain("HGET", self.key("dead_reason"), id, parse=replies.read_text)

    def sample(self, limit: int) -> RedisCommand[replies.Sample]:
        """The number of messages, and the two ends of up to `limit` records at random."""
        args = (limit, _DESTINATION_BYTES, TENANT_BYTES)
        return self.call("sample", args, replies.read_sample)

    def tally(self, state: State, limit: int, seed: int) -> RedisCommand[replies.Tallied]:
        """Count messages in one state by destination: all, or `limit` of them drawn at random."""
        args = (limit, _TALLIED_BYTES, seed)
        return RedisCommand("tally", self._page_keys[state][:2], args, replies.read_tallied)

    def page(
        self,
        state: State,
        *,
        limit: int,
        after: tuple[float, str | bytes] | None = None,
        low: float | None = None,
        high: float | None = None,
        max_bytes: int = 4 * 2**20,
        needles: Sequence[bytes] = (),
    ) -> RedisCommand[tuple[list[replies.Row], bool]]:
        """Messages in one state in order of (score, id), and whether there are more.

        after: the (score, id) to begin after. low, high: bounds of the score, both included.
        needles: in pairs; of each, a record has one or the other, except the last one that was
        looked at: it is there in any case.
        """
        lowest = "-inf" if low is None else repr(low)
        highest = "+inf" if high is None else repr(high)
        after_score, after_id = ("", "") if after is None else (repr(after[0]), after[1])
        args = (lowest, highest, after_score, after_id, limit, max_bytes, 0, *needles)
        keys_ = self._page_keys[state]
        return RedisCommand("page", keys_, args, lambda reply: replies.read_page(state, reply))

    def holder(self) -> RedisCommand[str | None]:
        """The worker that holds the lease, None if it is free."""
        return plain("GET", self.key("lease"), parse=replies.read_holder)

    def sizes(self) -> list[RedisCommand[int]]:
        """How many messages are delayed, in flight, parked and dead."""
        return [plain("ZCARD", self.key(k), parse=int) for k in ("due", "mirror", "parked", "dead")]

    def call(self, script: str, args: Sequence[Arg], parse: Callable[[Any], T]) -> RedisCommand[T]:
        """A call of a script with the keys that it takes of this bucket."""
        return RedisCommand(script, self._keys[script], args, parse)


def now_arg(now_ms: int | None) -> Arg:
    return "" if now_ms is None else now_ms
