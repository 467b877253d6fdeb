"""Mistakes in what is in an application's own database or Redis: outbox and dedup."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

MUTANTS = [
    Mutant(
        "outbox: refused rows are tried again", "delaybridge/outbox/table.py",
        "= :namespace AND error IS NULL AND number > :after", "= :namespace AND number > :after",
        "a row that was refused is sent for ever",
        "tests/integration/test_outbox_rows.py::"
        "test_a_batch_has_the_rows_of_its_namespace_that_wait_up_to_the_newest[sqlite]",
    ),
    Mutant(
        "outbox: rows of any namespace", "delaybridge/outbox/table.py",
        "FROM delaybridge_outbox WHERE namespace = :namespace AND error IS NULL AND number > ",
        "FROM delaybridge_outbox WHERE :namespace <> '' AND error IS NULL AND number > ",
        "a pump moves rows into the wrong namespace",
        "tests/integration/test_outbox_rows.py::"
        "test_a_batch_has_the_rows_of_its_namespace_that_wait_up_to_the_newest[sqlite]",
    ),
    Mutant(
        "outbox: an earlier row that was refused", "delaybridge/outbox/table.py",
        'AND error IS NULL "\n    "AND number <= :up_to', '"\n    "AND number <= :up_to',
        "an id with a row that was refused waits for it for ever",
        "tests/integration/test_outbox_rows.py::"
        "test_a_batch_has_the_rows_of_its_namespace_that_wait_up_to_the_newest[sqlite]",
    ),
    Mutant(
        "outbox: a long reason", "delaybridge/outbox/database.py",
        "error[: table.ERROR_CHARS]", "error",
        "the database refuses a long reason, and the pump repeats its batch for ever",
        "tests/integration/test_outbox_rows.py::"
        "test_a_batch_has_the_rows_of_its_namespace_that_wait_up_to_the_newest[postgres]",
    ),
    Mutant(
        "outbox: no news", "delaybridge/outbox/rows.py",
        "    execute(connection, table.INSERT, _fitted(row, dialect))\n"
        "    if dialect == POSTGRESQL:\n"
        "        execute(connection, table.NOTIFY, {})\n",
        "    execute(connection, table.INSERT, _fitted(row, dialect))\n",
        "a message waits for the pump's next look",
        "tests/integration/test_outbox_rows.py::"
        "test_whoever_listens_hears_of_each_commit_and_of_those_before",
    ),
    Mutant(
        "outbox: news before it listened", "delaybridge/outbox/listener.py",
        "            self._on_news()  # of what was committed before\n", "",
        "what is committed while the listener connects waits",
        "tests/integration/test_outbox_rows.py::"
        "test_whoever_listens_hears_of_each_commit_and_of_those_before",
    ),
    Mutant(
        "outbox: a delay counts from the pump", "delaybridge/outbox/rows.py",
        'return now_ms + int(when[1:]) if when.startswith("+") else int(when)',
        'return int(when[1:]) if when.startswith("+") else int(when)',
        "a delay is a time in 1970",
        "tests/unit/test_outbox.py",
    ),
    Mutant(
        "outbox: a delay is cut short", "delaybridge/outbox/rows.py",
        "return -(-time.time_ns() // 1_000_000)", "return time.time_ns() // 1_000_000",
        "a message comes up to a millisecond early",
        "tests/unit/test_outbox.py",
    ),
    Mutant(
        "outbox: a lock that stays", "delaybridge/outbox/database.py",
        "                self._unlock(connection)\n", "                pass\n",
        "on MySQL a pump that ends leaves its lock in the pool",
        "tests/integration/test_outbox_rows.py::"
        "test_of_one_namespace_one_pump_has_a_batch_at_a_time[mariadb]",
    ),
    Mutant(
        "outbox: no lock", "delaybridge/outbox/database.py",
        "if lock is not None and not", "if lock is None and not",
        "two pumps move rows of one id at a time",
        "tests/integration/test_outbox_rows.py::"
        "test_of_one_namespace_one_pump_has_a_batch_at_a_time[postgres]",
    ),
    Mutant(
        "outbox: a batch that failed is done", "delaybridge/outbox/pump.py",
        "            moved.failure = moved.failure or exc\n", "            pass\n",
        "if Redis is silent nobody hears of it",
        "tests/integration/test_outbox.py::test_redis_is_away_for_a_while[sqlite]",
    ),
    Mutant(
        "outbox: a cancel that was late stays", "delaybridge/outbox/pump.py",
        "elif outcome == Answer.IN_FLIGHT and call.accepted is not None:",
        "elif outcome == Answer.IN_FLIGHT:",
        "a cancel that came too late holds up its id",
        "tests/integration/test_outbox_again.py::"
        "test_a_cancel_that_is_too_late_is_said_and_holds_up_nobody",
    ),
    Mutant(
        "outbox: the key is the id's", "delaybridge/outbox/pump.py",
        "named = [(call.id, call.key) for call in calls]",
        "named = [(call.id, None) for call in calls]",
        "a cancel with a key ends a message with another one",
        "tests/integration/test_outbox_again.py::test_a_cancel_with_a_key_is_of_no_other",
    ),
    Mutant(
        "dedup: the claim of another one is taken back", "delaybridge/dedup/claims.py",
        "if redis.call('GET', KEYS[1]) == ARGV[1] then", "if redis.call('GET', KEYS[1]) then",
        "a failed effect lets a third consumer in beside a second",
        "tests/integration/test_dedup.py::test_a_failed_effect_leaves_the_claim_of_another_one",
    ),
    Mutant(
        "dedup: done for as long as a claim", "delaybridge/dedup/claims.py",
        "self._ended(id, self._eval(_DONE_LUA, id, token, self._window_ms))",
        "self._ended(id, self._eval(_DONE_LUA, id, token, self._processing_ms))",
        "what was done an hour ago is done again",
        "tests/integration/test_dedup.py::test_the_second_delivery_is_told_apart",
    ),
    Mutant(
        "dedup: claimed for as long as done", "delaybridge/dedup/claims.py",
        "        reply = self._eval(_CLAIM_LUA, id, token, self._processing_ms)\n",
        "        reply = self._eval(_CLAIM_LUA, id, token, self._window_ms)\n",
        "the message of a consumer that died waits for a day",
        "tests/integration/test_dedup.py::test_while_another_one_works_on_it",
    ),
    Mutant(
        "dedup: an answer that was lost", "delaybridge/dedup/claims.py",
        "        if found == token:\n", "        if found == token and wait_ms == 0:\n",
        "a claim whose answer was lost waits for itself",
        "tests/integration/test_dedup.py::test_a_call_that_is_sent_again_knows_itself",
    ),
    Mutant(
        "dedup: only what is an Exception", "delaybridge/dedup/claims.py",
        "BaseException:\n            with suppress(StoreError):\n                await",
        "Exception:\n            with suppress(StoreError):\n                await",
        "an effect that is cancelled keeps its claim",
        "tests/integration/test_dedup.py::test_a_cancelled_effect_is_tried_again",
    ),
    Mutant(
        "dedup: marks of every consumer", "delaybridge/dedup/rows.py",
        "PRIMARY KEY (consumer, id)", "PRIMARY KEY (id)",
        "of two consumers only one processes a message",
        "tests/integration/test_dedup_sql.py::test_each_consumer_has_its_own_marks[sqlite]",
    ),
    Mutant(
        "dedup: the newest marks are deleted", "delaybridge/dedup/rows.py",
        "seen_at_ms < :before_ms ORDER", "seen_at_ms > :before_ms ORDER",
        "what was just done is done again",
        "tests/integration/test_dedup_sql.py::"
        "test_old_marks_are_deleted_a_batch_at_a_time[sqlite-open_driver]",
    ),
    Mutant(
        "dedup: marks in autocommit", "delaybridge/dedup/rows.py",
        "        if await commits_each_statement_async(connection):\n", "        if False:\n",
        "a mark stays though its effect fails",
        "tests/integration/test_dedup_sql.py::test_async_connections[postgres]",
    ),
    Mutant(
        "dedup: the first of two ids", "delaybridge/dedup/ids.py",
        "checked(values[-1], ID_HEADER)", "checked(values[0], ID_HEADER)",
        "a message that was forwarded has the id of another",
        "tests/unit/test_dedup.py",
    ),
    Mutant(
        "dedup: characters", "delaybridge/dedup/ids.py",
        "size = len(text.encode())", "size = text.encode() and len(text)",
        "an id is accepted that no table takes",
        "tests/unit/test_dedup.py",
    ),
]  # fmt: skip
