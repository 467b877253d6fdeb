"""All mutants, room by room."""

from __future__ import annotations

from tests.mutants import (
    clients,
    controls,
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
    *controls.MUTANTS,
    *entrances.MUTANTS,
    *ingest.MUTANTS,
    *lost.MUTANTS,
    *outside.MUTANTS,
    *publishing.MUTANTS,
    *scanning.MUTANTS,
    *sharing.MUTANTS,
    *storing.MUTANTS,
]
