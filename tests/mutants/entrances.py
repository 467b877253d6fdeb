"""Mutants of the entrances: accept, amqp, settings, client, intercept, outbox, ingest, dedup."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

MUTANTS = [
    Mutant(
        "drop-ins: in flight is no error", "delaybridge/client/requests.py",
        "    if receipt.answer is Answer.IN_FLIGHT:", "    if False:",
        "a publish returns as if it were stored, and the message never comes",
        "tests/integration/test_intercept_again.py -k with_pika",
    ),
    Mutant(
        "confluent_kafka: in flight is stored", "delaybridge/intercept/kafka_outbox.py",
        "    if outcome.answer is Answer.IN_FLIGHT:\n        text", "    if False:\n        text",
        "on_delivery says that a message is stored which never comes",
        "tests/integration/test_intercept_again.py -k on_delivery",
    ),
    Mutant(
        "confluent_kafka: one refused, all sent again", "delaybridge/intercept/kafka_outbox.py",
        "_tried_again(one, outcome, client", "_tried_again(one, (refused or [outcome])[0], client",
        "the others of its batch are delivered again and again",
        "tests/integration/test_intercept_confluent_kafka_refused.py -k limit_waits",
    ),
    Mutant(
        "confluent_kafka: one late, all wait", "delaybridge/intercept/kafka_outbox.py",
        "return self._is_silent and bool(self._late)", "return bool(self._late)",
        "all messages of a producer wait for one that is not stored yet",
        "tests/integration/test_intercept_again.py -k on_delivery",
    ),
    Mutant(
        "confluent_kafka: a silent Redis gets more", "delaybridge/intercept/kafka_outbox.py",
        "return self._is_silent and bool(self._late)", "return False",
        "whatever is produced while Redis hangs is executed later, and comes twice",
        "tests/integration/test_intercept_confluent_kafka_refused.py -k only_server",
    ),
    Mutant(
        "confluent_kafka: one of an id that waits", "delaybridge/intercept/kafka_outbox.py",
        "if (behind := self._late.get(one.accepted.id)) is not None:",
        'if (behind := self._late.get("")) is not None:',
        "a message overtakes an earlier one of its id that waits",
        "tests/integration/test_intercept_again.py -k many_that_wait",
    ),
    Mutant(
        "confluent_kafka: new ones put off older ones", "delaybridge/intercept/kafka_outbox.py",
        "min(self._late_at_s, at_s) if self._is_pausing else at_s", "at_s",
        "while ids that are in flight come, none that waits is tried again",
        "tests/integration/test_intercept_again.py -k put_off",
    ),
    Mutant(
        "client: each waits alone", "delaybridge/client/batching.py",
        'which = policy, self._store.node_of(buckets[number].key("due"))',
        "which = policy, str(id(late))",
        "a hundred calls that wait make a thousand calls a second, each a commit of the ledger",
        "tests/integration/test_client_together.py -k share_their_tries",
    ),
    Mutant(
        "client: no pause after a long try", "delaybridge/client/batching.py",
        "min(_PAUSE * took_s, longest_s)", "0.0",
        "the tries of calls that wait take all the time of the ledger",
        "tests/integration/test_client_together.py -k share_their_tries",
    ),
    Mutant(
        "outbox: in flight is done", "delaybridge/outbox/pump.py",
        "elif outcome == Answer.IN_FLIGHT and call.accepted is not None:", "elif False:",
        "a row is deleted whose message was not stored",
        "tests/integration/test_outbox_again.py",
    ),
    Mutant(
        "outbox: one page", "delaybridge/outbox/pump.py",
        "            if len(page) < MOST_ROWS:\n                return True\n",
        "            return True\n",
        "a thousand rows whose ids are in flight hold up all others",
        "tests/integration/test_outbox_again.py",
    ),
    Mutant(
        "outbox: a new row is looked at with all others", "delaybridge/outbox/pump.py",
        "self._begin(self._last)", "self._begin(0)",
        "while a destination is full, each new row costs a look at all rows that stay",
        "tests/integration/test_outbox_held.py -k look_at_no_row",
    ),
    Mutant(
        "outbox: no pause after a long look", "delaybridge/outbox/pump.py",
        "now_s + _PAUSE * self._took_s", "now_s",
        "rows that stay are looked at all the time, and locked",
        "tests/integration/test_outbox_held.py -k look_at_no_row",
    ),
    Mutant(
        "outbox: a lower number that is committed later", "delaybridge/outbox/pump.py",
        "            self._seen |= earlier\n", "",
        "a message is scheduled after its committed cancel",
        "tests/integration/test_outbox_again.py -k between_two_pages",
    ),
    Mutant(
        "outbox: an error of one destination", "delaybridge/outbox/causes.py",
        "        return error.limit\n", '        return ""\n',
        "rows of a destination that is full hold up all others",
        "tests/integration/test_outbox_held.py -k full_destination",
    ),
    Mutant(
        "outbox: an error of one server", "delaybridge/outbox/pump.py",
        "self._client.run(servers) > 1", "False",
        "while one server of a Cluster is silent, no row moves",
        "tests/integration/test_outbox_held.py -k one_server",
    ),
    Mutant(
        "outbox: sent to a server that is known to be silent", "delaybridge/outbox/pump.py",
        "        return self._unsure[bucket_of(key, len(self._unsure))]", "        return None",
        "rows are sent again and again to a server that does not confirm them",
        "tests/integration/test_outbox_held.py -k one_server",
    ),
    Mutant(
        "outbox: what Redis raises", "delaybridge/store/changes.py",
        "        return explained[cause]", "        raise explained[cause]",
        "a cancel that a damaged bucket cannot answer holds up all others",
        "tests/integration/test_outbox_held.py -k cannot_answer",
    ),
    Mutant(
        "outbox: sent again unconfirmed", "delaybridge/outbox/pump.py",
        "self._is_unsure |= isinstance(error, NotDurable)", "pass",
        "a row is published again and again while no replica confirms it",
        "tests/integration/test_outbox_held.py -k confirmed",
    ),
    Mutant(
        "outbox: sent again if the database fails", "delaybridge/outbox/pump.py",
        "            self._stored.update(moved.done)\n", "",
        "a row is published again and again while the database refuses to delete it",
        "tests/integration/test_outbox_held.py -k database_refuses",
    ),
    Mutant(
        "outbox: a number is a row", "delaybridge/outbox/pump.py",
        "return call.number, call.stamp", 'return call.number, b""',
        "a row is deleted and not sent, since another one had its number before",
        "tests/integration/test_outbox_held.py -k second_time",
    ),
    Mutant(
        "outbox: what is committed between two pages", "delaybridge/outbox/database.py",
        '"newest": newest, "after"', '"newest": 2**62, "after"',
        "a message is scheduled after its committed cancel",
        "tests/integration/test_outbox_again.py -k between_two_pages",
    ),
    Mutant(
        "accept: a key at the limit", "delaybridge/accept/accept.py",
        "len(key) > limits.body_bytes", "len(key) >= limits.body_bytes",
        "a key of exactly limits.body_bytes is refused",
        "tests/unit/test_accept.py::test_a_key_has_the_same_limit_as_a_body",
    ),
    Mutant(
        "accept: a delay at the limit", "delaybridge/accept/accept.py",
        "if wait_ms > limits.delay_ms", "if wait_ms >= limits.delay_ms",
        "a delay of exactly limits.delay is refused",
        "tests/unit/test_accept.py::test_the_longest_delay_is_accepted_and_one_millisecond_more_"
        "is_not",
    ),
    Mutant(
        "draft: an id is not checked", "delaybridge/accept/draft.py",
        "                check_id(id, self._limits)\n", "                pass\n",
        "a plain message may have any id",
        "tests/unit/test_draft.py",
    ),
    Mutant(
        "draft: a mould forgets the priority", "delaybridge/accept/draft.py",
        "                or message.priority is not mould.priority\n", "",
        "a message gets the priority of the one before it",
        "tests/unit/test_draft.py",
    ),
    Mutant(
        "amqp: an empty body has a frame", "delaybridge/amqp/encoder.py",
        "if 0 < size <= self._payload_max", "if 0 <= size <= self._payload_max",
        "the second empty message of a channel is a protocol error",
        "tests/unit/test_amqp_frames.py",
    ),
    Mutant(
        "amqp: a foreign user is sent", "delaybridge/amqp/encoder.py",
        "if not shape[0] & USER_ID_FLAG:", "if shape is not None:",
        "the second message with a foreign user id closes the channel",
        "tests/unit/test_amqp_frames.py",
    ),
    Mutant(
        "times: a datetime is rounded down", "delaybridge/times.py",
        "-((_EPOCH - value) // timedelta(milliseconds=1))",
        "(value - _EPOCH) // timedelta(milliseconds=1)",
        "a message may be delivered up to a millisecond early",
        "tests/unit/test_times.py",
    ),
    Mutant(
        "backoff: long work starts it no more", "delaybridge/backoff.py",
        "if worked_s > self._steady_s", "if worked_s < self._steady_s",
        "a connection that lasted for hours is made again only after the longest wait",
        "tests/unit/test_link.py",
    ),
    Mutant(
        "settings: a lease as long as its renewal", "delaybridge/settings/relations.py",
        '(("lease.renew_ms", "redis.timeout_s"), "<", "lease.ttl_ms")',
        '(("lease.renew_ms", "redis.timeout_s"), "<=", "lease.ttl_ms")',
        "a lease may run out while it is renewed",
        "tests/unit/test_settings_refused.py",
    ),
    Mutant(
        "settings: spaces of a password are lost", "delaybridge/settings/password_file.py",
        'text.removesuffix("\\n").removesuffix("\\r")', "text.strip()",
        "a password that ends with a space is a wrong one",
        "tests/unit/test_settings_urls.py tests/unit/test_publish_rabbitmq.py",
    ),
    Mutant(
        "client: spread beyond the span", "delaybridge/client/spreading.py",
        "min(place, count - 1) // count", "min(place, count) // count",
        "a message that was not counted comes after the span",
        "tests/unit/test_client.py",
    ),
    Mutant(
        "intercept: a delay begins when it is stored", "delaybridge/intercept/kafka_reports.py",
        "left_ms = max(0, int(accepted.when) - waited_ms)", "left_ms = int(accepted.when)",
        "a message that waited for Redis is late by as much",
        "tests/unit/test_intercept.py",
    ),
    Mutant(
        "intercept: properties of the caller change", "delaybridge/intercept/pika.py",
        "sent = copy(properties) if", "sent = properties if",
        "the caller's headers lose the delay: a second publish goes out at once",
        "tests/unit/test_intercept.py",
    ),
    Mutant(
        "outbox: the last call of an id", "delaybridge/outbox/pump.py",
        "first.setdefault(call.id, call)", "first[call.id] = call",
        "a cancel is overtaken by the schedule after it",
        "tests/unit/test_outbox.py"
        " tests/integration/test_outbox.py::test_a_cancel_takes_effect_after_the_call_that_it_"
        "follows",
    ),
    Mutant(
        "outbox: cancel commits at once", "delaybridge/outbox/rows.py",
        "        dialect, row = dialect_of(connection), self._cancel_row(id, key)\n"
        "        if commits_each_statement(connection):\n"
        "            raise _no_transaction()\n",
        "        dialect, row = dialect_of(connection), self._cancel_row(id, key)\n",
        "a cancel outlives the transaction that was rolled back",
        "tests/unit/test_outbox.py",
    ),
    Mutant(
        "ingest: an entry overtakes in its source", "delaybridge/ingest/storing.py",
        "            if call is not None and source:\n"
        "                continue\n",
        "",
        "an offset is noted before the entries in front of it",
        "tests/unit/test_ingest_storing.py",
    ),
    Mutant(
        "ingest: a message goes before the change that it follows is answered",
        "delaybridge/ingest/rabbitmq/answered.py",
        "not is_change and before.get(each.id, key) != key", "False",
        "a cancel that waits for a damaged bucket removes the message that came after it",
        "tests/unit/test_ingest_answered.py",
    ),
    Mutant(
        "ingest: what joins leaves behind what came before it", "delaybridge/ingest/aside.py",
        "            if self._joins(each):\n                self.mark(each)", "            pass",
        "a cancel is done before the message that waits for an id in flight",
        "tests/unit/test_ingest_aside.py",
    ),
    Mutant(
        "ingest: an offset passes a record that is set aside",
        "delaybridge/ingest/kafka/offsets.py",
        "min(offset, reached.get(place, offset))", "reached.get(place, offset)",
        "a record for a damaged bucket is never read again after a restart",
        "tests/unit/test_ingest_aside.py",
    ),
    Mutant(
        "ingest: a record overtakes one that is over a quota", "delaybridge/ingest/storing.py",
        "full |= dict.fromkeys(ways, error)", "pass",
        "its bucket counts the record before it as read, which is then lost",
        "tests/unit/test_ingest_quota.py",
    ),
    Mutant(
        "ingest: a partition is forgotten when one of its records joins",
        "delaybridge/ingest/aside.py",
        "self._lanes |= {held.origin, (held.origin, self._number_of(held))}", "pass",
        "later records of the same bucket overtake, and the one that waits is never read again",
        "tests/unit/test_ingest_aside.py",
    ),
    Mutant(
        "ingest: a skipped record is read", "delaybridge/ingest/kafka/offsets.py",
        "int(offset) + 1", "int(offset)",
        "--skip reads the record that it names",
        "tests/unit/test_ingest_kafka.py",
    ),
    Mutant(
        "ingest: an empty batch is waited for", "delaybridge/ingest/kafka/handover.py",
        "            if self._batch is None:\n"
        "                self._taken.set()\n",
        "",
        "the consumer waits for a batch that nobody takes",
        "tests/unit/test_ingest_handover.py",
    ),
    Mutant(
        "ingest: a header is not bound", "delaybridge/ingest/rabbitmq/topology.py",
        '    "delaybridge-reschedule",\n', "",
        "a reschedule goes to the consumer, as a message",
        "tests/unit/test_ingest_topology.py",
    ),
    Mutant(
        "ingest: an expiration is lost", "delaybridge/ingest/rabbitmq/deaths.py",
        "content = with_expiration(content, given)", "pass",
        "a message that expired while ingest was away never expires again",
        "tests/unit/test_ingest_deaths.py",
    ),
    Mutant(
        "ingest: a binding is made once", "delaybridge/ingest/rabbitmq/intake.py",
        "self.noticed(\"declared\", await repair(connection, self.route))", "pass",
        "a binding that was removed by hand is missed for good, and messages go undelayed",
        "tests/integration/test_ingest_diverting.py::"
        "test_what_is_removed_by_hand_is_declared_and_bound_again",
    ),
    Mutant(
        "ingest: a foreign binding is nobody's", "delaybridge/ingest/rabbitmq/watch.py",
        "sorted({each[:2] for each in bound} - {(\"queue\", route.source)})", "sorted(set())",
        "a queue that takes messages away from their target is not told",
        "tests/unit/test_ingest_watch.py",
    ),
    Mutant(
        "ingest: another server's 404 is no binding", "delaybridge/ingest/rabbitmq/management.py",
        "HTTPStatus.NOT_FOUND and _NOT_THERE in body", "HTTPStatus.NOT_FOUND",
        "doctor says that all is well though it has asked another server",
        "tests/unit/test_ingest_watch.py",
    ),
    Mutant(
        "ingest: a conversion looks at the queue alone",
        "delaybridge/ingest/rabbitmq/conversion.py",
        "is_earlier = is_there and", "is_earlier = is_there and not queue_is_earlier and",
        "an exchange of the delayed-message plugin is deleted with all that it holds",
        "tests/integration/test_ingest_convert_refused.py::"
        "test_an_exchange_that_may_hold_messages_is_kept_whatever_its_queue_is",
    ),
    Mutant(
        "ingest: a conversion believes a count of 0",
        "delaybridge/ingest/rabbitmq/conversion.py",
        "if await _is_empty(connection, route):", "if True:",
        "a full queue whose leader does not answer is deleted",
        "tests/integration/test_ingest_convert.py::"
        "test_a_queue_that_falls_silent_during_a_conversion_is_read",
    ),
    Mutant(
        "ingest: conversions do not lock", "delaybridge/ingest/rabbitmq/topology.py",
        "\"exclusive\": True", "\"exclusive\": False",
        "of two conversions one deletes the other's new queue, with what it holds",
        "tests/integration/test_ingest_convert_refused.py::"
        "test_of_two_conversions_at_once_one_is_refused",
    ),
    Mutant(
        "ingest: a conversion has nowhere to hold messages",
        "delaybridge/ingest/rabbitmq/conversion.py",
        "{ALTERNATE: expired(route)}", "{}",
        "what comes by a bound exchange while the delay exchange is replaced is dropped",
        "tests/integration/test_ingest_convert.py::"
        "test_what_comes_by_a_bound_exchange_at_any_moment_of_a_conversion_comes_once",
    ),
    Mutant(
        "ingest: a binding is removed whatever the exchange is",
        "delaybridge/ingest/rabbitmq/topology.py",
        "*_of_exchange(route), *steps)", "*steps)",
        "an exchange of an earlier form has no binding any more, and its messages are dropped",
        "tests/integration/test_ingest_convert.py::"
        "test_nothing_is_unbound_from_an_exchange_of_another_form",
    ),
    Mutant(
        "ingest: a changed state waits for the beat", "delaybridge/ingest/counts.py",
        "        if list(before) != list(faults):\n            self.on_change()\n", "",
        "a fault is red only with the next announcement, up to five minutes later",
        "tests/unit/test_ingest_counts.py",
    ),
    Mutant(
        "ingest: a timestamp is early", "delaybridge/ingest/rabbitmq/messages.py",
        "value + _CUT_OFF if", "value if",
        "a message with an AMQP timestamp is up to a second early",
        "tests/unit/test_ingest_rabbitmq.py",
    ),
    Mutant(
        "dedup: a lost claim is done", "delaybridge/dedup/claims.py",
        "if found and found ~= ARGV[1] and found ~= 'done' then return found end\n", "",
        "the consumer that has the id now is not asked, and its effect is marked as done",
        "tests/unit/test_dedup.py"
        " tests/integration/test_dedup.py::test_an_effect_that_outlasts_its_claim",
    ),
    Mutant(
        "dedup: a failed effect keeps its claim", "delaybridge/dedup/claims.py",
        "                await self.release(id, token)\n", "                pass\n",
        "the next delivery waits until the claim has expired",
        "tests/unit/test_dedup.py tests/integration/test_dedup.py::test_the_async_twin"
        " tests/integration/test_dedup.py::test_a_cancelled_effect_is_tried_again",
    ),
    Mutant(
        "recurring: a time comes twice", "delaybridge/recurring/cron.py",
        "if due_s > after_s:", "if due_s >= after_s:",
        "two runs in a gap of the clock are not one",
        "tests/unit/test_recurring.py::test_a_run_at_a_fixed_time_comes_once_each_day",
    ),
    Mutant(
        "recurring: the lead of 3 s", "delaybridge/recurring/plan.py",
        "LEAD_MS = 3000", "LEAD_MS = 300",
        "a run is late if the worker that makes it dies",
        "tests/unit/test_recurring.py::test_the_next_run_is_made_shortly_before_the_one_before_"
        "it_is_due",
    ),
    Mutant(
        "recurring: late after 2 s", "delaybridge/recurring/plan.py",
        "LATE_MS = 2000", "LATE_MS = 200",
        "a run that is a little late counts as missed, and is skipped",
        "tests/unit/test_recurring.py::test_a_run_is_missed_two_seconds_after_it_was_due",
    ),
]  # fmt: skip
