"""Mistakes in what a worker tells the ledger, and when it compares a bucket with it."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

MUTANTS = [
    Mutant(
        "young: a call under way is missing", "delaybridge/ledger/reconciling/reconciling.py",
        "_YOUNG_MS = 30_000", "_YOUNG_MS = 0",
        "a message whose call is under way is told as lost by Redis",
        "tests/integration/test_ledger_steps.py::"
        "test_rows_of_calls_that_may_be_under_way_are_not_missing",
    ),
    Mutant(
        "verify: in doubt, and claimed", "delaybridge/ledger/reconciling/reconciling.py",
        "is_sure = session.bucket.number not in self.doubt and not session.was_mended",
        "is_sure = not session.was_mended",
        "what was cancelled is published after an older past of the same run",
        "tests/integration/test_ledger_steps.py::"
        "test_a_bucket_is_compared_if_it_may_be_of_the_past",
    ),
    Mutant(
        "verify: mended, and claimed", "delaybridge/ledger/reconciling/reconciling.py",
        "is_sure = session.bucket.number not in self.doubt and not session.was_mended",
        "is_sure = session.bucket.number not in self.doubt",
        "a bucket whose keys were deleted is not compared",
        "tests/integration/test_ledger_steps.py::"
        "test_a_bucket_is_compared_if_it_may_be_of_the_past",
    ),
    Mutant(
        "verify: what left is told later", "delaybridge/ledger/reconciling/reconciling.py",
        "if sealed is None or not await self._tell_sealed(session, sealed):", "if sealed is None:",
        "what left before a comparison counts as missing",
        "tests/integration/test_ledger_steps.py::"
        "test_what_left_before_a_comparison_is_told_before_it",
    ),
    Mutant(
        "verify: what left is gone, and nobody cares",
        "delaybridge/ledger/reconciling/reconciling.py",
        "return False\n            if found:", "return True\n            if found:",
        "a wipe between two calls of a comparison ends the scanner",
        "tests/integration/test_ledger_steps.py::"
        "test_a_wipe_before_what_left_is_read_ends_only_the_session",
    ),
    Mutant(
        "verify: a comparison without a name", "delaybridge/ledger/reconciling/reconciling.py",
        'healed=f"?{session.token}")', 'healed="")',
        "a restore from before a comparison brings back what was cancelled",
        "tests/integration/test_ledger_steps.py::"
        "test_what_left_before_a_comparison_is_told_before_it",
    ),
    Mutant(
        "verify: refused at its end, and claimed", "delaybridge/ledger/reconciling/reconciling.py",
        "        if await self._store.run_one(done) is None or not session.alive:\n",
        "        await self._store.run_one(done)\n        if not session.alive:\n",
        "a bucket that another worker has is claimed",
        "tests/integration/test_ledger_steps.py::"
        "test_a_session_whose_bucket_was_taken_meanwhile_does_not_claim",
    ),
    Mutant(
        "verify: the doubt ends too early", "delaybridge/ledger/reconciling/reconciling.py",
        "        await self._tell_what_it_forgot(session)\n        while",
        "        self.doubt.discard(session.bucket.number)\n"
        "        await self._tell_what_it_forgot(session)\n        while",
        "a bucket whose comparison failed is claimed by the next session",
        "tests/integration/test_ledger_steps.py::"
        "test_a_bucket_stays_in_doubt_until_a_comparison_has_ended",
    ),
    Mutant(
        "tell: the first page alone", "delaybridge/ledger/reconciling/reconciling.py",
        "            if len(found) < _PAGE:\n", "            if found:\n",
        "of many messages that left at once most stay live in the ledger",
        "tests/integration/test_ledger_steps.py::test_all_that_left_is_told_once",
    ),
    Mutant(
        "tell: pages overlap", "delaybridge/ledger/reconciling/reconciling.py",
        "            first += len(found)\n", "            first += 1\n",
        "what left is in the history twice",
        "tests/integration/test_ledger_steps.py::test_all_that_left_is_told_once",
    ),
    Mutant(
        "tell: told twice", "delaybridge/ledger/reconciling/reconciling.py",
        "may_be_told = known < 0 or session in self._in_doubt",
        "may_be_told = known < 0",
        "after a call without an answer the history has each delivery twice",
        "tests/integration/test_ledger_steps.py::test_all_that_left_is_told_once",
    ),
    Mutant(
        "tell: told by an earlier session", "delaybridge/ledger/reconciling/reconciling.py",
        "may_be_told = known < 0 or session in self._in_doubt",
        "may_be_told = session in self._in_doubt",
        "what an earlier session told is in the history twice",
        "tests/integration/test_ledger_steps.py::test_all_that_left_is_told_once",
    ),
    Mutant(
        "tell: an exit while it is asked", "delaybridge/ledger/reconciling/reconciling.py",
        "        about, answer = await self._store.run([info, seal])\n",
        "        about, answer = await self._store.run([info, seal])\n"
        "        self._exits.discard(session)\n",
        "what leaves while the bucket is sealed is not told until something else leaves",
        "tests/integration/test_ledger_steps.py::"
        "test_a_bucket_of_which_all_is_told_is_not_asked_again",
    ),
    Mutant(
        "tell: what left since is forgotten", "delaybridge/ledger/reconciling/reconciling.py",
        "self._happened.forget(number, last)", "self._happened.forget(number, 2**60)",
        "what left while the ledger was told comes again after a wipe",
        "tests/integration/test_ledger_steps.py::"
        "test_what_leaves_while_the_ledger_is_told_is_remembered",
    ),
    Mutant(
        "tell: forgotten before it is told", "delaybridge/ledger/reconciling/reconciling.py",
        "        self._in_doubt.add(session)\n",
        "        self._in_doubt.add(session)\n        self._happened.forget(number, last)\n",
        "what was delivered while the database is down comes again after a wipe",
        "tests/integration/test_ledger_steps.py::"
        "test_what_leaves_while_the_ledger_is_told_is_remembered",
    ),
    Mutant(
        "tell: a commit for each bucket", "delaybridge/ledger/reconciling/leaving.py",
        "if self._writing is None or", "if True or",
        "a worker commits once a second for each of its buckets, and messages are late beside it",
        "tests/unit/test_leaving.py",
    ),
    Mutant(
        "tell: all that waits", "delaybridge/ledger/reconciling/leaving.py",
        ") >= _MOST:", ") < 0:",
        "after a backlog one transaction is as long as all that left",
        "tests/unit/test_leaving.py",
    ),
    Mutant(
        "tell: a bucket that the ledger refuses", "delaybridge/ledger/reconciling/leaving.py",
        "except LedgerRefused:", "except ZeroDivisionError:",
        "what the ledger refuses of one bucket keeps what left all others from it",
        "tests/unit/test_leaving.py",
    ),
    Mutant(
        "tell: others have no time", "delaybridge/ledger/reconciling/reconciling.py",
        "        await asyncio.sleep(max(0.0, others_s - time.monotonic()))\n", "",
        "what another worker delivered is rebuilt before it can say so",
        "tests/integration/test_ledger_steps.py::"
        "test_others_have_time_to_tell_once_the_ledger_answers",
    ),
    Mutant(
        "tell: buckets of others", "delaybridge/ledger/reconciling/reconciling.py",
        "        await self._tell_of_others()\n", "",
        "what a worker delivered of a bucket that it lost is not told",
        "tests/integration/test_ledger_steps.py::"
        "test_what_was_delivered_of_buckets_of_others_is_told",
    ),
    Mutant(
        "reconcile: a bucket that waits", "delaybridge/ledger/reconciling/reconciling.py",
        "if session.alive and session.ready]", "if session.alive]",
        "cold messages go into a bucket before it is compared",
        "tests/integration/test_ledger_steps.py::"
        "test_only_buckets_that_may_be_claimed_are_compared_and_only_sound_ones",
    ),
    Mutant(
        "reconcile: keys that contradict one another",
        "delaybridge/ledger/reconciling/reconciling.py",
        "if await session.holder.is_sound(session):", "if True:",
        "a bucket that lost a key is mended by half",
        "tests/integration/test_ledger_steps.py::"
        "test_only_buckets_that_may_be_claimed_are_compared_and_only_sound_ones",
    ),
    Mutant(
        "reconcile: what differs stays so", "delaybridge/ledger/reconciling/reconciling.py",
        "differed=self.drift.differing(bucket.number)", "differed=frozenset()",
        "a row says another due time than Redis does for ever",
        "tests/integration/test_ledger_steps.py::"
        "test_a_row_that_differs_is_mended_if_it_did_so_before",
    ),
    Mutant(
        "silence: Redis' errors", "delaybridge/ledger/reconciling/silence.py",
        "if isinstance(error, LedgerUnavailable | ConfigError):", "if True:",
        "the log says that the ledger is silent when Redis is",
        "tests/unit/test_happened.py",
    ),
    Mutant(
        "silence: once a second", "delaybridge/ledger/reconciling/silence.py",
        "            if not self.reason:\n", "            if True:\n",
        "the log repeats itself as long as the database is away",
        "tests/unit/test_happened.py",
    ),
    Mutant(
        "happened: the first page alone", "delaybridge/ledger/reconciling/happened.py",
        "range(0, max(1, len(found)), _PAGE)", "range(0, 1)",
        "of many messages delivered in an outage most come again after a wipe",
        "tests/unit/test_happened.py",
    ),
    Mutant(
        "happened: history is lost", "delaybridge/ledger/reconciling/happened.py",
        "                    self.steps[:0], self.dead[:0] = page\n", "",
        "what was buried while the database is away is not dead after a wipe",
        "tests/unit/test_happened.py",
    ),
    Mutant(
        "happened: a burial of any call", "delaybridge/ledger/reconciling/happened.py",
        "[each.name for each in some]", "[each.name[:2] for each in some]",
        "what was scheduled again after it was given up is brought into the dead set, and is lost",
        "tests/integration/test_ledger_steps.py::"
        "test_a_burial_that_is_told_late_is_not_of_a_later_call",
    ),
    Mutant(
        "happened: all history at once", "delaybridge/ledger/reconciling/happened.py",
        "page = self.steps[:_PAGE_STEPS], self.dead[:_PAGE_STEPS]",
        "page = self.steps[:], self.dead[:]",
        "history of a long outage is never told, and after a wipe no bucket is rebuilt",
        "tests/unit/test_happened.py",
    ),
    Mutant(
        "happened: history that another tells is told",
        "delaybridge/ledger/reconciling/happened.py",
        "        async with self._telling:\n", "        if True:\n",
        "a bucket is rebuilt before the ledger knows what is dead, which comes again",
        "tests/unit/test_happened.py",
    ),
    Mutant(
        "waiting: each bucket asks a silent database", "delaybridge/ledger/reconciling/attempts.py",
        "if self._under_way is None:", "if True:",
        "buckets wait one after another for a database that answers nothing, and are not counted",
        "tests/unit/test_attempts.py",
    ),
    Mutant(
        "waiting: a silent database is asked at once", "delaybridge/ledger/reconciling/attempts.py",
        "< self._failed_s + _CALM_S", "< self._failed_s",
        "while a database is away, each bucket asks it again and again",
        "tests/unit/test_attempts.py",
    ),
    Mutant(
        "waiting: buckets wait uncounted", "delaybridge/ledger/reconciling/agreeing.py",
        "        self._reconciling.waiting.begins(session)\n", "",
        "health says nothing while a database that answers nothing holds up all buckets",
        "tests/integration/test_ledger_outage.py::test_all_buckets_wait_for_one_answer",
    ),
    Mutant(
        "tell: a bucket that Redis refuses", "delaybridge/ledger/reconciling/reconciling.py",
        "map(self._tell_of, some)", "map(self._tell, some)",
        "a wrong key in one bucket keeps what left all others from the ledger",
        "tests/unit/test_reconciling.py",
    ),
    Mutant(
        "drift: of buckets that another holds", "delaybridge/ledger/reconciling/drift.py",
        "            del self[bucket]\n", "            pass\n",
        "health tells for good of what differed in buckets that a worker gave away",
        "tests/unit/test_reconciling.py",
    ),
    Mutant(
        "past: one taken bucket goes back", "delaybridge/worker/history_check.py",
        "now.turn <= before.turn:\n            self.doubt.add(bucket)\n",
        "now.turn <= before.turn:\n",
        "a bucket that went back while it was taken is not compared",
        "tests/unit/test_past.py",
    ),
    Mutant(
        "past: in the same session", "delaybridge/worker/history_check.py",
        "        if before.fell_to(now):\n            self.doubt.add(bucket)\n",
        "        if before.fell_to(now):\n",
        "a bucket that went back while it was held is not compared",
        "tests/unit/test_past.py",
    ),
    Mutant(
        "past: an answer that is late", "delaybridge/worker/history_check.py",
        "if session is not None and session.alive:", "if session is not None:",
        "an answer about a session that has ended is an alarm",
        "tests/unit/test_past.py",
    ),
    Mutant(
        "promoting: no window is all", "delaybridge/ledger/reconciling/promoting.py",
        "or _NEVER_MS", "or 0",
        "with hot_window_s = 0 cold messages come late",
        "tests/unit/test_promoting.py",
    ),
    Mutant(
        "promoting: a bucket that was just taken", "delaybridge/ledger/reconciling/promoting.py",
        "self._looked_s.get(each, -inf)", "self._looked_s.get(each, now_s)",
        "a bucket that changes its worker often is never looked at",
        "tests/unit/test_promoting.py",
    ),
    Mutant(
        "promoting: one bucket of two", "delaybridge/ledger/reconciling/promoting.py",
        "self._pages = pages | dict.fromkeys(new, Promoted())",
        "self._pages = pages | dict.fromkeys(new[:2], Promoted())",
        "of many buckets two are promoted",
        "tests/unit/test_promoting.py",
    ),
    Mutant(
        "promoting: bucket by bucket", "delaybridge/ledger/reconciling/promoting.py",
        "key=lambda each: self._pages[each].after or ()", "key=lambda each: each.bucket.number",
        "what is due soon in one bucket waits for what is due late in another",
        "tests/unit/test_promoting.py",
    ),
    Mutant(
        "promoting: no rest", "delaybridge/ledger/reconciling/promoting.py",
        "if all(page.ahead_ms >= soon_ms for page in found):", "if not found:",
        "messages that are due now are late beside a promotion",
        "tests/unit/test_promoting.py",
    ),
    Mutant(
        "promoting: a rest in any case", "delaybridge/ledger/reconciling/promoting.py",
        "if all(page.ahead_ms >= soon_ms for page in found):", "if True:",
        "a promoter that is behind rests, and messages are late",
        "tests/unit/test_promoting.py",
    ),
    Mutant(
        "agreeing: one change while another is recorded",
        "delaybridge/ledger/reconciling/agreeing.py",
        "if self._unrecorded.get(each.key) == each:", "if True:",
        "a change during a commit is remembered by nobody",
        "tests/unit/test_agreeing.py",
    ),
    Mutant(
        "agreeing: an older reading", "delaybridge/ledger/reconciling/agreeing.py",
        "for e in found if e.wins(self._unrecorded.get(e.key))}", "for e in found}",
        "an older change from a Redis that went back hides the later one",
        "tests/unit/test_agreeing.py",
    ),
    Mutant(
        "agreeing: recorded before it is", "delaybridge/ledger/reconciling/agreeing.py",
        "        known = await self._record_known()\n        await self._store.run(",
        "        known = [*self._unrecorded.values()]\n        await self._store.run(",
        "a change that the database refused is not recorded",
        "tests/unit/test_agreeing.py",
    ),
]  # fmt: skip
