"""A bucket on Redis beside its model: the same calls give the same answers and the same state."""

from __future__ import annotations

from typing import Any, NamedTuple

from hypothesis.stateful import RuleBasedStateMachine, invariant
from msgspec.structs import replace

from delaybridge.ledger.recording.acted import naming, read_acted, read_replaced
from delaybridge.store.protocol import keys
from delaybridge.store.protocol.replies import Acquired
from delaybridge.store.protocol.verbs import RedisCommand
from tests.rigs.bucket import BIRTH, TTL_MS, World
from tests.rigs.bucket_model import Model

START_MS = 1_800_000_000_000
AGAIN = 6  # remembered calls of each verb, which may be executed once more


class Call(NamedTuple):
    """One verb with its arguments, to be called, and called again."""

    verb: str
    args: tuple[Any, ...]
    fields: dict[str, Any]
    timed: bool


class ComparedBucket(RuleBasedStateMachine):
    """Both, at the start of a story."""

    def __init__(self, world: World) -> None:
        super().__init__()
        self.world = world
        world.redis.delete(*(world.key(name) for name in keys.BUCKET_KEYS))
        world.now_ms = START_MS
        self.model = Model(BIRTH)
        self.past: dict[str, list[Call]] = {}
        self.drawn = 0

    def call(self, verb: str, *args: Any, timed: bool = True, **fields: Any) -> Any:
        """Make a call on Redis and on the model; their answers must be equal."""
        return self.make(self.remembered(Call(verb, args, fields, timed)))

    def remembered(self, call: Call) -> Call:
        """The call, which may be executed once more at any time."""
        self.past[call.verb] = [*self.past.get(call.verb, [])[1 - AGAIN :], call]
        return call

    def make(self, call: Call) -> Any:
        fields = call.fields | ({"now_ms": self.world.now_ms} if call.timed else {})
        more = {"first": True} if call.verb == "schedule" else {}
        self.model.acted = []
        expected = getattr(self.model, call.verb)(*call.args, **fields)
        command = getattr(self.world.bucket, call.verb)(*call.args, **fields, **more)
        acted: list[tuple[int | None, int | None]] = []
        answer = comparable(self.world.run(as_with_a_ledger(command, acted)))
        assert answer == expected, call.verb
        assert acted == self.model.acted, call.verb
        return answer

    @invariant()
    def the_bucket_is_the_models(self) -> None:
        state = self.world.state()
        if marks := state.get("marks"):
            state["marks"] = {n: v if n == b"birth" else float(v) for n, v in marks.items()}
        assert state == self.model.state()
        self.model.check()

    def draw_stamp(self) -> bytes:
        self.drawn += 1
        return self.drawn.to_bytes(4)


def as_with_a_ledger(
    command: RedisCommand[Any], acted: list[tuple[int | None, int | None]]
) -> RedisCommand[Any]:
    """The command, which names what it acts on."""

    def parse(reply: Any) -> Any:
        if command.name == "schedule":
            reply, replaced = read_replaced(reply)
            acted.extend((stamp, None) for stamp, _ in replaced)
        elif command.name in ("cancel", "reschedule", "kick", "discard"):
            reply, found = read_acted(reply)
            acted.extend([found] if found.stamp is not None else [])
        return command.parse(reply)

    return replace(naming(command), parse=parse)


def comparable(answer: Any) -> Any:
    """An answer without the parts that depend on real time."""
    if isinstance(answer, Acquired) and answer.token is None:
        return answer._replace(left_ms=TTL_MS)
    return answer
