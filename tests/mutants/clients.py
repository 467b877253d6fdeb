"""Mutants of clients with a ledger: what they are told, whatever ends in between."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

MUTANTS = [
    Mutant(
        "cancel: the row of a refused call",
        "lua/cancel.lua",
        "known % 1 * 256 ~= REPLACED",
        "known % 1 * 256 == CANCELLED",
        "two are told that they cancelled one message",
        "tests/integration/test_cold_stories.py -k sqlite",
    ),
    Mutant(
        "schedule: a refusal is noted if a worker has held the bucket",
        "lua/schedule.lua",
        "source == '' and ARGV[8] == '1'",
        "redis.call('HEXISTS', KEYS[8], 'generation') == 1",
        "two are told that they cancelled one message",
        "tests/integration/test_cold_stories.py -k sqlite",
    ),
    Mutant(
        "cancel: the last of several cold rows",
        "delaybridge/store/absent.py",
        "key=lambda row: (row.tier, -row.number)",
        "key=lambda row: row.tier",
        "a message stays that somebody was told is cancelled",
        "tests/integration/test_cold_stories.py -k sqlite",
    ),
    Mutant(
        "tiers: the lowest number was first",
        "delaybridge/ledger/cold.py",
        "return -row.tier",
        "return 0",
        "a message is accepted while another one of its id is cold",
        "tests/integration/test_cold_stories.py -k sqlite",
    ),
    Mutant(
        "cancel: a row that has ended since",
        "delaybridge/store/effects.py",
        "now_ms, error=error) < len(calls):",
        "now_ms, error=error) < 0:",
        "somebody is told that a message is cancelled which was delivered",
        "tests/integration/test_cold_stories.py -k sqlite",
    ),
    Mutant(
        "cancel: the same call again ends all rows",
        "delaybridge/store/recording.py",
        "if stamp else self._stamps.get(i)",
        "if stamp else None",
        "a message that is accepted meanwhile is cancelled in the ledger",
        "tests/integration/test_cold_stories.py -k sqlite",
    ),
    Mutant(
        "restore: a call that has replaced another",
        "lua/restore.lua",
        "known % 1 * 256 ~= REPLACED",
        "true",
        "a message that Redis has lost comes ten minutes late, because it replaced another",
        "tests/integration/test_wiped_calls.py -k sqlite",
    ),
    Mutant(
        "ledger: a wiped namespace stays away",
        "delaybridge/store/tiering.py",
        "if record is None and (known",
        "if False and (known",
        "a reschedule fails until somebody else makes the namespace again",
        "tests/integration/test_wiped_calls.py -k sqlite",
    ),
    Mutant(
        "ledger: a reschedule, wiped in between",
        "delaybridge/store/absent.py",
        "            if not is_there or self._answers[i] is not Answer.UNKNOWN:\n",
        "            if True:\n",
        "a message that the ledger has is unknown",
        "tests/integration/test_wiped_calls.py -k sqlite",
    ),
    Mutant(
        "ledger: an error after Redis has done it",
        "delaybridge/store/recording.py",
        "has stored less than the ledger\n                self.answers[i] = in_doubt(exc)\n",
        "has stored less than the ledger\n                self.answers[i] = exc\n",
        "a caller is told that nothing was written, and the message is cancelled",
        "tests/integration/test_wiped_calls.py -k sqlite",
    ),
    Mutant(
        "ledger: a damaged bucket",
        "delaybridge/store/recording.py",
        "self.answers[i] = in_doubt(answer)",
        "pass",
        "a caller takes a message for refused that is delivered later",
        "tests/integration/test_wiped_calls.py -k sqlite",
    ),
    Mutant(
        "ledger: closed between two steps of a call",
        "delaybridge/ledger/database.py",
        "            self._threads = None\n            self._engine",
        "            self._engine",
        "a call fails whose message is delivered nevertheless",
        "tests/integration/test_client_closed.py",
    ),
]
