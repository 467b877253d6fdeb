"""All mutants, room by room."""

from __future__ import annotations

from tests.mutants import (
    clients,
    entrances,
    ingest,
    lost,
    outside,
    publishing,
    scanning,
    sharing,
    storing,
)
from tests.mutants.mutant import Mutant

MUTANTS: list[Mutant] = [
    *clients.MUTANTS,
    *entrances.MUTANTS,
    *ingest.MUTANTS,
    *storing.MUTANTS,
    *scanning.MUTANTS,
    *publishing.MUTANTS,
    *outside.MUTANTS,
    *sharing.MUTANTS,
    *lost.MUTANTS,
]
