"""One call of every script in lua/, with arguments for as many messages as a test asks for."""

from __future__ import annotations

from collections.abc import Callable

from delaybridge.accept.accept import Accepted
from delaybridge.ledger.comparing import healing, reinstating
from delaybridge.ledger.sql.rows import RULE, Control
from delaybridge.message import State
from delaybridge.recurring import stored
from delaybridge.store.messages import pulling
from delaybridge.store.namespace import orphans, registry
from delaybridge.store.protocol import moves
from delaybridge.store.protocol.bucket import Bucket, Item
from delaybridge.store.protocol.layout import Epoch, Layout
from delaybridge.store.protocol.verbs import RedisCommand

BUCKET = Bucket("ns", 3, "birth")
ACCEPTED = Accepted("id", b"id", "+0", 255, b"payload")
ITEM = Item("id", 7, 1.5)
LACKING = healing.Lacking("id", b"1234", 1.5, b"payload")
COMPARISON = reinstating.Comparison("run:name", "7", 9)
PAGE, ENTRY = moves.MovedPage(b"12345678", b"", ()), moves.Entry(b"id", b"\7" + bytes(8))
LAYOUT = Layout((Epoch(0, 16),))
CONTROL = Control(RULE, b"kafka:t", b"{}", 7)

# How each verb is called, for a number of messages.
SAMPLES: dict[str, Callable[[int], RedisCommand[object]]] = {
    "schedule": lambda n: BUCKET.schedule([(b"1234", ACCEPTED)] * n),
    "schedule_one": lambda n: BUCKET.schedule_one((b"1234", ACCEPTED), is_drawn=False),
    "quarantine": lambda n: BUCKET.quarantine([(b"1234", "id", b"payload", "why")] * n),
    "cancel": lambda n: BUCKET.cancel(b"1234", "id"),
    "reschedule": lambda n: BUCKET.reschedule(b"1234", "id", "+5"),
    "kick": lambda n: BUCKET.kick(b"1234", "id"),
    "discard": lambda n: BUCKET.discard(b"1234", "id"),
    "get": lambda n: BUCKET.get("id"),
    "sample": lambda n: BUCKET.sample(9),
    "tally": lambda n: BUCKET.tally(State.PARKED, 9, 7),
    "page": lambda n: BUCKET.page(State.PARKED, limit=9),
    "acquire": lambda n: BUCKET.acquire("w:1", 1000),
    "renew": lambda n: BUCKET.renew("w:1:1", 1000),
    "release": lambda n: BUCKET.release("w:1:1"),
    "claim": lambda n: BUCKET.claim("w:1:1", 1000, 1, ahead_ms=9, limit=9, max_bytes=9),
    "fire": lambda n: BUCKET.fire("w:1:1", 1000, 1.5, 1, 0),
    "settle": lambda n: BUCKET.settle("w:1:1", 1000, [(1, ["id"] * n)] * n),
    "retry": lambda n: BUCKET.retry("w:1:1", 1000, [(ITEM, None, False, "")] * n),
    "park": lambda n: BUCKET.park("w:1:1", 1000, [ITEM] * n),
    "offer": lambda n: pulling.offer(BUCKET, ("w:1:1", 1000), [(ITEM, "pull:t")] * n),
    "receive": lambda n: pulling.receive(BUCKET, "t", 9, 1000, 7),
    "unpark": lambda n: BUCKET.unpark("w:1:1", 1000, ids=["id"] * n),
    "bury": lambda n: BUCKET.bury("w:1:1", 1000, [(ITEM, True, False, "why")] * n),
    "trim": lambda n: BUCKET.trim("w:1:1", 1000, keep=9, age_ms=None),
    "count": lambda n: orphans.count(BUCKET, ("w:1:1", 1000)),
    "mend": lambda n: orphans.mend(BUCKET, ("w:1:1", 1000), orphans.WalkPlace("messages")),
    "seal": lambda n: healing.seal(BUCKET, ("w:1:1", 1000), known=1),
    "restore": lambda n: healing.restore(BUCKET, healing.Standing(), [LACKING] * n),
    "drop": lambda n: healing.drop(BUCKET, ("w:1:1", 1000), [("id", b"1234")] * n),
    "reclaim": lambda n: BUCKET.reclaim("w:1:1", 1000),
    "set_rule": lambda n: registry.set_rule("ns", "kafka:t", b"", b"{}", limit=9),
    "allow": lambda n: registry.allow("ns", [(9, [("kafka:t", 1.5)])] * n),
    "probe": lambda n: registry.probe(BUCKET, str),
    "oust": lambda n: registry.oust("ns", "w", "instance", 1000, "v"),
    "announce": lambda n: registry.announce("ns", "w", "instance", 1000),
    "fence": lambda n: stored.fence(BUCKET, ["recurring:n:1"] * n),
    "define": lambda n: stored.define("ns", stored.read_entry("n", b"{}"), b"", b"", 1),
    "recur": lambda n: stored.recur("ns", 9),
    "reinstate": lambda n: reinstating.reinstate("ns", COMPARISON, [CONTROL] * n),
    "begin": lambda n: moves.begin(BUCKET),
    "lift": lambda n: moves.lift(BUCKET, b"", PAGE.stamp, 9, 9, [b"id"] * n),
    "land": lambda n: moves.land(BUCKET, PAGE, 1, [ENTRY] * n, [1]),
    "retire": lambda n: moves.retire(BUCKET),
    "relayout": lambda n: registry.relayout("ns", LAYOUT, LAYOUT.resized(64), "birth"),
    "record": lambda n: registry.record("ns", "w", "instance", n, b"\x94\x80\x80\x00\x90"),
}
