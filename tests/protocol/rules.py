"""The rules of the bucket protocol. One taken out is a mutant, which must violate something."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Rules:
    """What the scripts and the owner of a bucket do; the defaults are the protocol."""

    # fire
    fired_pair: bool = True  # fired = (score, claim): a later claim is not fired by an earlier fire
    fired_replaced: bool = True  # the first fire of a session replaces the pair
    fired_holds: bool = True  # within a session a fire executed late does not lower the pair
    rising: bool = True  # the owner sends no watermark below the one before in its session
    fraction: bool = True  # the watermark is the highest score, priority fraction included
    batch: bool = (
        True  # the owner publishes the copies that it had when it sent the fire, no others
    )
    exits_first: bool = True  # a copy that is not published is parked before a fire covers it

    # revocations
    revokes: str = "turn"  # which copies a revocation ends: turn | score | id
    acknowledges: str = "turn"  # which revocations a fire removes: turn | score | id | reported
    complete: bool = (
        True  # acknowledged only by an owner that has every claim made before the reply
    )

    # sessions
    new_token: bool = True  # each taking of the lease gives a new token; else the worker's name
    never_created: bool = True  # a renewal never takes a free lease
    drops: bool = True  # when the lease is lost the owner's copies go
    reclaims_old: bool = True  # reclaim moves only claims made before the lease
    reclaims_all: bool = True  # nothing is claimed before reclaim has answered that none is left
    retakes: bool = True  # an owner that another node answers gives its session up

    # a key that vanished
    compares: bool = True  # the owner counts its bucket, and mends what is in no set
    ends_first: bool = True  # the session that finds it ends; the next one mends, and then claims
    mends_first: bool = True  # nothing is mended once the session has claimed something
    revokes_orphans: bool = True  # a change of a message in no set writes a revocation
    maybe_fired: bool = True  # such a message up to the watermark may have been delivered

    # claims
    have: bool = (
        True  # claim names the last claim received; after a lost answer the batch comes again
    )
    forgotten: bool = True  # claim and fire fail if the store does not know the last claim received
    ends: str = "claim"  # which claim settle, retry, bury and park end: claim | score | id

    # clients
    stamps: bool = True  # a call sent again changes nothing
    own_stamps: bool = True  # each message of a call has a stamp of its own
    maybe: bool = True  # reschedule says when an earlier copy may have been delivered
    waits: bool = True  # a fired message is not pending: who schedules its id waits, then is asked

    # the window of delivered ids
    notes_delivered: bool = True  # what is settled or finished is noted
    marks_window: bool = True  # who takes the lease says for how long
    keeps_longer: bool = True  # a shorter window does not end a longer one
    expires: bool = True  # a note counts until its window ends
    replaces: bool = True  # a call that replaces is not bound by it
    only_read: bool = True  # a touch replaces only the message that it has read
    same_due: bool = True  # nor one that was moved since then
    pending_first: bool = True  # what is pending again is answered as any that is pending
    of_claims: bool = True  # a settle notes only what its claims held

    # debounce and throttle
    bounded: bool = True  # who postpones keeps the end that the first call has set
    spaced: bool = True  # a throttle notes when its next message may be due
    begun: bool = True  # a gathered message that was created leaves a note of its call

    # consumers of pull topics
    receipts: bool = True  # finish, extend and release change only what was given last under them
    voids: bool = True  # a reschedule makes the receipt void
    holds: bool = True  # what is given is due again at the end of its time to run, not before
    offered: bool = True  # only what is set aside under the score of its entry is given
    counts: bool = True  # what was given may have been delivered
    takes_over: bool = True  # what a consumer has is not pending: a schedule takes its place
    owes: bool = True  # who was told that the message is pending gets it: the last receipt is void

    # sleeping owners
    wakes: bool = True  # a message due before the owner looks again wakes it
    promises: bool = True  # claim stores when the owner looks again
    renewal_counts: bool = True  # a renewal tells of a claim that the owner has not received
    renewal_tells: bool = True  # a renewal answers with the next due time
