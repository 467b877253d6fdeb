"""The rules of the ledger's model."""

from __future__ import annotations

from typing import NamedTuple


class LedgerRules(NamedTuple):
    """What can be taken out, to see what it is for."""

    row_first: bool = True  # a row is committed before Redis is told
    answer_last: bool = True  # what Redis answered is committed before the caller has it
    gone: bool = True  # what leaves stays in `gone`
    generations: bool = True  # a restore is void once two seals have passed
    kept_longer: bool = True  # an entry outlives the seal by which the ledger had it
    verified: bool = True  # a session compares its bucket before it publishes
    server_checked: bool = True  # another server ends a session
    healed_named: bool = True  # a restore from before a comparison is void
    begun_named: bool = True  # a comparison that begins voids them, too
    each_named: bool = True  # each comparison has a name of its own
    confirmed: bool = True  # a cancel is answered only if no comparison has begun meanwhile
    row_checked: bool = True  # a cancel of a row alone counts if that was live at its commit
    remembered: bool = True  # a worker tells what it delivered before it rebuilds a bucket
    remembered_first: bool = True  # it does so before the comparison begins
    kept_until_told: bool = True  # it remembers until the ledger has it
    standing_checked: bool = True  # what was read of `gone` counts if Redis has not forgotten it
    told_by_server: bool = True  # nor does what another server says of `gone`: it may be older
    others_tell: bool = True  # a worker tells also what it delivered of buckets that it lost
    others_awaited: bool = True  # if the ledger was silent, nothing is rebuilt before they did
