"""Mutants of ingest."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

MUTANTS = [
    Mutant(
        "ingest: delay topics that nobody named are read", "delaybridge/settings/entrances.py",
        "    topics: Texts = ()", '    topics: Texts = ("*.delay",)',
        "on a shared cluster the topics of others are read",
        "tests/unit/test_cli_refusals.py",
    ),
    Mutant(
        "ingest: a destination of another kind is accepted in the settings",
        "delaybridge/ingest/checks.py",
        "elif read and meant and meant.isdisjoint(read)", "elif False",
        "every message for it is quarantined, though config check says ok",
        "tests/unit/test_settings_refused.py",
    ),
    Mutant(
        "ingest: an entry overtakes in its source", "delaybridge/ingest/storing.py",
        "            if call is not None and source:\n"
        "                call.room = -1\n"
        "                continue\n",
        "",
        "an offset is noted before the entries in front of it",
        "tests/unit/test_ingest_storing.py",
    ),
    Mutant(
        "ingest: a message_id is an id, whoever wrote it",
        "delaybridge/ingest/rabbitmq/answered.py",
        "or not entry.is_loose", "or True",
        "a message of a program that knows nothing of ids is quarantined: another one has its id",
        "tests/unit/test_ingest_loose_ids.py",
    ),
    Mutant(
        "ingest: two messages of the same bytes are one", "delaybridge/ingest/storing.py",
        "_CREATED if are_loose", "_SCHEDULED if are_loose",
        "a program at the front that says the same twice is heard once",
        "tests/unit/test_ingest_loose_ids.py",
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
        ' delaybridge-reschedule', "",
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
        "ingest: a full exchange keeps the window", "delaybridge/ingest/rabbitmq/intake.py",
        "channel.is_full and channel.may_return and not self._is_stopping", "False",
        "a tenant over its quota stops every exchange of the broker",
        "tests/integration/test_ingest_rabbitmq_full.py::"
        "test_a_full_tenant_leaves_the_window_to_other_exchanges",
    ),
    Mutant(
        "ingest: a shape outlives its reader", "delaybridge/ingest/rabbitmq/connection.py",
        "        self._alike = None  # it is known to who reads the channel\n", "",
        "a message is addressed as the exchange has it that had its channel before",
        "tests/unit/test_ingest_rabbitmq_stream.py",
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
        "sorted({each[:2] for each in bound} - {(\"queue\", route.queue)})", "sorted(set())",
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
        "delaybridge/ingest/rabbitmq/emptiness.py",
        "if await is_empty(connection, queue):", "if True:",
        "a full queue whose leader does not answer is deleted",
        "tests/integration/test_ingest_convert.py::"
        "test_a_queue_that_falls_silent_during_a_conversion_is_read",
    ),
    Mutant(
        "ingest: an intake is removed though a consumer has a message of it",
        "delaybridge/ingest/rabbitmq/fronted_intake.py",
        "if any(await held_by(connection, queue)):", "if False:",
        "a message that a client had confirmed is deleted",
        "tests/integration/test_ingest_fronted.py::"
        "test_an_intake_stays_as_long_as_another_consumer_has_a_message_of_it",
    ),
    Mutant(
        "ingest: fronts wake it in vain", "delaybridge/ingest/rabbitmq/following.py",
        "            self._woken.set()", "            pass",
        "the first messages of a new exchange are up to 5 s late",
        "tests/integration/test_ingest_fronted.py::"
        "test_an_exchange_that_is_enlisted_is_read_at_once_and_its_messages_go_to_its_target",
    ),
    Mutant(
        "ingest: a consumer sees the delay as it was sent",
        "delaybridge/ingest/negated.py",
        "yield _negative(table[at:end])", "yield table[at:end]",
        "a consumer that copies headers into a republish is delayed for ever",
        "tests/unit/test_ingest_negated.py",
    ),
    Mutant(
        "ingest: a stamp from the future counts", "delaybridge/ingest/rabbitmq/messages.py",
        "min(stamp_ms, time_ns() // 1_000_000)", "stamp_ms",
        "a broker whose clock is ahead makes messages late",
        "tests/unit/test_ingest_negated.py",
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
]  # fmt: skip
