"""Mistakes in the ledger's statements and transactions."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

MUTANTS = [
    Mutant(
        "retention: live rows", "delaybridge/ledger/sql/records.py",
        "if row.tier == FINISHED and row.updated_ms < before_ms]",
        "if row.updated_ms < before_ms]",
        "what was accepted a week ago for next month is never delivered after a wipe",
        "tests/integration/test_ledger_rows.py::"
        "test_retention_deletes_what_has_ended_in_time_and_nothing_else[sqlite]",
    ),
    Mutant(
        "retention: what has just ended", "delaybridge/ledger/sql/records.py",
        "if row.tier == FINISHED and row.updated_ms < before_ms]",
        "if row.tier == FINISHED]",
        "the history of a message is gone within an hour of its end",
        "tests/integration/test_ledger_rows.py::"
        "test_retention_deletes_what_has_ended_in_time_and_nothing_else[sqlite]",
    ),
    Mutant(
        "retention: another namespace", "delaybridge/ledger/sql/records.py",
        "order.where(self.is_own, message.c.number > after)",
        "order.where(message.c.number > after)",
        "rows of a namespace that keeps all are deleted by another one",
        "tests/integration/test_ledger_rows.py::"
        "test_retention_deletes_what_has_ended_in_time_and_nothing_else[sqlite]",
    ),
    Mutant(
        "retention: a page without old rows", "delaybridge/ledger/sql/records.py",
        "return looked[-1].number if looked else None", "return looked[-1].number if old else None",
        "behind a thousand live rows nothing is ever deleted",
        "tests/integration/test_ledger_rows.py::"
        "test_retention_deletes_what_has_ended_in_time_and_nothing_else[sqlite]",
    ),
    Mutant(
        "retention: recent history of the same id", "delaybridge/ledger/sql/records.py",
        "where(*which, transition.c.at_ms < before_ms)", "where(*which)",
        "an id that is used again has no history",
        "tests/integration/test_ledger_rows.py::"
        "test_retention_deletes_what_has_ended_in_time_and_nothing_else[sqlite]",
    ),
    Mutant(
        "retention: history of another namespace", "delaybridge/ledger/sql/records.py",
        "which = transition.c.namespace == self.namespace, transition.c.id.in_(ids)",
        "which = (transition.c.id.in_(ids),)",
        "the history of another namespace's message with the same id is deleted",
        "tests/integration/test_ledger_rows.py::"
        "test_retention_deletes_what_has_ended_in_time_and_nothing_else[sqlite]",
    ),
    Mutant(
        "retention: the first page alone", "delaybridge/ledger/reconciling/forgetting.py",
        "    while after is not None:", "    if after is not None:",
        "rows come faster than they are deleted",
        "tests/unit/test_forgetting.py",
    ),
    Mutant(
        "retention: milliseconds", "delaybridge/ledger/reconciling/forgetting.py",
        "round(retention_s * 1000)", "round(retention_s)",
        "rows are deleted after ten minutes instead of a week",
        "tests/unit/test_forgetting.py",
    ),
    Mutant(
        "retention: every worker", "delaybridge/ledger/reconciling/forgetting.py",
        "if each.bucket.number == number), None)", "if each.bucket.number != number), None)",
        "a worker alone with bucket 0 deletes nothing",
        "tests/unit/test_forgetting.py",
    ),
    Mutant(
        "rows: a row that has ended is withdrawn", "delaybridge/ledger/sql/records.py",
        "            live = message.c.tier > 0\n", "            live = message.c.tier >= 0\n",
        "a message that was delivered before its call had an answer has no row any more",
        "tests/integration/test_ledger_rows.py::"
        "test_what_has_ended_is_neither_withdrawn_nor_changed[sqlite]",
    ),
    Mutant(
        "rows: what has ended changes again", "delaybridge/ledger/sql/records.py",
        "asked = update(message).where(message.c.tier > 0,",
        "asked = update(message).where(message.c.tier >= 0,",
        "a message that was cancelled is published, by its row",
        "tests/integration/test_ledger_rows.py::"
        "test_what_has_ended_is_neither_withdrawn_nor_changed[sqlite]",
    ),
    Mutant(
        "rows: cancelled, and live", "delaybridge/ledger/sql/rows.py",
        "OVER = (PUBLISHED, CANCELLED)", "OVER = (PUBLISHED,)",
        "what was cancelled comes back after a wipe",
        "tests/integration/test_ledger_rows.py::test_what_is_dead_is_live_in_the_ledger",
    ),
    Mutant(
        "rows: an expired one is over", "delaybridge/ledger/sql/rows.py",
        "OVER = (PUBLISHED, CANCELLED)", "OVER = (PUBLISHED, CANCELLED, EXPIRED)",
        "expired messages are not in the dead set after a wipe",
        "tests/integration/test_ledger_rows.py::test_what_is_dead_is_live_in_the_ledger",
    ),
    Mutant(
        "rows: revived whatever it ended by", "delaybridge/ledger/sql/cold.py",
        "message.c.state.in_(OVER), message.c.error == error, self.records.named(on, [name])",
        "message.c.state.in_(OVER), self.records.named(on, [name])",
        "a message that was published is live again",
        "tests/integration/test_ledger_rows.py::"
        "test_only_a_row_that_ended_for_this_reason_is_live_again[sqlite]",
    ),
    Mutant(
        "rows: revived without a tier", "delaybridge/ledger/sql/cold.py",
        '{"state": DELAYED, "tier": HOT, "error": ""}', '{"state": DELAYED, "error": ""}',
        "a message whose row was ended by mistake is not restored",
        "tests/integration/test_ledger_rows.py::"
        "test_only_a_row_that_ended_for_this_reason_is_live_again[sqlite]",
    ),
    Mutant(
        "rows: a call that was made before is new", "delaybridge/ledger/sql/records.py",
        "            rows = list({row.name: row for row in rows if row.name not in known}.values())"
        "\n            self._insert(on, \"message\", _COLUMNS, rows)\n",
        "            new = list({row.name: row for row in rows if row.name not in known}.values())"
        "\n            self._insert(on, \"message\", _COLUMNS, new)\n",
        "the row of an accepted message is withdrawn with that of a call that was sent again",
        "tests/integration/test_ledger_rows.py::"
        "test_only_calls_that_were_not_there_are_new[sqlite]",
    ),
    Mutant(
        "rows: the last call", "delaybridge/ledger/sql/records.py",
        "query.order_by(message.c.number.desc())", "query.order_by(message.c.number)",
        "of several calls for an id another one is restored than Redis had",
        "tests/integration/test_ledger_rows.py::"
        "test_of_several_calls_the_first_live_one_counts[sqlite]",
    ),
    Mutant(
        "rows: the first call has ended", "delaybridge/ledger/sql/records.py",
        "query = select(*columns).where(message.c.tier > 0, self.named(on, some))",
        "query = select(*columns).where(self.named(on, some))",
        "an id that is used a second time is not restored",
        "tests/integration/test_ledger_rows.py::"
        "test_of_several_calls_the_first_live_one_counts[sqlite]",
    ),
    Mutant(
        "rows: live ones of any namespace", "delaybridge/ledger/sql/records.py",
        "found += self.read(on, select(*ROW).where(self.is_own, *which))",
        "found += self.read(on, select(*ROW).where(*which))",
        "a message of another namespace is restored here",
        "tests/integration/test_ledger_rows.py::"
        "test_live_rows_of_an_id_are_those_of_its_namespace[sqlite]",
    ),
    Mutant(
        "rows: a page of those due at one time", "delaybridge/ledger/sql/records.py",
        "which = [self.is_own, message.c.bucket == bucket, place > tuple_(*after)]",
        "which = [self.is_own, message.c.bucket == bucket, message.c.due_ms > after[0]]",
        "of many messages due at the same time only a page is restored",
        "tests/integration/test_ledger_rows.py::"
        "test_a_bucket_is_read_page_by_page_also_of_one_due_time[sqlite]",
    ),
    Mutant(
        "rows: a page of any namespace", "delaybridge/ledger/sql/records.py",
        "which = [self.is_own, message.c.bucket == bucket, place > tuple_(*after)]",
        "which = [message.c.bucket == bucket, place > tuple_(*after)]",
        "messages of another namespace are restored here",
        "tests/integration/test_ledger_rows.py::"
        "test_a_bucket_is_read_page_by_page_also_of_one_due_time[sqlite]",
    ),
    Mutant(
        "rows: a page of any bucket", "delaybridge/ledger/sql/records.py",
        "which = [self.is_own, message.c.bucket == bucket, place > tuple_(*after)]",
        "which = [self.is_own, place > tuple_(*after)]",
        "messages are restored into all buckets",
        "tests/integration/test_ledger_rows.py::"
        "test_a_bucket_is_read_page_by_page_also_of_one_due_time[sqlite]",
    ),
    Mutant(
        "rows: a page with cold ones", "delaybridge/ledger/sql/records.py",
        "where(at_tier(on, HOT), *which)", "where(message.c.tier > 0, *which)",
        "a worker brings all cold messages into Redis",
        "tests/integration/test_ledger_rows.py::"
        "test_a_bucket_is_read_page_by_page_also_of_one_due_time[sqlite]",
    ),
    Mutant(
        "rows: a destination is a pattern", "delaybridge/ledger/sql/records.py",
        "startswith(printable(to), autoescape=True)", "startswith(printable(to))",
        "a purge of rabbitmq:a_b cancels what is for rabbitmq:axb",
        "tests/integration/test_ledger_rows.py::test_a_destination_is_no_pattern[sqlite]",
    ),
    Mutant(
        "rows: a name of any namespace in SQLite", "delaybridge/ledger/sql/records.py",
        'CROSS JOIN message AS m "\n    "WHERE m.namespace = :of_namespace AND {same})",',
        'CROSS JOIN message AS m "\n    "WHERE m.number > 0 OR :of_namespace = \'\' AND {same})",',
        "a cancel ends rows of other namespaces",
        "tests/integration/test_ledger_rows.py::"
        "test_what_has_ended_is_neither_withdrawn_nor_changed[sqlite]",
    ),
    Mutant(
        "rows: a column of one value, by its first two", "delaybridge/ledger/sql/records.py",
        "column.count(column[0]) == len(column)", "column.count(column[0]) > 1",
        "messages of one call get the due time of others",
        "tests/integration/test_ledger_rows.py::test_each_row_keeps_what_it_has[postgres]",
    ),
    Mutant(
        "rows: an error as the broker has it", "delaybridge/ledger/sql/rows.py",
        "return printable(error)[:_ERROR_CHARS]", "return error[:_ERROR_CHARS]",
        "PostgreSQL refuses what a broker says, and the worker tells it for ever",
        "tests/integration/test_ledger_rows.py::"
        "test_a_life_is_told_in_order_and_whatever_a_broker_says[postgres]",
    ),
    Mutant(
        "cold: what has ended is warm", "delaybridge/ledger/sql/cold.py",
        "which = message.c.tier == COLD, self.records.named(on, some)",
        "which = message.c.tier >= 0, self.records.named(on, some)",
        "a message that was cancelled meanwhile comes back after a wipe",
        "tests/integration/test_ledger_cold.py::test_what_has_ended_gets_no_tier_again[sqlite]",
    ),
    Mutant(
        "cold: what has ended arrives", "delaybridge/ledger/sql/cold.py",
        "which = numbered(on, some), message.c.tier == COLD", "which = (numbered(on, some),)",
        "what was cancelled while it was promoted comes back after a wipe",
        "tests/integration/test_ledger_cold.py::test_what_has_ended_gets_no_tier_again[sqlite]",
    ),
    Mutant(
        "cold: the first call has ended", "delaybridge/ledger/sql/cold.py",
        "which = message.c.tier > 0, self.records.named(on, some)",
        "which = message.c.tier >= 0, self.records.named(on, some)",
        "a call meets one that has ended, and is a duplicate",
        "tests/integration/test_ledger_cold.py::"
        "test_of_several_calls_a_cold_one_is_the_first[sqlite]",
    ),
    Mutant(
        "cold: the first call is hot", "delaybridge/ledger/sql/cold.py",
        "return -row.tier", "return row.tier",
        "of two calls the one that Redis has hides the cold one",
        "tests/integration/test_ledger_cold.py::"
        "test_of_several_calls_a_cold_one_is_the_first[sqlite]",
    ),
    Mutant(
        "cold: due at the end of the window", "delaybridge/ledger/sql/cold.py",
        "message.c.due_ms <= until_ms", "message.c.due_ms < until_ms",
        "without a window the last message is never brought",
        "tests/integration/test_ledger_cold.py::"
        "test_due_are_the_first_calls_of_a_bucket_page_by_page[sqlite]",
    ),
    Mutant(
        "cold: the second of two calls is promoted", "delaybridge/ledger/sql/cold.py",
        ".where(self._own(on), *which, is_first)", ".where(self._own(on), *which)",
        "of two calls for an id the wrong one is promoted",
        "tests/integration/test_ledger_cold.py::"
        "test_due_are_the_first_calls_of_a_bucket_page_by_page[sqlite]",
    ),
    Mutant(
        "cold: an earlier call that has ended", "delaybridge/ledger/sql/cold.py",
        ", other.c.tier + 0 > 0,", ",",
        "an id that is used a second time is not promoted, and never comes",
        "tests/integration/test_ledger_cold.py::"
        "test_due_are_the_first_calls_of_a_bucket_page_by_page[sqlite]",
    ),
    Mutant(
        "cold: an earlier call of another namespace", "delaybridge/ledger/sql/cold.py",
        "other.c.namespace == message.c.namespace, ", "",
        "an id that another namespace uses, too, is not promoted",
        "tests/integration/test_ledger_cold.py::"
        "test_due_are_the_first_calls_of_a_bucket_page_by_page[sqlite]",
    ),
    Mutant(
        "cold: a page of those due at one time", "delaybridge/ledger/sql/cold.py",
        "message.c.due_ms <= until_ms, place > tuple_(*after)",
        "message.c.due_ms <= until_ms, message.c.due_ms > after[0]",
        "of many messages due at the same time only a page is promoted",
        "tests/integration/test_ledger_cold.py::"
        "test_due_are_the_first_calls_of_a_bucket_page_by_page[sqlite]",
    ),
    Mutant(
        "cold: any bucket is promoted", "delaybridge/ledger/sql/cold.py",
        "which = message.c.bucket == bucket, message.c.due_ms", "which = message.c.due_ms",
        "a worker promotes messages into buckets that are not theirs",
        "tests/integration/test_ledger_cold.py::"
        "test_due_are_the_first_calls_of_a_bucket_page_by_page[sqlite]",
    ),
    Mutant(
        "cold: counted at both ends", "delaybridge/ledger/sql/cold.py",
        "m.due_ms < given.high_ms", "m.due_ms <= given.high_ms",
        "the horizon counts a message twice",
        "tests/integration/test_ledger_cold.py::"
        "test_spans_are_counted_from_their_beginning_to_before_their_end[sqlite]",
    ),
    Mutant(
        "cold: the last spans alone are counted", "delaybridge/ledger/sql/cold.py",
        "found += on.scalars(asked, values)", "found = [*on.scalars(asked, values)]",
        "with many buckets the horizon counts wrong",
        "tests/integration/test_ledger_cold.py::"
        "test_spans_are_counted_from_their_beginning_to_before_their_end[sqlite]",
    ),
    Mutant(
        "cold: the last of a page", "delaybridge/ledger/sql/cold.py",
        "limit(asked.limit + 1)", "limit(asked.limit)",
        "a list ends after its first page",
        "tests/integration/test_ledger_cold.py::test_a_list_is_read_in_the_order_of_redis[sqlite]",
    ),
    Mutant(
        "cold: too many bytes", "delaybridge/ledger/sql/cold.py",
        "            if numbers and size > max_bytes:", "            if False:",
        "a list of large messages needs more memory than a process has",
        "tests/integration/test_ledger_cold.py::test_a_list_is_read_in_the_order_of_redis[sqlite]",
    ),
    Mutant(
        "cold: behind one of the same time", "delaybridge/ledger/sql/cold.py",
        "and_(at, message.c.priority < priority),", "and_(at, message.c.priority > priority),",
        "lists leave messages out whose priority is lower",
        "tests/integration/test_ledger_cold.py::test_a_list_is_read_in_the_order_of_redis[sqlite]",
    ),
    Mutant(
        "cold: drawn from any namespace", "delaybridge/ledger/sql/cold.py",
        "which = self._own(on), message.c.bucket == bucket, numbered(on, some)",
        "which = message.c.bucket == bucket, numbered(on, some)",
        "a sample has messages of other namespaces",
        "tests/integration/test_ledger_cold.py::"
        "test_a_sample_is_of_one_bucket_and_what_is_cold[sqlite]",
    ),
    Mutant(
        "controls: what is in force is forgotten", "delaybridge/ledger/sql/controls.py",
        "where(self._own, control.c.value.is_(None), old)", "where(self._own, old)",
        "a pause that is a week old is forgotten",
        "tests/integration/test_ledger_cold.py::"
        "test_rules_that_were_removed_are_forgotten_by_their_namespace[sqlite]",
    ),
    Mutant(
        "controls: retention of another namespace", "delaybridge/ledger/sql/controls.py",
        "where(self._own, control.c.value.is_(None), old)", "where(control.c.value.is_(None), old)",
        "what another namespace has removed comes back",
        "tests/integration/test_ledger_cold.py::"
        "test_rules_that_were_removed_are_forgotten_by_their_namespace[sqlite]",
    ),
    Mutant(
        "controls: of every namespace", "delaybridge/ledger/sql/controls.py",
        "select(*columns).where(self._own))", "select(*columns))",
        "rules of another namespace are obeyed after a wipe",
        "tests/integration/test_ledger_cold.py::"
        "test_rules_that_were_removed_are_forgotten_by_their_namespace[sqlite]",
    ),
    Mutant(
        "controls: two add a rule at once", "delaybridge/ledger/sql/controls.py",
        "for known in self._known(on, [each]).values()", "for known in ()",
        "of two changes at one time the earlier one is kept",
        "tests/integration/test_ledger_cold.py::"
        "test_of_two_who_add_a_rule_at_once_the_later_change_is_kept[sqlite]",
    ),
    Mutant(
        "engines: a commit that a power cut undoes", "delaybridge/ledger/sql/engines.py",
        '("journal_mode = WAL", "synchronous = FULL")', '("journal_mode = WAL", "synchronous = 1")',
        "a message that was accepted is lost with the power",
        "tests/integration/test_ledger_database.py::test_a_commit_of_sqlite_survives_a_power_cut",
    ),
    Mutant(
        "engines: a transaction that begins by reading", "delaybridge/ledger/sql/engines.py",
        '"BEGIN IMMEDIATE"', '"BEGIN"',
        "calls at one time are refused: the database is locked",
        "tests/integration/test_ledger_database.py::"
        "test_nobody_writes_into_sqlite_between_what_a_transaction_reads_and_writes",
    ),
    Mutant(
        "engines: an old connection", "delaybridge/ledger/sql/engines.py",
        'pool_pre_ping=parsed.get_backend_name() != "sqlite"', "pool_pre_ping=False",
        "after a restart of the database the next calls are refused",
        "tests/integration/test_ledger_database.py::"
        "test_a_connection_that_the_server_has_ended_is_replaced",
    ),
    Mutant(
        "engines: a lock that waits for ever", "delaybridge/ledger/sql/engines.py",
        '"options": f"-c jit=off -c statement_timeout={ms} -c lock_timeout={ms} "',
        '"options": f"-c jit=off -c statement_timeout={0 * ms} -c lock_timeout={0 * ms} "',
        "transactions whose caller has gone hold the database's connections",
        "tests/integration/test_ledger_database.py::"
        "test_no_statement_of_postgresql_lasts_longer_than_its_caller_waits",
    ),
    Mutant(
        "database: a deadlock is an error", "delaybridge/ledger/sql/database.py",
        "if not (tries_left and engines.is_deadlock(exc)):", "if True:",
        "calls that meet in the database are refused",
        "tests/integration/test_ledger_database.py::"
        "test_what_lost_against_another_transaction_is_tried_again",
    ),
    Mutant(
        "database: a commit that may have been", "delaybridge/ledger/sql/database.py",
        "                        attempt.begin_commit()\n", "",
        "a call is told that nothing was written, and its message comes",
        "tests/integration/test_ledger_database.py::test_a_commit_without_an_answer_may_have_been",
    ),
    Mutant(
        "database: a fork shares connections", "delaybridge/ledger/sql/database.py",
        "                self._engine.dispose(close=False)\n", "",
        "two processes talk on one connection",
        "tests/integration/test_ledger_database.py::test_a_fork_has_connections_of_its_own",
    ),
    Mutant(
        "touch: a cold message", "delaybridge/ledger/recording/ledger_rows.py",
        "args[_SOURCE] or args[_REACH] or", "args[_SOURCE] or",
        "a message that was cancelled while it was touched is delivered",
        "tests/integration/test_touch.py::"
        "test_a_message_that_was_cancelled_meanwhile_does_not_come_back[sqlite-1h]",
    ),
]  # fmt: skip
