"""All mutants, room by room."""

from __future__ import annotations

from tests.mutants import (
    clients,
    controls,
    entrances,
    foreign,
    forgetting,
    front,
    in_memory,
    ingest,
    ledger_bucket,
    ledger_rows,
    ledger_steps,
    ledger_store,
    lookups,
    lost,
    outside,
    own_tables,
    publishing,
    scanning,
    sharing,
    storing,
)
from tests.mutants.mutant import Mutant

MUTANTS: list[Mutant] = [
    *clients.MUTANTS,
    *controls.MUTANTS,
    *entrances.MUTANTS,
    *foreign.MUTANTS,
    *forgetting.MUTANTS,
    *front.MUTANTS,
    *in_memory.MUTANTS,
    *ingest.MUTANTS,
    *ledger_bucket.MUTANTS,
    *ledger_rows.MUTANTS,
    *ledger_steps.MUTANTS,
    *ledger_store.MUTANTS,
    *lookups.MUTANTS,
    *lost.MUTANTS,
    *outside.MUTANTS,
    *own_tables.MUTANTS,
    *publishing.MUTANTS,
    *scanning.MUTANTS,
    *sharing.MUTANTS,
    *storing.MUTANTS,
]
