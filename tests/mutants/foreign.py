"""Mutants of what is read from other systems."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

_CELERY, _JOBS = "delaybridge/foreign/celery.py", "delaybridge/foreign/bullmq.py"
_OF_CELERY = "tests/integration/test_foreign_celery.py"

MUTANTS = [
    Mutant(
        "foreign: what was read is left to the end of the connection", _CELERY,
        "channel.basic_recover(requeue=True)", "channel.close()",
        "twenty dry runs, and a quorum queue drops all its messages",
        f"{_OF_CELERY} -k quorum",
    ),
    Mutant(
        "foreign: a list does not shrink", _CELERY,
        "                    self.gone[key] += 1\n", "",
        "tasks behind those that are removed are never imported",
        f"{_OF_CELERY} -k shrinks",
    ),
    Mutant(
        "foreign: the youngest of equal envelopes", _CELERY,
        "pipeline.lrem(key, -1, raw)", "pipeline.ltrim(key, 0, -2)",
        "an entry that cannot be imported is removed instead",
        f"{_OF_CELERY} -k shrinks",
    ),
    Mutant(
        "foreign: the tasks of all queues", _CELERY,
        "if self.queues and queue not in self.queues:", "if False:",
        "tasks are taken from the workers of another application",
        f"{_OF_CELERY} -k bad_envelopes",
    ),
    Mutant(
        "foreign: read until it is dropped", _CELERY,
        "_MOST_DELIVERIES = 10", "_MOST_DELIVERIES = 100",
        "the import that is killed once more loses the messages",
        f"{_OF_CELERY} -k dropped",
    ),
    Mutant(
        "foreign: bits of the order", _JOBS,
        "score // 2**_BITS", "score",
        "jobs of BullMQ are due in the year 58,000",
        "tests/integration/test_foreign.py -k second_import",
    ),
    Mutant(
        "foreign: a child is carried", _JOBS,
        "if parent is not None:", "if False:",
        "a flow of BullMQ waits for ever",
        "tests/integration/test_foreign.py -k bad_entries",
    ),
    Mutant(
        "foreign: an entry without an id", "delaybridge/foreign/source.py",
        "if not isinstance(id, str) or not isinstance(name, str):", "if not isinstance(name, str):",
        "a second import stores it once more",
        f"{_OF_CELERY} -k bad_envelopes",
    ),
]  # fmt: skip
