"""What the model knows and no script does: what clients were told, and what was really published.

It finds what a promise of the protocol forbids, and names it by the promise's number:

1 an accepted message lies in exactly one place, and is settled only after a confirm
2 nothing is early
3 nothing is delivered after `cancelled`, and `maybe_delivered` is said only if it may be
4 a reschedule wins over every older copy
5 no duplicate without a crash, a pause or an unknown outcome; at most once: never two
6 a stale owner changes nothing, and nothing is published but what the store allowed
7 the end of an old claim ends no newer one
8 an attempt is counted for exactly the fired messages
9 from every state the bucket can be drained
10 `in_flight` is answered for fired messages only
11 a message that is due before the owner looks again has woken it
12 `duplicate` and `conflict` are answered only while the message of that id is to be delivered, or
   `duplicate` until the window of its delivery ends
13 an id that was delivered is not accepted until the window ends of whoever settled it, unless the
   call replaces, or it is pending again; as long as the owner of the lease has a window
14 a touch replaces the message that it has read, due when it was, or nothing
15 a debounced message is due when its key was quiet, and `longest` after the first call that waits
   at the latest; a throttled one no sooner than `every` after the last that was delivered
16 a gathered call that is sent again is stored once, also if its message has left

What is restored by the ledger was not cancelled (3) and has not left (5).

Of a pull topic, a delivery is what `receive` gives: not early (2), not after `cancelled` or
`finished` (3), to one consumer at a time (5), and only the last of them ends it, or moves it (7).

A replica that lags and takes over (a roll-back) returns these notes to the replica's time with it:
what a client was told since then, and what was published since then, is no longer held against
the protocol. So a roll-back suspends 1, 3, 4 and 5 for what spans it; of 8 the one half, that a
fired message is counted, since the fire may be forgotten; and nothing else. What an owner had put
back in the lost time is fired with the rest of its batch: it is answered `in_flight`, and counted,
until the owner has taken its lease again, and reclaimed it.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from delaybridge.message import Answer
from tests.protocol import pacing
from tests.protocol.bounds import Bounds
from tests.protocol.bucket import GATHERS, Bucket, Content, Effect, put
from tests.protocol.calls import ClientCall, Copy, OwnerCall

MOST = 4  # deliveries that are told apart


class Fate(NamedTuple):
    """What became of one accepted message. state: accepted | cancelled | maybe | settled | erased.

    held, receipt: of the consumer that was given it last: until which tick, and under what.
    generation: how often it was rescheduled, or stored once more after it was settled. born: the
    generation at the last of these stores; copies from before are of a settled message. loose: its
    last reschedule said that an earlier copy may have been delivered. unknown: a publish of it had
    an unknown outcome. owed: somebody was told since it was given last that it is pending.
    first: of a debounced one, the tick of the first call that waits; -1: not known. is_paced: it is
    throttled, and due as it was accepted.
    """

    state: str
    score: int
    generation: int = 0
    born: int = 0
    loose: bool = False
    delivered: int = 0
    confirmed: bool = False
    unknown: bool = False
    held: int = 0
    receipt: int = -1
    owed: bool = False
    first: int = -1
    is_paced: bool = False


class Witness:
    """The notes of one step. fates: by stamp. allowed: id -> the claim that the store allowed."""

    __slots__ = (
        "bounds", "fates", "allowed", "went_back", "violations", "settled", "window", "paced"
    )  # fmt: skip

    def __init__(
        self,
        bounds: Bounds,
        fates: tuple[Fate | None, ...],
        allowed: tuple[int | None, ...],
        *,
        went_back: bool,
    ) -> None:
        self.bounds, self.fates, self.allowed = bounds, fates, allowed
        self.went_back = went_back
        self.violations: list[str] = []
        self.settled: tuple[int, ...] = ()  # id -> until when it is known as delivered
        self.window = 0  # of the owner
        self.paced: tuple[int, ...] = ()  # id -> when a throttled one may be due again

    def change(self, stamp: int, **fields: Any) -> None:
        fate = self.fates[stamp]
        if fate is not None:
            self.fates = put(self.fates, stamp, fate._replace(**fields))

    def generation(self, stamp: int) -> int:
        fate = self.fates[stamp]
        return 0 if fate is None else fate.generation

    def return_to(
        self, fates: tuple[Fate | None, ...], allowed: tuple[int | None, ...], content: Content
    ) -> None:
        """A replica that lags takes over. Stamps drawn since then stay drawn."""
        since: list[Fate | None] = [None] * (len(self.fates) - len(fates))
        # One that was stored once more had been settled: it was confirmed.
        self.fates = tuple(
            old and now and old._replace(confirmed=now.confirmed or now.born > old.born)
            for old, now in zip([*fates, *since], self.fates, strict=True)
        )
        # What was allowed since then stays so, if the replica has that claim.
        every = zip(self.allowed, allowed, content.mirror, strict=True)
        self.allowed = tuple(now if now == claim else old for now, old, claim in every)
        self.went_back = True
        self.settled = (0,) * len(
            self.settled
        )  # what the replica knows of it is not held against it
        self.paced = (0,) * len(self.paced)

    # clients

    def judge_client(
        self, call: ClientCall, answer: Any, effects: list[Effect], now: int, *, again: bool
    ) -> None:
        replaced = [each.stamp for each in effects if each.kind == "undone"]
        if call.only is not None and effects and replaced not in ([], [call.only]):
            self.violations.append("14 a touch has replaced another message than it had read")
        due = {each.score for each in effects if each.kind in ("undone", "accepted")}
        if call.only is not None and len(due) > 1:
            self.violations.append("14 a touch has undone a reschedule")
        if call.only is not None and not replaced and any(e.kind == "accepted" for e in effects):
            self.violations.append("14 a touch has stored a message that was not there")
        for effect in effects:
            if effect.kind == "in_flight":
                if self.allowed[effect.id] != effect.claim:
                    self.violations.append("10 answered in_flight for a message never fired")
            elif effect.kind == "accepted":
                pacing.judge_sent_again(self, call, effect, again=again)
                self._accepted(effect)
                self._is_free(call, effect, effects, now)
                pacing.judge_due(self, call, effect, effects, now)
            elif effect.kind in ("restored", "withdrawn"):
                self._by_ledger(effect)
            elif effect.kind == "given":
                self._given(call, effect, now)
            elif effect.kind in ("pending", "known"):
                self._pending(effect, now, is_known=effect.kind == "known", call=call)
            elif effect.kind == "taken":
                self._taken(effect, now)
            elif again and not self._is_renewed(call, effect):
                self.violations.append("4 a call sent again took effect twice")
            elif effect.kind in ("finished", "extended", "released"):
                self._by_consumer(call, effect, now)
            self._changed(effect)
            if effect.kind == "finished":
                self._delivered(effect.id, now)
        if call.verb == "schedule":
            pairs = zip(call.targets, answer, strict=True)
            created = [target.id for target, each in pairs if each is Answer.CREATED]
            if not again and len({*created}) < len(created):
                self.violations.append("1 answered created, and nothing was stored")

    def _is_renewed(self, call: ClientCall, effect: Effect) -> bool:
        """A replace sent again that was not accepted, or whose message was settled, or deleted."""
        fates = [self.fates[target.stamp] for target in call.targets]
        return call.policy in ("replace", *GATHERS) and any(
            f is None or f.state in ("settled", "erased") for f in fates
        )

    def _changed(self, effect: Effect) -> None:
        fate = self.fates[effect.stamp]
        if effect.kind in ("moved", "kicked"):
            self.change(effect.stamp, is_paced=False)
        if effect.kind not in ("undone", "moved") or fate is None:
            return
        if effect.flag and not fate.unknown:
            self.violations.append("3 answered maybe_delivered with no unknown outcome before")
        elif fate.receipt >= 0 and not effect.flag and not self.went_back:
            self.violations.append("3 answered cancelled or rescheduled, and a consumer has it")
        if effect.kind == "undone":
            self.change(effect.stamp, state="maybe" if effect.flag else "cancelled")
        else:
            generation = fate.generation + 1
            self.change(
                effect.stamp, score=effect.score, generation=generation, loose=effect.flag,
                held=0, receipt=-1,
            )  # fmt: skip

    def _accepted(self, effect: Effect) -> None:
        """Stored, also once more: a schedule sent again after its message was settled."""
        old = self.fates[effect.stamp]
        if old is not None and old.state in ("cancelled", "maybe"):
            self.violations.append("3 a schedule sent again revived a cancelled message")
        elif old is not None and self.bounds.once and old.state != "erased":
            self.violations.append("5 a schedule sent again made a second copy, at most once")
        born = 0 if old is None else old.generation + 1
        fate = Fate("accepted", effect.score, born, born, unknown=effect.flag)
        self.fates = put(self.fates, effect.stamp, fate)

    # the window of delivered ids

    def _delivered(self, id: int, now: int) -> None:
        if self.window:
            self.settled = put(self.settled, id, max(self.settled[id], now + self.window))

    def _is_free(self, call: ClientCall, effect: Effect, effects: list[Effect], now: int) -> None:
        is_taken = any(each.kind == "taken" and each.id == effect.id for each in effects)
        is_bound = self.window > 0 and self.settled[effect.id] > now
        is_free = call.policy in ("replace", *GATHERS)
        if is_bound and not is_free and not is_taken and not self.went_back:
            self.violations.append("13 an id was accepted that was delivered within its window")

    # the ledger

    def _by_ledger(self, effect: Effect) -> None:
        """It is restored, or withdrawn, by its row."""
        fate, is_back = self.fates[effect.stamp], effect.kind == "restored"
        if fate is not None and not self.went_back:
            if is_back and fate.state in ("cancelled", "maybe"):
                self.violations.append("3 a cancelled message was brought back")
            elif fate.state == "settled":
                self.violations.append("5 a message that left was brought back, or cancelled")
        if fate is None:  # it was not stored, or the store has forgotten it
            self.fates = put(self.fates, effect.stamp, Fate("accepted", effect.score))
        state = "accepted" if is_back else "cancelled"
        self.change(effect.stamp, state=state, score=effect.score, first=-1, is_paced=False)

    # pending messages

    def _pending(
        self, effect: Effect, now: int, *, is_known: bool = False, call: ClientCall
    ) -> None:
        """Somebody is told that the message is pending, or was delivered."""
        fate = self.fates[effect.stamp]
        if is_known:
            is_right = self.settled[effect.id] > now and call.policy != "replace"
            if (effect.flag or not is_right) and not self.went_back:
                self.violations.append("12 said to be delivered, and it was not, or is pending")
            return
        if fate is None or self.went_back:
            return
        if fate.held > now or (effect.claim and self.allowed[effect.id] == effect.claim):
            self.violations.append("12 said to be pending, and it was delivered, or is about to be")
        if effect.flag and fate.receipt >= 0:
            self.change(effect.stamp, owed=True)

    def _taken(self, effect: Effect, now: int) -> None:
        """Another message is there instead: a consumer has this one."""
        fate = self.fates[effect.stamp]
        if fate is not None and fate.held <= now and not self.went_back:
            self.violations.append("1 taken over, and no consumer has it")
        self.change(effect.stamp, state="settled", held=0, receipt=-1)

    # consumers

    def _given(self, call: ClientCall, effect: Effect, now: int) -> None:
        fate = self.fates[effect.stamp]
        if fate is None:
            return
        if effect.score // 2 > now:
            self.violations.append("2 received early")
        if fate.held > now:
            self.violations.append("5 given to a second consumer while the first has it")
        if fate.state != "accepted":
            self.violations.append(f"3 received after it was {fate.state}")
        self.change(
            effect.stamp, unknown=True, held=now + call.ttr, receipt=call.receipt, owed=False
        )

    def _by_consumer(self, call: ClientCall, effect: Effect, now: int) -> None:
        ((_, delay, _),) = call.targets
        fate = self.fates[effect.stamp]
        if fate is not None and fate.receipt != call.receipt:
            self.violations.append(f"7 {effect.kind} by a consumer that was not the last")
        elif fate is not None and fate.owed and effect.kind == "finished":
            self.violations.append("12 finished, and somebody was told that it is pending")
        if effect.kind == "extended":
            self.change(effect.stamp, held=now + delay)
        else:
            state = "settled" if effect.kind == "finished" else "accepted"
            self.change(effect.stamp, state=state, held=0, receipt=-1)

    # owners

    def judge_owner(
        self,
        call: OwnerCall,
        answer: Any,
        before: Content,
        bucket: Bucket,
        lost: tuple[int | None, ...],
        now: int,
    ) -> None:
        """lost: the claims that vanished, of messages that are in no set since then."""
        if call.verb == "acquire" and before.lease is None and answer is not None:
            self.window = call.window
        if call.verb == "fire" and answer is not None:
            for copy in call.copies:
                if copy.claim in (before.mirror[copy.id], lost[copy.id]):
                    self.allowed = put(self.allowed, copy.id, copy.claim)
            if self.went_back:  # a fire also covers what its owner had put back in the lost time
                self.allowed = tuple(
                    claim if bucket.is_fired(id) else allowed
                    for id, (claim, allowed) in enumerate(
                        zip(bucket.mirror, self.allowed, strict=True)
                    )
                )
        for effect in bucket.effects:
            if effect.kind == "reclaimed":
                self._reclaimed(effect)
            elif effect.kind == "ended":
                self._ended(call, effect, now)
            elif effect.kind == "dropped":
                self._dropped(effect)

    def _reclaimed(self, effect: Effect) -> None:
        was_allowed = self.allowed[effect.id] == effect.claim
        if effect.flag and not was_allowed:
            self.violations.append("8 an attempt counted for a message never fired")
        elif was_allowed and not effect.flag and not self.went_back:
            self.violations.append("8 a fired message taken back as never fired")
        if effect.flag:
            self.change(effect.stamp, unknown=True)

    def _dropped(self, effect: Effect) -> None:
        fate = self.fates[effect.stamp]
        is_new = fate is not None and fate.state == "accepted" and fate.born == 0
        if is_new and not self.went_back:
            self.violations.append("1 an accepted message was dropped")
        self.change(effect.stamp, state="settled")

    def _ended(self, call: OwnerCall, effect: Effect, now: int) -> None:
        copy = next(copy for copy in call.copies if copy.id == effect.id)
        if copy.claim != effect.claim:
            self.violations.append(f"7 {call.verb} of an old claim ended a newer one")
        fate = self.fates[effect.stamp]
        if call.verb in ("settle", "settle_once"):
            if call.verb == "settle" and fate is not None and not fate.confirmed:
                self.violations.append("1 settled without a confirm")
            self._delivered(effect.id, now)
            self.change(effect.stamp, state="settled")
            pacing.note_delivered(self, effect.id, fate)
        elif call.verb in ("retry", "bury") and call.maybe:
            self.change(effect.stamp, unknown=True)
        if call.verb == "bury":
            self.change(effect.stamp, first=-1)

    # the broker

    def publishes(self, copy: Copy, clock: int, *, spans: bool) -> None:
        """spans: the copy's session began before a roll-back."""
        fate = self.fates[copy.stamp]
        is_current = fate is not None and copy.generation == fate.generation
        state = "forgotten" if fate is None else fate.state
        if not copy.allowed:
            why = "6 published without the store's word"
            if spans:
                pass
            elif state in ("cancelled", "maybe"):
                why = "3 delivered after it was cancelled, and never fired"
            elif fate is not None and not is_current:
                why = "4 delivered for the old time after a reschedule"
            self.violations.append(why)
        elif spans or (fate is not None and copy.generation < fate.born):
            pass
        elif state == "cancelled":
            self.violations.append("3 delivered after `cancelled`")
        elif fate is not None and state == "accepted" and not is_current and not fate.loose:
            self.violations.append("4 an old copy delivered after a plain `rescheduled`")
        if copy.score // 2 > clock:
            self.violations.append("2 early")

    def arrived(self, copy: Copy, faults: int, *, confirmed: bool) -> None:
        """faults: those so far that explain a duplicate."""
        fate = self.fates[copy.stamp]
        if fate is None:
            return
        if fate.delivered + 1 > 1 + faults:
            self.violations.append("5 a duplicate without a fault that explains it")
        delivered = min(fate.delivered + 1, MOST)
        self.change(copy.stamp, delivered=delivered, confirmed=fate.confirmed or confirmed)
