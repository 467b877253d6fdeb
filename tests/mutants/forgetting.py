"""Mutants of what is done about a database that is full, or has forgotten something."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

_OLDER = "tests/integration/test_older_ledger.py"
_REFUSES = "tests/integration/test_ledger_refuses.py"
_ENDED = f"{_OLDER}::test_what_ended_since_does_not_come_again[sqlite]"
_RULES = f"{_OLDER}::test_of_rules_and_definitions_what_redis_has_counts[sqlite]"
MUTANTS = [
    Mutant(
        "older ledger: nobody notices", "delaybridge/ledger/reconciling/older_ledger.py",
        "if told_ms >= known_ms:", "if True:",
        "what was delivered since a backup comes again",
        _ENDED,
    ),
    Mutant(
        "older ledger: noticed for ever", "delaybridge/ledger/reconciling/older_ledger.py",
        "if found.back_ms <= found.ended_ms:", "if not found.back_ms:",
        "what Redis loses long after is ended, not restored",
        _ENDED,
    ),
    Mutant(
        "older ledger: calls that were undone", "delaybridge/ledger/comparing/older_ledger.py",
        "where is not Presence.HERE and", "where is Presence.ABSENT and",
        "what was cancelled since a backup is delivered ten minutes later",
        _ENDED,
    ),
    Mutant(
        "older ledger: no namespace", "delaybridge/ledger/reconciling/older_ledger.py",
        "if known is not None:", "if False:",
        "a backup from before the namespace is told of again and again",
        _ENDED,
    ),
    Mutant(
        "older ledger: promoted all the same", "delaybridge/ledger/reconciling/promoting.py",
        "if not await self._older.may_restore(session):", "if False:",
        "what was cold in a backup, and delivered since, comes again",
        f"{_OLDER}::test_cold_messages_that_were_brought_and_left_since_are_not_brought_again[sqlite]",
    ),
    Mutant(
        "older ledger: told once", "delaybridge/ledger/reconciling/reconciling.py",
        " or self.silence.reason:", ":",
        "what a replica lacked that took over stays live, and comes again",
        f"{_OLDER}::test_what_it_was_told_last_is_told_again_after_a_silence[sqlite]",
    ),
    Mutant(
        "older ledger: removed rules", "delaybridge/ledger/comparing/reinstating.py",
        "    new |= removed\n", "",
        "a pause that was ended since a backup is there again",
        _RULES,
    ),
    Mutant(
        "older ledger: rules are not compared", "delaybridge/ledger/comparing/older_ledger.py",
        'plain("HDEL", keys.controls(namespace), "healed")',
        'plain("HLEN", keys.controls(namespace))',
        "the ledger has yesterday's pauses, and no later ones, when Redis is wiped",
        _RULES,
    ),
    Mutant(
        "silence: ended by the first write", "delaybridge/ledger/reconciling/reconciling.py",
        "                await self._tell_all()\n                self.silence.ends(began_s)\n",
        "                self.silence.ends(began_s + 9)\n                await self._tell_all()\n",
        "while a disk is full, the log says each second that the ledger answers",
        f"{_OLDER}::test_a_ledger_that_takes_some_and_refuses_the_rest_does_not_answer[postgres]",
    ),
    Mutant(
        "silence: ended beside a refusal", "delaybridge/ledger/reconciling/silence.py",
        " and self.last_s < since_s - _CALM_S", "",
        "the log says that the ledger answers while another task of the worker is refused",
        "tests/unit/test_silence.py",
    ),
    Mutant(
        "engines: a savepoint that is gone", "delaybridge/ledger/sql/engines.py",
        "    except IntegrityError:\n        savepoint.rollback()",
        "    except Exception:\n        savepoint.rollback()",
        "a full disk is told as a missing savepoint",
        f"{_REFUSES} -k reason",
    ),
    Mutant(
        "engines: a full disk is in doubt", "delaybridge/ledger/sql/engines.py",
        '"") == "SQLITE_FULL"', '"") == "no"',
        "whose message was refused is told that it may have been accepted",
        f"{_REFUSES} -k doubt",
    ),
    Mutant(
        "engines: a file that has no name any more", "delaybridge/ledger/sql/engines.py",
        'if record.info["file"] != _identity(file):', "if False:",
        "after a restore, messages are committed to a file that is deleted",
        f"{_REFUSES} -k restored",
    ),
    Mutant(
        "older ledger: a promoter that was behind", "delaybridge/ledger/comparing/older_ledger.py",
        "until_ms=past.promoted_ms", "until_ms=past.back_ms",
        "cold messages that were never brought into Redis are ended",
        f"{_OLDER}::test_cold_messages_that_were_brought_and_left_since_are_not_brought_again",
    ),
]  # fmt: skip
