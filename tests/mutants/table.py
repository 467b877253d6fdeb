"""All mutants, room by room."""

from __future__ import annotations

from tests.mutants import entrances, ingest, outside, publishing, scanning, sharing, storing
from tests.mutants.mutant import Mutant

MUTANTS: list[Mutant] = [
    *entrances.MUTANTS,
    *ingest.MUTANTS,
    *storing.MUTANTS,
    *scanning.MUTANTS,
    *publishing.MUTANTS,
    *outside.MUTANTS,
    *sharing.MUTANTS,
]
