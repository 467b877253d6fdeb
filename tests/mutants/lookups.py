"""Mutants of what the ledger is asked: rows that are looked up, counted, and written at once."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

_LOOKUPS = "tests/integration/test_ledger_lookups.py"
_TOTALS = "tests/integration/test_cold_totals.py"
MUTANTS = [
    Mutant(
        "lookups: SQLite reads the namespace", "delaybridge/ledger/sql/records.py",
        ' AND likely(tier > {FINISHED})"', '"',
        "each call takes the longer, the more messages there are",
        f"{_LOOKUPS} -k sqlite",
    ),
    Mutant(
        "lookups: nobody else has called", "delaybridge/ledger/sql/cold.py",
        "return bool(live == own == len(names))", "return True",
        "two calls for one id are both accepted, since both messages are cold",
        "tests/integration/test_cold_stories.py -k sqlite",
    ),
    Mutant(
        "lookups: a quote ends an id", "delaybridge/ledger/sql/arrays.py",
        '.replace(\'"\', \'\\\\"\')', "",
        "a message whose id has a quote is not stored",
        "tests/unit/test_ledger_arrays.py",
    ),
    Mutant(
        "totals: for ever", "delaybridge/ledger/sql/counts.py",
        "counted.c.until_ms > _now_ms()", "counted.c.until_ms != 0",
        "stats counts what there was when a worker last looked, however long ago",
        f"{_TOTALS} -k old_total",
    ),
    Mutant(
        "totals: later is all", "delaybridge/ledger/recording/cold_reads.py",
        "max(0, totals[span.bucket] - (number or 0))", "totals[span.bucket]",
        "the horizon counts what falls due soon twice",
        f"{_TOTALS} -k good",
    ),
    Mutant(
        "totals: nobody keeps them", "delaybridge/ledger/sql/counts.py",
        "        if took_s > SLOW_S:\n", "        if False:\n",
        "each command line counts millions again",
        f"{_TOTALS} -k worker",
    ),
]  # fmt: skip
