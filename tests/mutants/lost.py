"""Mutants of what verbs and workers do about messages and keys that Redis lost, with a ledger."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

_BY_RECORD = (
    "tests/integration/test_verbs_by_record.py"
    "::test_each_verb_answers_by_the_record_and_a_wipe_undoes_none"
)
_DELIVERED = "tests/integration/test_ledger_delivered.py"
_TEXTS = "tests/integration/test_ledger_texts.py"
_LOST_KEYS = "tests/integration/test_lost_keys_ledger.py"
MUTANTS = [
    Mutant(
        "lost: a dry run sees Redis alone", "delaybridge/ledger/recording/cold_reads.py",
        "if answers[i] is None and is_foreseen(self.commands[i])]", "if False]",
        "a dry run says `unknown` of what the real one cancels",
        "tests/integration/test_verbs_absent.py -k dry_run",
    ),
    Mutant(
        "lost: a damaged bucket ends the walk", "delaybridge/ledger/comparing/lost.py",
        "(answer,) = yield Each([command])", "(answer,) = yield [command]",
        "with a ledger one damaged bucket stops a purge of all others",
        "tests/integration/test_verbs_absent.py -k damaged",
    ),
    Mutant(
        "told: a destination as it is", "delaybridge/ledger/recording/ledger_rows.py",
        "return printable(destination_text(payload))", "return destination_text(payload)",
        "one message that was refused stops ingest while the ledger is PostgreSQL",
        f"{_TEXTS} -k routing_key",
    ),
    Mutant(
        "recording: one refused row refuses all", "delaybridge/ledger/recording/recording.py",
        "            for i in places:\n                yield from self._commit_row(i)\n",
        "            self._refuse(exc)\n",
        "a value that the database does not take refuses what is sent with it",
        f"{_TEXTS} -k others_go_on",
    ),
    Mutant(
        "lost: bulk verbs see Redis alone", "delaybridge/store/messages/selection.py",
        "return [None] if is_any else []", "return []",
        "what Redis lost is delivered after a purge",
        f"{_BY_RECORD}[sqlite]",
    ),
    Mutant(
        "lost: replaced by nothing", "delaybridge/ledger/recording/tiering.py",
        "if is_known == 0]", "if False]",
        "a message that was replaced comes as well, since Redis had lost it",
        f"{_BY_RECORD}[sqlite]",
    ),
    Mutant(
        "lost: dead for good", "delaybridge/ledger/recording/absent.py",
        '_MOVED = ("reschedule", "kick", "discard")', '_MOVED = ("reschedule",)',
        "a dead message that Redis lost is dead again after it was kicked, or discarded",
        f"{_BY_RECORD}[sqlite]",
    ),
    Mutant(
        "agreement: an entry is a message", "delaybridge/ledger/comparing/agreement.py",
        "[each for each in calls if each.stamp]", "[*calls]",
        "health says that the ledger lacks messages whose rows are all there",
        f"{_LOST_KEYS}::test_an_entry_whose_record_is_gone_is_no_message_that_the_ledger_lacks",
    ),
    Mutant(
        "ledger: told by an older server", "delaybridge/ledger/reconciling/reconciling.py",
        "if sealed is None or (session.server or run) != run:", "if sealed is None:",
        "what was delivered just before a fail-over is forgotten, and comes twice",
        f"{_DELIVERED}::test_what_an_older_server_has_not_seen_leave_is_told_at_once[sqlite]",
    ),
    Mutant(
        "ledger: told, whatever was forgotten", "delaybridge/ledger/reconciling/reconciling.py",
        "known, name = sealed.generation,", "known, name = self._known[session],",
        "a wipe while a bucket is compared ends the scanner",
        f"{_DELIVERED}::test_a_wipe_while_it_is_told_what_left_refuses_the_session[sqlite]",
    ),
    Mutant(
        "dedup: the last window counts", "lua/settle.lua",
        "'GT', ", "",
        "an id that was delivered comes again: a worker with a shorter window settled it, too",
        "tests/integration/test_dedup_window.py"
        "::test_a_shorter_window_does_not_end_a_longer_one[redis]",
    ),
    Mutant(
        "lost keys: mended is enough", "delaybridge/ledger/reconciling/reconciling.py",
        " and not session.was_mended", "",
        "what lost its record waits until its row is old enough for a round",
        f"{_LOST_KEYS} -k some",
    ),
    Mutant(
        "lost keys: a counter waits for an operator", "delaybridge/scan/leases/damaged_buckets.py",
        "if self._mender is not None and _is_counter(", "if False and _is_counter(",
        "with a ledger a bucket that lost its marks waits",
        f"{_LOST_KEYS} -k some",
    ),
    Mutant(
        "lost keys: claims of a lost counter", "delaybridge/scan/reclaiming.py",
        "if self._ledger is not None and each.session.counts.mirror:", "if False:",
        "what was in flight when the marks were lost stays in the mirror for good",
        f"{_LOST_KEYS} -k some",
    ),
    Mutant(
        "lost keys: what was reclaimed without a record", "delaybridge/scan/leases/session.py",
        " or self.counts.bare > 0", "",
        "what was in flight, and lost its record, waits until its row is old enough for a round",
        f"{_LOST_KEYS} -k some",
    ),
    Mutant(
        "lost keys: what was claimed without a record", "delaybridge/scan/mending.py",
        "if is_lacking or counts", "if counts",
        "what fell due, and had lost its record, waits until its row is old enough for a round",
        f"{_LOST_KEYS} -k buried",
    ),
]  # fmt: skip
