"""What commands print on a real Redis, word for word: the pages in `golden/`."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from delaybridge import Client
from delaybridge.ingest.entries import Quarantine
from delaybridge.ingest.storing import store_entries
from delaybridge.message import Record, encode_record
from delaybridge.operate.notices.alarms import clear
from delaybridge.operate.notices.repairs import TOTALS
from delaybridge.store.namespace import registry
from delaybridge.store.namespace.history_alarm import Setback, note
from delaybridge.store.protocol import keys
from delaybridge.store.protocol.bucket import Bucket
from delaybridge.store.protocol.record import ORPHAN_SCORE
from delaybridge.store.redis.store import Store
from tests.rigs.bucket import Owner
from tests.rigs.burials import bury, hand_over
from tests.rigs.command_line import Run
from tests.rigs.golden import pages, replay

Acts = dict[str, Callable[[], object]]
TTL_MS = 36_000_000
AT_MS = 2_051_222_400_000
FOUND = (AT_MS, 1200, 3, 101, 4, 5)  # when, and what became of orphans
OF_THE_SERVER = r"  (ok|WARN|FAIL) +(redis|clock|durability|rights): "
SERVES = {"host": "h", "pid": 1, "version": "0.1.0", "paused": []}


@pytest.fixture
def acts(caller: Client, store: Store, namespace: str, owner_of: Callable[[str], Owner]) -> Acts:
    """What stands after an @ in a page."""
    redis, rules = store.redis, keys.destinations(namespace)

    def announce(name: str, *, kind: str = registry.WORKER, **about: Any) -> None:
        told = json.dumps(about).encode()
        store.run([registry.announce(namespace, name, "i", TTL_MS, told, kind=kind)])

    def own() -> None:
        (birth,) = store.run([registry.read_birth(namespace)])
        store.run([Bucket(namespace, n, birth[1]).acquire("w:1", TTL_MS) for n in range(birth[0])])

    def read(state: str) -> None:
        counts = {"total": 9, "quarantined": 0, "lag": 0, "rate": 0.0}
        source = {"source": "rabbitmq:orders.delay", "target": "rabbitmq:orders", "state": state}
        announce("i", kind=registry.INGEST, started_ms=1, sources=[source | counts])

    def quarantine() -> None:
        record = encode_record(Record("rabbitmq:/q", b"theirs"))
        kept = Quarantine.with_own_id("q", b"1234", record, "ingress:foreign by a test")
        caller.run(lambda calls: store_entries(calls, [kept]))

    def make_late() -> None:
        caller.recurring.add("late", "kafka:t", "x", every="1h")
        due = keys.recurring_due(namespace)
        redis.zadd(due, {"late": redis.zscore(due, "late") - 90_000})

    def make_text(name: str) -> None:
        redis.delete(name)
        redis.set(name, "text")

    return {
        "a is handed to the broker": lambda: hand_over(owner_of("a"), "a"),
        "b is given up": lambda: bury(owner_of("b"), "b", "unroutable: 312 NO_ROUTE"),
        "q is kept away": quarantine,
        "a worker runs": lambda: announce("w", **SERVES),
        "a worker of an older version runs": lambda: announce("old", version="0.0.9"),
        "a worker cannot do all that it does each second": lambda: announce(
            "w", **SERVES, failing={"recurring": "redis: full", "series": "redis: odd"}
        ),
        "a worker parks messages": lambda: announce(
            "w", **SERVES, parked={"kafka:t": "unroutable: no such topic"}
        ),
        "kafka:t refuses messages": lambda: announce(
            "w", **SERVES, refused={"kafka:t": "invalid_record: no key"}
        ),
        "ingest is kept out": lambda: read("403 ACCESS_REFUSED"),
        "ingest reads": lambda: read("reading"),
        "a rule is odd": lambda: redis.hset(rules, "kafka:odd", '{"rate": -1}'),
        "a pause is forgotten": lambda: redis.hset(
            rules, "kafka:old", '{"paused": true, "paused_ms": 1800000000}'
        ),
        "a rule is of a broker that is gone": lambda: redis.hset(rules, "gone:x", '{"rate": 5}'),
        "the rules are text": lambda: make_text(rules),
        "a definition is broken": lambda: redis.hset(keys.recurring(namespace), "broken", "{"),
        "runs were missed": lambda: redis.hset(
            keys.recurring_state(namespace), "report", '{"missed": 1200}'
        ),
        "the series is text": lambda: make_text(keys.series(namespace)),
        "a definition is late": make_late,
        "the definitions are text": lambda: make_text(keys.recurring(namespace)),
        "keys were lost": lambda: redis.hset(
            keys.bucket_key(namespace, 3, "marks"), mapping=dict(zip(TOTALS, FOUND, strict=True))
        ),
        "messages are held back": lambda: redis.zadd(
            keys.bucket_key(namespace, 5, "parked"), {"held": ORPHAN_SCORE + 1.0}
        ),
        "the alarm is cleared": lambda: store.complete(clear(namespace)),
        "the namespace was wiped": lambda: store.run([note(namespace, Setback(AT_MS, "w"))]),
        "every bucket has an owner": own,
        "Redis went back": lambda: store.run([note(namespace, Setback(AT_MS, "w", 7, 8, 2, 1520))]),
    }


@pytest.mark.parametrize("page", pages(Path(__file__).parent), ids=lambda page: page.stem)
def test_commands_print_what_their_page_says(
    page: Path, run: Run, acts: Acts, redis_url: str, namespace: str
) -> None:
    names = {redis_url: "REDIS", namespace: "NAMESPACE"}
    replay(page, run, acts=acts, names=names, skipped=OF_THE_SERVER)
