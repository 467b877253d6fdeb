"""A namespace whose rules and definitions are in a ledger, without a worker."""

from __future__ import annotations

import json
from typing import Any

import redis as redis_py

from delaybridge import Client
from delaybridge.ledger.comparing import reinstating
from delaybridge.ledger.comparing.rule_controls import field_and_place, joined, named
from delaybridge.ledger.recording.recorder import LedgerRecorder
from delaybridge.ledger.sql.rows import Control
from delaybridge.store.calls import Calls
from delaybridge.store.namespace import ledger_agreement
from delaybridge.store.namespace.rule_fields import FIELDS, parts
from delaybridge.store.protocol import keys
from delaybridge.store.protocol.verbs import LedgerSteps, Work
from delaybridge.store.redis.store import Store

PLACE = "kafka:orders"
EVERY = [keys.destinations, keys.recurring, keys.recurring_due, keys.recurring_state]
EVERY += [keys.controls, keys.unrecorded]


class ControlsSite:
    """A namespace with a ledger: two clients, and Redis as it is."""

    def __init__(self, url: str, namespace: str, ledger: str) -> None:
        kept: dict[str, Any] = {"durability": "ledger", "ledger": ledger}
        self.client, self.other = (
            Client(url, namespace=namespace, brokers={"kafka": "kafka://h"}, **kept) for _ in "ab"
        )
        self.redis, self.namespace = redis_py.Redis.from_url(url), namespace
        self.client.run(Calls.open)

    def close(self) -> None:
        self.client.close()
        self.other.close()
        self.redis.close()

    @property
    def store(self) -> Store:
        return self.client._store

    @property
    def calls(self) -> Calls:
        return self.client._calls

    @property
    def recorder(self) -> LedgerRecorder:
        assert self.store.recorder is not None
        return self.store.recorder

    def agreeing(self, who: str = "w") -> LedgerSteps[int | None]:
        """Compare Redis and the ledger, as workers do."""
        return reinstating.agree(self.calls, self.recorder.controls, who)

    def agree(self, who: str = "w") -> int | None:
        """The same, now; how many were reinstated."""
        return self.store.complete(self.agreeing(who))

    @property
    def are_agreed(self) -> bool:
        found = ledger_agreement.watched(self.namespace, [])
        return ledger_agreement.agreed(self.store.run_each(found))[0] is not None

    def wipe(self) -> None:
        self.redis.delete(*(key(self.namespace) for key in EVERY))

    def snapshot(self) -> dict[str, bytes]:
        names = [key(self.namespace) for key in EVERY]
        return {name: found for name in names if (found := self.redis.dump(name))}  # type: ignore[misc]

    def go_back(self, snapshot: dict[str, bytes]) -> None:
        """Redis has what it had, and nothing later; it was started again."""
        self.wipe()
        for name, value in snapshot.items():
            self.redis.restore(name, 0, value)
        self.redis.hset(keys.controls(self.namespace), "healed", "another run:x")

    def rule(self, place: str = PLACE) -> dict[str, Any]:
        return json.loads(self.redis.hget(keys.destinations(self.namespace), place) or b"{}")  # type: ignore[arg-type, no-any-return]

    def recorded(self, place: str = PLACE) -> dict[str, Any] | None:
        """What the ledger says of a rule; {}: that it was removed."""
        found = self.recorder.ledger.run(Work(self.recorder.controls.all))
        own = [each for each in found if field_and_place(each.name)[1] == place.encode()]
        fields = ((field_and_place(each.name)[0], each.value) for each in own)
        return json.loads(joined(b"", fields) or b"{}") if own else None

    def record(self, value: Any, at_ms: int, place: str = PLACE) -> None:
        """Have the ledger know of a change of a whole rule; None: it was removed."""
        here = parts(json.dumps(value).encode()) if value else {}
        controls = [
            Control(*named(field, place.encode()), here.get(field, b""), at_ms) for field in FIELDS
        ]
        self.recorder.ledger.run(Work(lambda on: self.recorder.controls.record(on, controls)))

    def changed_ms(self, field: str, place: str = PLACE) -> int:
        name = f"rule:{field}:{place}"
        return int(self.redis.hget(keys.controls(self.namespace), name) or 0)  # type: ignore[arg-type]
