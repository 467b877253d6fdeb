"""Mutants of the entrances: accept, amqp, settings, client, intercept, outbox, dedup."""

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
        "client: closed before its calls have ended", "delaybridge/client/batching.py",
        "if waiting := [each for each in self._under_way if each.get_loop() is loop]:", "if False:",
        "a program ends while its calls run, and does not know which took effect",
        "tests/integration/test_client_closed.py",
    ),
    Mutant(
        "outbox: a ledger in its own file", "delaybridge/outbox/outbox_process.py",
        "            refuse_one_file(s)\n", "",
        "the pump waits for itself for ever",
        "tests/unit/test_outbox.py -k same_file",
    ),
    Mutant(
        "outbox: a database that answers nothing", "delaybridge/ledger/sql/patient.py",
        "time.monotonic() > until_s", "time.monotonic() > until_s + 3600",
        "a firewall that forgets a connection stops the outbox for hours",
        "tests/integration/test_outbox_database_fails.py -k dead",
    ),
    Mutant(
        "outbox: a standby", "delaybridge/ledger/sql/engines.py",
        '("25006", 1290, 1836)', "(1290, 1836)",
        "after a fail-over the outbox asks the standby for ever",
        "tests/integration/test_outbox_database_fails.py -k standby",
    ),
    Mutant(
        "outbox: a deaf listener", "delaybridge/outbox/listener.py",
        """connection.execute("SELECT 1")""", "pass",
        "it never listens again, and each row waits for the next look",
        "tests/integration/test_outbox_database_fails.py -k dead",
    ),
    Mutant(
        "outbox: a hard link", "delaybridge/ledger/sql/engines.py",
        "file.samefile(its)", "False",
        "the pump waits for itself for ever",
        "tests/unit/test_outbox.py -k same_file",
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
        "self._client.run(Calls.servers) > 1", "False",
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
        "outbox: what Redis raises", "delaybridge/store/messages/changes.py",
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
        '"newest": newest}', '"newest": 2**62}',
        "a message is scheduled after its committed cancel",
        "tests/integration/test_outbox_again.py -k between_two_pages",
    ),
    Mutant(
        "accept: a key at the limit", "delaybridge/accept/accept.py",
        "len(found) > limits.body_bytes", "len(found) >= limits.body_bytes",
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
        "draft: an id is not checked", "delaybridge/accept/accept.py",
        "                check_id(id, self._limits)\n", "                pass\n",
        "a plain message may have any id",
        "tests/unit/test_draft.py",
    ),
    Mutant(
        "draft: a mould forgets the priority", "delaybridge/accept/accept.py",
        "                or message.priority is not mould.priority\n", "",
        "a message gets the priority of the one before it",
        "tests/unit/test_draft.py",
    ),
    Mutant(
        "draft: a body hides json", "delaybridge/accept/accept.py",
        "                or message.json is not msgspec.UNSET\n", "",
        "a message with a body and json is sent without its json",
        "tests/unit/test_json_body.py",
    ),
    Mutant(
        "json: not-a-number", "delaybridge/accept/json_body.py",
        "allow_nan=False", "allow_nan=True",
        "a body is not JSON",
        "tests/unit/test_json_body.py",
    ),
    Mutant(
        "json: the content type wins", "delaybridge/accept/json_body.py",
        '{"content_type": "application/json", **properties}',
        '{**properties, "content_type": "application/json"}',
        "the content type that was given is lost",
        "tests/unit/test_json_body.py",
    ),
    Mutant(
        "amqp: an empty body has a frame", "delaybridge/amqp/frames.py",
        "if 0 < size <= self._payload_max", "if 0 <= size <= self._payload_max",
        "the second empty message of a channel is a protocol error",
        "tests/unit/test_amqp_frames.py",
    ),
    Mutant(
        "amqp: a foreign user is sent", "delaybridge/amqp/frames.py",
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
        "settings: an option of any name is shown", "delaybridge/settings/urls.py",
        "not value or unquote(name) in HARMLESS", "True",
        "a secret in an option that nobody thought of is printed",
        "tests/unit/test_settings_urls.py",
    ),
    Mutant(
        "settings: a password for a port", "delaybridge/settings/urls.py",
        "    if is_bare or any(", "    if is_bare and any(",
        "redis://:SECRET, where the host was forgotten, is printed whole",
        "tests/unit/test_settings_urls.py",
    ),
    Mutant(
        "settings: a JSON list is one text", "delaybridge/settings/values.py",
        'if text.lstrip().startswith("[")', "if False",
        "a JSON list in a variable is refused",
        "tests/unit/test_settings.py",
    ),
    Mutant(
        "settings: a long text is shown", "delaybridge/settings/faults.py",
        "if len(value) > _READ_CHARS", "if False",
        "a text of 1 MB is examined for secrets of which 100 characters are shown",
        "tests/unit/test_settings_lengths.py",
    ),
    Mutant(
        "accept: a stream with the name of an own key", "delaybridge/accept/destination.py",
        'kind in ("redis", "kombu") and', 'kind == "redis" and',
        "a message to a queue of kombu takes the place of a key of delaybridge",
        "tests/unit/test_destination.py",
    ),
    Mutant(
        "store: a certificate that is not trusted is tried again",
        "delaybridge/store/redis/pipeline.py",
        "        if refused_certificate(error):\n            return False\n", "",
        "whoever forgot the CA waits for the time-out",
        "tests/unit/test_pipeline.py",
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
        "        _insert(connection, row, dialect)\n",
        "        dialect, row = dialect_of(connection), self._cancel_row(id, key)\n"
        "        execute(connection, table.INSERT, _fitted(row, dialect))\n",
        "a cancel outlives the transaction that was rolled back",
        "tests/unit/test_outbox.py",
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
