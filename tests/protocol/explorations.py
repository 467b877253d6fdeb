"""The explorations: of the protocol, and of its mutants, which must violate what is named here."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

from tests.protocol.bounds import (
    Bounds,
    Faults,
    X,
    Y,
    cancel,
    debounce,
    kick,
    reschedule,
    schedule,
    throttle,
    together,
    touch,
)
from tests.protocol.owner_verbs import Reach
from tests.protocol.rules import Rules

OWNERS = frozenset({"acquire", "reclaim", "claim", "fire", "settle", "settle_once", "retry", "bury",
                    "park", "offer", "unpark", "renew", "count", "mend"})  # fmt: skip
CLIENTS = frozenset({"client"})

# Scores: due at tick 1 is 2; 3 is the same with a low priority.
LATER = (schedule(X, 2), cancel(X), reschedule(X, 2), reschedule(X, 4))
NOW_AND_LATER = (schedule(X, 2), schedule(X, 4), cancel(X), reschedule(X, 0), reschedule(X, 4))
PLAIN = (schedule(X, 2), cancel(X), reschedule(X, 2))
TWO = (schedule(X, 3), schedule(Y, 2), schedule(Y, 4), cancel(X), reschedule(X, 4), cancel(Y))
REPLACE = (schedule(X, 2), schedule(X, 2, "replace"), schedule(X, 4, "replace"), cancel(X))
BURIED = (schedule(X, 2), schedule(X, 2, "replace"), cancel(X), kick(X))
KEEP = (schedule(X, 2), schedule(X, 2, "keep"), schedule(X, 4))
AGAIN = (schedule(X, 2), schedule(X, 2, "keep"), schedule(X, 2, "replace"), cancel(X))
DEBOUNCED = (debounce(X), schedule(X, 2), cancel(X))
THROTTLED = (throttle(X), cancel(X), reschedule(X, 2))
TOGETHER = (together((X, 2), (X, 4)), together((X, 2), (Y, 2)), cancel(X), cancel(Y))
ONE = Reach(2, 1)
NEAR = Reach(1, 2)

SMALL = {
    bounds.name: bounds
    for bounds in (
        Bounds("calm", NOW_AND_LATER, 3, lead=1, graceful=True, faults=Faults(refused=1)),
        Bounds("two ids", TWO, 3, ids=2, reach=ONE),
        Bounds("two ids, four calls", (schedule(X, 3), schedule(Y, 2), cancel(X)), 4, ids=2,
               reach=ONE),
        Bounds("crash", PLAIN, 3, workers=2, ends=2, lead=1, faults=Faults(crash=1)),
        Bounds("crash, two ids", TWO, 3, ids=2, workers=2, ends=2, faults=Faults(crash=1)),
        Bounds("pause", PLAIN, 3, workers=2, ends=2, faults=Faults(pause=1)),
        Bounds("pause twice", PLAIN, 2, workers=2, ends=2, faults=Faults(pause=2)),
        Bounds("a reply is lost", PLAIN, 3, ends=2, lead=1, faults=Faults(lost=1)),
        Bounds("an owner's call twice", LATER, 3, ends=2, faults=Faults(twice=1, refused=1),
               verbs=OWNERS),
        Bounds("an owner's call twice, pause", PLAIN, 3, workers=2, ends=2,
               faults=Faults(twice=1, pause=1), verbs=OWNERS),
        Bounds("a client's call twice", LATER, 3, ends=2, lead=1, faults=Faults(twice=1),
               verbs=CLIENTS),
        Bounds("several messages in a call", TOGETHER, 2, ids=2, ends=2, faults=Faults(twice=1),
               verbs=CLIENTS),
        Bounds("at most once", PLAIN, 3, ends=2, lead=1, once=True, faults=Faults(twice=1, lost=1)),
        Bounds("unknown outcome", PLAIN, 3, ends=2, lead=1, faults=Faults(unknown=1, refused=1)),
        Bounds("touch", (schedule(X, 2), touch(X), cancel(X)), 3, ends=2, lead=1,
               faults=Faults(twice=1), verbs=CLIENTS),
        Bounds("touch, moved", (schedule(X, 2), touch(X, 2), reschedule(X, 4)), 3, ends=2, lead=1,
               faults=Faults(twice=1), verbs=CLIENTS),
        Bounds("buried", BURIED, 3, ends=2, buries=True, faults=Faults(refused=1, twice=1)),
        Bounds("parked", TWO, 3, ids=2, ends=2, reach=ONE, parks=True),
        Bounds("an idle owner", NOW_AND_LATER, 3, lead=1, reach=NEAR, sleeps=True,
               faults=Faults(wake=1)),
        Bounds("an idle owner, a claim twice", PLAIN, 2, ends=2, reach=NEAR, sleeps=True,
               faults=Faults(twice=1, wake=1), verbs=frozenset({"claim"})),
        Bounds("pull", NOW_AND_LATER, 3, pulls=True),
        Bounds("pull, replace", REPLACE, 3, ends=2, pulls=True),
        Bounds("scheduled again", KEEP, 3, ends=2, lead=1, faults=Faults(twice=1, refused=1),
               verbs=CLIENTS),
        Bounds("pull, scheduled again", KEEP, 3, ends=2, pulls=True, faults=Faults(twice=1),
               verbs=CLIENTS),
        Bounds("pull, two ids", TWO, 2, ids=2, ends=2, reach=ONE, pulls=True),
        Bounds("pull, crash", PLAIN, 2, workers=2, ends=2, pulls=True, faults=Faults(crash=1)),
        Bounds("pull, a reply is lost", PLAIN, 2, ends=2, pulls=True, faults=Faults(lost=1)),
        Bounds("pull, a call twice", PLAIN, 2, ends=2, pulls=True, faults=Faults(twice=1)),
        Bounds("pull, an idle owner", PLAIN, 2, ends=2, reach=NEAR, sleeps=True, pulls=True,
               faults=Faults(wake=1)),
        Bounds("a key vanishes", LATER, 3, ends=2, lead=1, faults=Faults(vanish=1)),
        Bounds("a key vanishes, two ids", TWO, 2, ids=2, ends=2, reach=ONE, parks=True,
               faults=Faults(vanish=1)),
        Bounds("a key vanishes, a call twice", PLAIN, 2, ends=2, faults=Faults(vanish=1, twice=1),
               verbs=frozenset({"mend", "count"})),
        Bounds("a key vanishes, buried", BURIED, 3, ends=2, buries=True,
               faults=Faults(vanish=1, refused=1)),
        Bounds("a window", AGAIN, 3, windows=(1,), faults=Faults(refused=1)),
        Bounds("a window, calls twice", REPLACE, 2, ends=2, windows=(1,), faults=Faults(twice=1)),
        Bounds("windows that differ", (schedule(X, 0), schedule(X, 0, "replace")), 3,
               ends=1, windows=(1, 2), faults=Faults(pause=1)),
        Bounds("a window, at most once", PLAIN, 3, ends=2, windows=(2,), once=True,
               faults=Faults(lost=1)),
        Bounds("a window, pull", AGAIN, 3, ends=2, windows=(1,), pulls=True),
        Bounds("debounced", DEBOUNCED, 3, ends=4, faults=Faults(twice=1), verbs=CLIENTS),
        Bounds("throttled", THROTTLED, 3, ends=4, faults=Faults(twice=1, refused=1), verbs=CLIENTS),
        Bounds("throttled, pull", (throttle(X), debounce(X)), 3, ends=4, pulls=True),
        Bounds("a store that goes back", PLAIN, 2, ends=2, lead=1, faults=Faults(rollback=1)),
    )
}  # fmt: skip

WHOLE = [
    Bounds("everything once", PLAIN, 2, workers=2, ends=2,
           faults=Faults(crash=1, pause=1, twice=1, lost=1)),
    Bounds("calm, two ids, hand-over", TWO, 4, ids=2, reach=ONE, graceful=True,
           faults=Faults(refused=1)),
    Bounds("calm, one worker", NOW_AND_LATER, 4, lead=1, graceful=True, faults=Faults(refused=1)),
    Bounds("crash twice", NOW_AND_LATER, 3, workers=2, lead=1, faults=Faults(crash=2)),
    Bounds("pause twice, whole", LATER, 3, workers=2, faults=Faults(pause=2)),
    Bounds("replies are lost", NOW_AND_LATER, 3, lead=1, faults=Faults(lost=2, refused=1)),
    Bounds("owner's calls twice", NOW_AND_LATER, 3, lead=1, faults=Faults(twice=1, refused=1),
           verbs=OWNERS, graceful=True),
    Bounds("clients' calls twice", NOW_AND_LATER, 4, lead=1, faults=Faults(twice=1), verbs=CLIENTS),
    Bounds("unknown outcomes", NOW_AND_LATER, 3, lead=1, faults=Faults(unknown=2, refused=1)),
    Bounds("unknown, crash, pause", PLAIN, 2, workers=2, ends=2,
           faults=Faults(unknown=1, crash=1, pause=1)),
    Bounds("bury, kick, replace", BURIED, 4, ends=2, buries=True,
           faults=Faults(refused=1, unknown=1, twice=1), verbs=CLIENTS),
    Bounds("at most once, two workers", PLAIN, 2, workers=2, ends=2, lead=1, once=True,
           faults=Faults(crash=1, pause=1, lost=1)),
    Bounds("replace, pause", REPLACE, 3, workers=2, ends=2, faults=Faults(pause=1)),
    Bounds("parked, calls twice", PLAIN, 3, ends=2, parks=True, faults=Faults(twice=1),
           verbs=OWNERS),
    Bounds("parked, crash", TWO, 2, ids=2, workers=2, ends=2, parks=True, faults=Faults(crash=1)),
    Bounds("idle owner, hand-over", NOW_AND_LATER, 2, workers=2, reach=NEAR, sleeps=True,
           graceful=True, faults=Faults(wake=1, refused=1)),
    Bounds("idle owner, calls twice", LATER, 2, reach=NEAR, sleeps=True,
           faults=Faults(twice=1, wake=1)),
    Bounds("the store goes back", LATER, 2, workers=2, ends=2, lead=1, faults=Faults(rollback=1)),
    Bounds("the store goes back, calls twice", PLAIN, 2, ends=2,
           faults=Faults(rollback=1, twice=1, lost=1)),
    Bounds("pull, pause, calls twice", PLAIN, 2, workers=2, ends=2, pulls=True,
           faults=Faults(pause=1, twice=1), verbs=CLIENTS),
    Bounds("pull, the store goes back", PLAIN, 2, ends=2, pulls=True, faults=Faults(rollback=1)),
    Bounds("pull, parked, crash", TWO, 2, ids=2, workers=2, ends=2, reach=ONE, parks=True,
           pulls=True, faults=Faults(crash=1)),
    Bounds("keys vanish", LATER, 3, ends=2, lead=1, faults=Faults(vanish=2)),
    Bounds("a key vanishes, crash, pause", PLAIN, 2, workers=2, ends=2,
           faults=Faults(vanish=1, crash=1, pause=1)),
    Bounds("a key vanishes, calls twice", PLAIN, 2, ends=2, faults=Faults(vanish=1, twice=1)),
    Bounds("a key vanishes, a reply is lost", PLAIN, 2, ends=2, faults=Faults(vanish=1, lost=1)),
    Bounds("a key vanishes, at most once", PLAIN, 2, ends=2, lead=1, once=True,
           faults=Faults(vanish=1, lost=1)),
    Bounds("a key vanishes, an idle owner", PLAIN, 2, ends=2, reach=NEAR, sleeps=True,
           faults=Faults(vanish=1)),
    Bounds("pull, a key vanishes", PLAIN, 2, ends=2, pulls=True, faults=Faults(vanish=1)),
    Bounds("the store goes back, a key vanishes", PLAIN, 2, ends=2,
           faults=Faults(rollback=1, vanish=1)),
    Bounds("the store goes back, pause", PLAIN, 2, workers=2, ends=2,
           faults=Faults(rollback=1, pause=1)),
]  # fmt: skip

# Far too many states to explore; for samples.
LATE_ENDS = Bounds(
    "ends executed late",
    (schedule(X, 0), schedule(X, 3), schedule(X, 2), kick(X), kick(X), cancel(X)),
    24, ends=4, buries=True, parks=True, faults=Faults(twice=12, refused=8),
)  # fmt: skip
BURIED_LATE = Bounds(
    "buries executed late", (schedule(X, 0), kick(X)), 24, ends=4, buries=True,
    faults=Faults(twice=12, refused=12), verbs=frozenset({"bury"}),
)  # fmt: skip
FIRED_LATE = Bounds(
    "fires executed late", (schedule(X, 0), schedule(Y, 3), schedule(Y, 4), cancel(X)), 24, ids=2,
    ends=3, reach=ONE, lead=1, faults=Faults(twice=12), verbs=frozenset({"fire", "claim"}),
)  # fmt: skip
EVERYTHING = Bounds(
    "everything",
    (*TWO, *REPLACE, *TOGETHER, kick(X), kick(Y), schedule(Y, 4, "keep"), reschedule(Y, 6),
     reschedule(X, 0), reschedule(Y, 2), touch(X), touch(Y)),
    24, ids=2, workers=2, ends=6, reach=Reach(1, 2), lead=1, graceful=True, buries=True, parks=True,
    faults=Faults(crash=1, pause=3, lost=3, twice=8, unknown=6, refused=6, rollback=1),
)  # fmt: skip
GATHERED = replace(
    EVERYTHING,
    name="everything, gathered",
    orders=(debounce(X), debounce(Y, 1), throttle(X), throttle(Y), throttle(Y, 1), schedule(X, 4),
            schedule(Y, 2, "replace"), cancel(X), cancel(Y), reschedule(Y, 6), kick(X), kick(Y)),
)  # fmt: skip
GATHERED_PULLED = replace(GATHERED, name="everything, gathered, pull", pulls=True)
VANISHING = replace(
    EVERYTHING,
    name="everything, keys vanish",
    faults=EVERYTHING.faults._replace(vanish=4, rollback=0),
)
EVERYTHING_ONCE = replace(EVERYTHING, name="everything, at most once", once=True)
EVERYTHING_PULLED = replace(EVERYTHING, name="everything, pull", pulls=True)
WINDOWED = replace(EVERYTHING, name="everything, windows", windows=(0, 1, 3))
WINDOWED_ONCE = replace(WINDOWED, name="everything, windows, at most once", once=True)
WINDOWED_PULLED = replace(WINDOWED, name="everything, windows, pull", pulls=True)
LEDGER = Bounds(
    "a ledger",
    (schedule(X, 0), schedule(Y, 3), schedule(X, 2, "replace"), schedule(Y, 2, "keep"), cancel(X),
     reschedule(X, 4), kick(X), touch(X)),
    16, ids=2, workers=2, ends=6, reach=Reach(1, 2), lead=1, graceful=True, buries=True,
    windows=(0, 2), ledger=True,
    faults=Faults(crash=1, pause=1, lost=2, twice=4, refused=4, rollback=1, wipe=1, erase=4),
    verbs=frozenset({"client", "settle", "settle_once", "seal"}),
)  # fmt: skip
LEDGER_GATHERED = replace(
    LEDGER, name="a ledger, gathered",
    orders=(debounce(X), throttle(Y), throttle(Y, 1), debounce(Y), schedule(X, 2), cancel(X),
            kick(X)),
)  # fmt: skip
LEDGER_PULLED = replace(LEDGER, name="a ledger, pull", pulls=True)
LEDGER_ONCE = replace(LEDGER, name="a ledger, at most once", once=True)
LEDGER_BURIED = Bounds(
    "a ledger, buried", (schedule(X, 0), schedule(X, 0), kick(X), cancel(X)), 16, ends=4,
    buries=True, ledger=True,
    faults=Faults(refused=12, rollback=4, erase=4, twice=4), verbs=frozenset({"client", "bury"}),
)  # fmt: skip
LEDGER_MET = Bounds(
    "a ledger, scheduled again", (schedule(X, 0), schedule(X, 0), schedule(X, 0, "keep")), 24,
    ends=4, ledger=True, faults=Faults(twice=12), verbs=frozenset({"client"}),
)  # fmt: skip
WINDOWS_SETTLED = Bounds(
    "windows, settled",
    (schedule(X, 0), schedule(X, 0, "keep"), *[schedule(X, 0, "replace")] * 4), 16, ends=2,
    windows=(1, 3), faults=Faults(pause=8, twice=4), verbs=frozenset({"client"}),
)  # fmt: skip
WINDOWS_RECEIVED = replace(WINDOWS_SETTLED, name="windows, received", pulls=True, ledger=True)
PULLED = Bounds(
    "received", (schedule(X, 0), schedule(X, 0, "keep"), schedule(Y, 3), reschedule(X, 2)), 60,
    ids=2, ends=6, lead=1, pulls=True, faults=Faults(twice=8, lost=3),
)  # fmt: skip


class Mutant(NamedTuple):
    """The protocol without some rules. violates: the promise that must break, in these bounds."""

    name: str
    without: dict[str, Any]
    bounds: str
    violates: int

    @property
    def mutated(self) -> Bounds:
        return replace(SMALL[self.bounds], rules=Rules(**self.without))


MUTANTS = [
    Mutant("fired is a score only", {"fired_pair": False}, "calm", 10),
    Mutant("fired is a score only, crash", {"fired_pair": False}, "crash", 8),
    Mutant("the first fire does not replace", {"fired_replaced": False}, "crash, two ids", 10),
    Mutant("a late fire lowers the watermark", {"fired_holds": False}, "an owner's call twice", 3),
    Mutant("the watermark falls", {"rising": False}, "two ids, four calls", 10),
    Mutant("a watermark without fraction", {"fraction": False}, "two ids", 3),
    Mutant("published beyond the fire", {"batch": False}, "calm", 6),
    Mutant("parked after the fire", {"exits_first": False}, "parked", 10),
    Mutant("revoked by score", {"revokes": "score"}, "calm", 3),
    Mutant("revoked by id", {"revokes": "id"}, "a reply is lost", 9),
    Mutant("acknowledged by score", {"acknowledges": "score"}, "calm", 3),
    Mutant("acknowledged by id", {"acknowledges": "id"}, "calm", 3),
    Mutant("forgotten when reported", {"acknowledges": "reported"}, "a reply is lost", 3),
    Mutant("acknowledged during a claim", {"complete": False}, "calm", 3),
    Mutant("the token is a name", {"new_token": False}, "an owner's call twice, pause", 6),
    Mutant("a renewal takes the lease", {"never_created": False}, "pause twice", 3),
    Mutant("copies outlive the lease", {"drops": False}, "pause", 3),
    Mutant("reclaim takes everything", {"reclaims_old": False}, "an owner's call twice", 3),
    Mutant("claimed before all is reclaimed", {"reclaims_all": False}, "crash, two ids", 10),
    Mutant("claim without have", {"have": False}, "a reply is lost", 9),
    Mutant("ended by id", {"ends": "id"}, "an owner's call twice", 7),
    Mutant("ended by score", {"ends": "score"}, "an owner's call twice", 7),
    Mutant("no stamps", {"stamps": False}, "a client's call twice", 3),
    Mutant("no stamps, at most once", {"stamps": False}, "at most once", 5),
    Mutant("one stamp for a whole call", {"own_stamps": False}, "several messages in a call", 1),
    Mutant("maybe is never said", {"maybe": False}, "pause", 4),
    Mutant("nobody is woken", {"wakes": False}, "an idle owner", 11),
    Mutant("nothing is promised", {"promises": False}, "an idle owner", 11),
    Mutant("a renewal tells nothing", {"renewal_tells": False}, "an idle owner", 9),
    Mutant("a renewal misses late claims", {"renewal_counts": False},
           "an idle owner, a claim twice", 9),
    Mutant("finished without a receipt", {"receipts": False}, "pull, replace", 7),
    Mutant("a receipt outlives a reschedule", {"voids": False}, "pull", 7),
    Mutant("due again at once", {"holds": False}, "pull", 5),
    Mutant("given wherever it is", {"offered": False}, "pull, crash", 1),
    Mutant("a delivery is not counted", {"counts": False}, "pull", 3),
    Mutant("a fired message is pending", {"waits": False}, "scheduled again", 12),
    Mutant("what a consumer has is pending", {"takes_over": False}, "pull, scheduled again", 12),
    Mutant("finished after a duplicate", {"owes": False}, "pull, scheduled again", 12),
    Mutant("a delivery is not noted", {"notes_delivered": False}, "a window", 13),
    Mutant("a finished one is not noted", {"notes_delivered": False}, "a window, pull", 13),
    Mutant("a window is not marked", {"marks_window": False}, "windows that differ", 13),
    Mutant("a shorter window ends a longer", {"keeps_longer": False}, "windows that differ", 13),
    Mutant("a window never ends", {"expires": False}, "a window", 12),
    Mutant("a replace is a duplicate", {"replaces": False}, "a window", 12),
    Mutant("a touch replaces what is there", {"only_read": False}, "touch", 14),
    Mutant("a touch undoes a reschedule", {"same_due": False}, "touch, moved", 14),
    Mutant("delivered before pending", {"pending_first": False}, "a window, calls twice", 12),
    Mutant("a late settle notes", {"of_claims": False}, "a window, calls twice", 12),
    Mutant("each call sets another end", {"bounded": False}, "debounced", 15),
    Mutant("a throttle forgets its span", {"spaced": False}, "throttled", 15),
    Mutant("a gathered call leaves no note", {"begun": False}, "throttled", 16),
    Mutant("nobody compares the keys", {"compares": False}, "a key vanishes", 9),
    Mutant("mended under a session", {"ends_first": False, "mends_first": False},
           "a key vanishes", 6),
    Mutant("mended after a claim", {"mends_first": False}, "a key vanishes, a call twice", 6),
    Mutant("orphans are not revoked", {"revokes_orphans": False}, "a key vanishes", 3),
    Mutant("a vanished fire is forgotten", {"maybe_fired": False}, "a key vanishes", 3),
    Mutant("forgotten claims are fired", {"forgotten": False, "retakes": False},
           "a store that goes back", 6),
    Mutant("sessions outlive a fail-over", {"retakes": False}, "a store that goes back", 9),
]  # fmt: skip
