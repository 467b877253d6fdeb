"""Commands on their way to their answers: to which server they go; sent again if need be."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any, Generic, NamedTuple, Self, TypeVar

from redis.backoff import ExponentialWithJitterBackoff
from redis.exceptions import AuthenticationError, NoPermissionError, NoScriptError, TryAgainError

from delaybridge.errors import (
    DelayBridgeError,
    NotDurable,
    StoreDamaged,
    StoreError,
    StoreFull,
    StoreUnavailable,
    printable,
    refused_certificate,
)
from delaybridge.store.protocol.scripts import load_requests, packed, scripts
from delaybridge.store.protocol.verbs import RedisCommand, request
from delaybridge.store.redis.durability import Assurance
from delaybridge.store.redis.errors import (
    AGAIN,
    CLUSTERED,
    MayNotLoad,
    Misnamed,
    NotAsked,
    Redirected,
    WrongServer,
    translate,
    wrong_type,
)
from delaybridge.store.redis.wire import AnyWire

_UNREADABLE = (StoreError, ValueError, TypeError, LookupError, ArithmeticError)
_ASKING = packed("ASKING")
_BACKOFF = ExponentialWithJitterBackoff(base=0.02, cap=0.5)
_ASKED_S = 0.02  # until it may be known who the masters are


class Portion(NamedTuple):
    """Commands of a pipeline that are sent to one server together, by their places.

    loads: the scripts are sent along, since the server lacks one. asks: the server takes these keys
    over from another one, and answers only because it is told so.
    """

    places: Sequence[int]
    loads: bool = False
    asks: bool = False


class Pipeline:
    """Commands that are sent together, and again until each has its answer or time is up.

    The same bytes are sent again, never new ones: a command may have run although its reply was
    lost, and every script recognizes its own call by those bytes (stamps, claim numbers, tokens).
    They are sent in rounds: `next_round`, then for each portion of it `requests`, and
    `take_replies` or `lost`.

    answers: of each command, its parsed reply or the error that it ended with.
    left: places of the commands of the next round; pause_s: how long to wait before.
    redirected: places whose key another server has, and what was answered.
    error: the first that a command ended with.
    """

    __slots__ = (
        "answers", "commands", "left", "pause_s", "redirected", "_assurance", "error",
        "_failures", "_follows", "_in_doubt", "_lacking", "_last_s", "_redirects", "_until_s",
        "_wait_s",
    )  # fmt: skip

    def __init__(
        self,
        commands: Sequence[RedisCommand[Any]],
        timeout_s: float,
        assurance: Assurance | None = None,
        *,
        follows: bool = False,
    ) -> None:
        """assurance: what promises among the commands wait for.

        follows: the servers may change: there are several, or others take over from them.
        """
        self.commands, self._assurance, self._follows = commands, assurance, follows
        self.left: Sequence[int] = range(len(commands))
        self.answers: list[Any] = [None] * len(commands)
        self.pause_s = 0.0
        self.redirected: dict[int, Redirected] = {}
        self.error: Exception | None = None
        self._lacking: set[int] = set()  # places of scripts that a server lacks
        self._in_doubt = False  # an earlier try may have taken effect
        self._failures = self._redirects = 0
        self._wait_s, self._until_s = timeout_s / 2, time.monotonic() + timeout_s
        # The answer to the last try may take the other half; or what is left, if the servers are
        # watched, since a call to one that was replaced fails at once.
        self._last_s = self._until_s - (timeout_s / 5 if follows else timeout_s / 2)

    @classmethod
    def answered(cls, answers: list[Any]) -> Self:
        """One that has these answers, errors among them."""
        found = cls((), 0.0)
        found.answers = answers
        found.error = next((each for each in answers if isinstance(each, Exception)), None)
        return found

    def refuse(self, errors: Mapping[int, Exception]) -> None:
        """The commands at these places end with these errors, unsent."""
        self.left = [i for i in self.left if i not in errors]
        for i, error in errors.items():
            self._end(i, error)

    @property
    def wait_s(self) -> float | None:
        """The longest wait for an answer; None: the usual."""
        if not self._follows:
            return None
        return max(0.01, min(self._wait_s, self._until_s - time.monotonic()))

    def next_round(self) -> Sequence[int]:
        """The places of the commands to be sent now."""
        # In their first order: one may be about what another has stored.
        places = self.left if isinstance(self.left, range) else sorted(self.left)
        self.left, self.pause_s = (), 0.0
        self.redirected = {}
        return places

    def portion(self, places: Sequence[int], *, asks: bool = False) -> Portion:
        """These commands, to be sent to one server."""
        return Portion(
            places, not self._lacking.isdisjoint(places) if self._lacking else False, asks
        )

    def requests(self, portion: Portion) -> Iterable[bytes]:
        """The bytes of these commands; before them the scripts, if Redis lacks them.

        After them what confirms the promises among them.
        """
        if self._assurance is None:
            return self._own_requests(portion)
        return chain(self._own_requests(portion), self._confirming(self._assurance, portion))

    def _own_requests(self, portion: Portion) -> Iterable[bytes]:
        commands = self.commands
        if not (self._failures or self._redirects or portion.loads):
            return map(request, map(commands.__getitem__, portion.places))
        sent = [request(commands[i]) for i in portion.places]
        if portion.asks:
            sent = [word for each in sent for word in (_ASKING, each)]
        return [*load_requests(), *sent] if portion.loads else sent

    def _confirming(self, assurance: Assurance, portion: Portion) -> Iterator[bytes]:
        """Asked for last: before that, some commands are not made."""
        if promises := assurance.promises(self.commands, portion.places):
            left_s = min(self._wait_s, self._until_s - time.monotonic())
            if portion.asks:
                yield _ASKING
            yield from assurance.requests(self.commands[promises[0]], left_s)

    def take_replies(self, portion: Portion, replies: Iterable[Any]) -> None:
        """Read the replies to `requests()`, each when it comes. Adds to `left`.

        What `replies` raises is raised; then the answers so far do not count.
        """
        unconfirmed: dict[int, Exception] = {}
        if self._assurance is not None:
            replies, unconfirmed = self._confirmed(self._assurance, portion, list(replies))
        if portion.loads:
            replies = _without_loads(list(replies))
        if portion.asks:
            replies = list(replies)[1::2]
        refused: dict[int, Exception] = {}
        misread: dict[int, StoreError] = {}
        for i, reply in zip(portion.places, replies, strict=True):
            if isinstance(reply, Exception):
                refused[i] = reply
                continue
            try:
                self.answers[i] = self.commands[i].parse(reply)
            except _UNREADABLE as exc:
                misread[i] = self._misread(i, exc)
        for i, error in misread.items():
            self._end(i, error)
        if unconfirmed:
            self._note(unconfirmed, refused)
        if portion.loads:
            self._lacking.difference_update(portion.places)
        if refused:
            self._refused(portion, self._if_wrong_server(portion.places, refused))

    def _confirmed(
        self, assurance: Assurance, portion: Portion, replies: list[Any]
    ) -> tuple[list[Any], dict[int, Exception]]:
        """The replies to the commands; and of each promise that is not confirmed, why.

        That is NotDurable, or an error after which all may succeed if it is sent again.
        """
        count = len(portion.places) * (2 if portion.asks else 1)
        count += len(scripts()) if portion.loads else 0
        own, said = replies[:count], replies[count + portion.asks :]
        error = assurance.shortfall(said) if said else None
        if error is None:
            return own, {}
        if isinstance(error, Redirected):  # the server that executed them gives the slot away
            error = TryAgainError(str(error))
        elif not isinstance(error, NotDurable) and not self._may_succeed(error):
            error = NotDurable(f"redis: not durable: {printable(str(error))[:160]}")
        return own, dict.fromkeys(assurance.promises(self.commands, portion.places), error)

    def _note(self, unconfirmed: dict[int, Exception], refused: dict[int, Exception]) -> None:
        """Promises that are not confirmed count as refused, or end."""
        for i, why in unconfirmed.items():
            if not isinstance(why, NotDurable):
                refused.setdefault(i, why)
            elif i not in refused and self.answers[i] is not None:  # None: nothing was done
                self._end(i, why)

    def lost(self, portion: Portion, error: Exception) -> None:
        """No reply came. Adds to `left`."""
        self._in_doubt = self._in_doubt or not isinstance(error, NotAsked)
        self._refused(portion, dict.fromkeys(portion.places, error))

    def result(self) -> list[Any]:
        """The answers; raises the first error."""
        error, self.error = self.error, None
        if error is None:
            return self.answers
        self.answers = []
        try:
            raise error
        finally:
            del error  # or the frame and the error would hold each other

    def _misread(self, i: int, error: Exception) -> StoreError:
        if isinstance(error, StoreError):
            return error
        name = self.commands[i].name
        return StoreDamaged(
            f"redis: the answer to {name} cannot be read: {printable(str(error)[:120])}"
        )

    def _if_wrong_server(
        self, sent: Sequence[int], refused: dict[int, Exception]
    ) -> dict[int, Exception]:
        """The refused commands: all of them, if one reply says that this is the wrong server."""
        wrong = next((e for e in refused.values() if isinstance(e, WrongServer)), None)
        if wrong is None or len(refused) == len(sent):
            return refused
        self._in_doubt = True  # a demoted server may have run the others and lose them
        return dict.fromkeys(sent, wrong)

    def _refused(self, portion: Portion, refused: dict[int, Exception]) -> None:
        """Send commands again that may succeed later; end the others with their error."""
        again = {i: error for i, error in refused.items() if self._may_succeed(error)}
        lacking = [i for i, error in again.items() if isinstance(error, NoScriptError)]
        redirected = {i: e for i, e in again.items() if isinstance(e, Redirected)}
        # A script is loaded and called at once, but only once: something else may remove it.
        pause_s = 0.0
        self._redirects += bool(redirected)
        if any(isinstance(error, NotAsked) for error in again.values()):
            pause_s = _ASKED_S  # nothing was sent, to a server that could be overwhelmed
        elif portion.loads or len(lacking) + len(redirected) < len(again) or self._redirects > 3:
            self._failures += 1
            pause_s = float(_BACKOFF.compute(self._failures))
        if time.monotonic() + pause_s > self._last_s:
            again, lacking, redirected, pause_s = {}, [], {}, 0.0
        self.pause_s = max(self.pause_s, pause_s)
        self._lacking.update(lacking)
        self.redirected |= redirected
        self.left = [*self.left, *again]
        for i, error in refused.items():
            if i not in again:
                self._end(i, self._translated(error, self.commands[i]))

    def _may_succeed(self, error: Exception) -> bool:
        """Whether the same command may succeed if it is sent again."""
        if isinstance(error, Redirected) and not self._follows:
            return False
        if refused_certificate(error):
            return False
        return isinstance(error, AGAIN) and not isinstance(error, AuthenticationError)

    def _translated(self, error: Exception, command: RedisCommand[Any]) -> DelayBridgeError:
        if isinstance(error, Redirected) and not self._follows:
            error = Misnamed(CLUSTERED)
        found = wrong_type(command) if "WRONGTYPE" in str(error) else translate(error)
        if isinstance(found, StoreFull) and self._in_doubt:
            found = StoreUnavailable("redis: full; an earlier try may have been stored")
        # Its traceback goes: those frames hold all that was sent, and the cycle that they make with
        # this pipeline would keep it until a garbage collection, at each try while Redis is down.
        found.__cause__ = error.with_traceback(None)
        return found

    def _end(self, i: int, error: Exception) -> None:
        self.answers[i] = error
        self.error = self.error or error


def _without_loads(replies: Sequence[Any]) -> list[Any]:
    """The replies after those to SCRIPT LOAD.

    If Redis refused to load a script, that refusal stands in place of "no such script".
    """
    count = len(scripts())
    refusal = next((reply for reply in replies[:count] if isinstance(reply, Exception)), None)
    if isinstance(refusal, NoPermissionError):
        refusal = MayNotLoad(str(refusal))
    return [
        refusal if refusal is not None and isinstance(reply, NoScriptError) else reply
        for reply in replies[count:]
    ]


W = TypeVar("W", bound=AnyWire)


class Servers(ABC, Generic[W]):
    """The servers of one store. follows: they may change."""

    follows = True

    @abstractmethod
    def portions(self, pipeline: Pipeline) -> list[tuple[W, Portion]]:
        """The next round of a pipeline: what to send to which server; others end with an error."""

    @property
    def is_known(self) -> bool:
        """Whether a master is known; if not, it is asked for."""
        return True

    def failed(self) -> None:
        """A call got no answer, or was refused: servers may have changed."""

    def misses(self, key: str = "") -> bool:
        """Whether the server of a key, or any of several, does not answer, or did not lately."""
        return False

    def node_of(self, key: str) -> str:
        """The server that has a key, as `host:port`; empty unless this is a Cluster."""
        return ""

    def nodes(self) -> list[str]:
        """Every master, as `node_of` names it."""
        return [""]

    def describe(self) -> str:
        """How the servers work together, for people; empty for one server alone."""
        return ""

    @abstractmethod
    def wire_at(self, node: str) -> W:
        """The wire to a server, by its name; empty: any. RedisError if it is not known."""

    @abstractmethod
    def wires(self) -> list[W]:
        """The wires to all servers that were called."""

    def end(self) -> None:
        """Stop to watch the servers for changes."""


class Single(Servers[W]):
    """One server, always the same."""

    follows = False

    def __init__(self, wire: W) -> None:
        self._wire = wire

    def portions(self, pipeline: Pipeline) -> list[tuple[W, Portion]]:
        return [(self._wire, pipeline.portion(pipeline.next_round()))]

    def wire_at(self, node: str) -> W:
        return self._wire

    def wires(self) -> list[W]:
        return [self._wire]
