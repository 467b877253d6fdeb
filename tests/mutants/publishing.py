"""Mutants of publish."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

MUTANTS = [
    Mutant(
        "http: one key at once", "delaybridge/publishers/http/lines.py",
        "        if key is not None:\n            of_key = path_of(delivery), key\n"
        "            if (behind := ",
        "        if key is not None and not key:\n            of_key = path_of(delivery), key\n"
        "            if (behind := ",
        "messages of one key overtake each other",
        "tests/unit/test_publish_http_lines.py",
    ),
    Mutant(
        "http: a key is free too early", "delaybridge/publishers/http/lines.py",
        "        for one in was_ready:\n            self._go_on(one)\n",
        "        self._behind.clear()\n",
        "after a time-out two messages of one key are under way",
        "tests/unit/test_publish_http_lines.py",
    ),
    Mutant(
        "http: a free line is taken at once", "delaybridge/publishers/http/lines.py",
        "elif path not in self._sharing and self._has_room():", "elif self._has_room():",
        "a message overtakes one of its key that waits in the shared line",
        "tests/unit/test_publish_http_lines.py",
    ),
    Mutant(
        "http: connections by turn", "delaybridge/publishers/http/lines.py",
        "is_first = best is None or line.under_way < best.under_way", "is_first = best is None",
        "paths that hang get each connection that a healthy one gives back",
        "tests/unit/test_publish_http_lines.py",
    ),
    Mutant(
        "http: a new path has any number", "delaybridge/publishers/http/lines.py",
        "            return doubtful < self._quarter\n", "            return True\n",
        "paths that hang have all connections of their host",
        "tests/unit/test_publish_http_lines.py",
    ),
    Mutant(
        "http: slow paths have all", "delaybridge/publishers/http/lines.py",
        "is_only or doubtful < self._three_quarters", "is_only or True",
        "a quick path waits for the answers to slow ones",
        "tests/unit/test_publish_http_lines.py",
    ),
    Mutant(
        "http: no connection is kept", "delaybridge/publishers/http/lines.py",
        "self.under_way >= self._seven_eighths and not is_only", "False",
        "four paths that hang now have all connections of their host",
        "tests/unit/test_publish_http_lines.py",
    ),
    Mutant(
        "http: a path is never late", "delaybridge/publishers/http/lines.py",
        "self.under_way > 0 and now_s - self.moved_s > SLOW_S", "False",
        "paths that hang get more, message by message, and leave a healthy one too few",
        "tests/unit/test_publish_http_lines.py",
    ),
    Mutant(
        "http: a time-out is the message's", "delaybridge/publishers/http/outcomes.py",
        "        return Outcome(Verdict.UNKNOWN, what, Fault.DESTINATION)\n",
        "        return Outcome(Verdict.UNKNOWN, what, Fault.MESSAGE)\n",
        "a path that hangs is posted to for ever, and each message is buried in the end",
        "tests/integration/test_publish_http_paths.py",
    ),
    Mutant(
        "http: one slow message stops its path", "delaybridge/publishers/http/publisher.py",
        "return replace(outcome, fault=Fault.MESSAGE) if is_late and not is_silent else outcome",
        "return outcome",
        "each time that one message times out, all others of a healthy path wait",
        "tests/integration/test_publish_http_paths.py",
    ),
    Mutant(
        "http: 429 is final", "delaybridge/publishers/http/outcomes.py",
        "_MAY_HELP = (HTTPStatus.REQUEST_TIMEOUT, HTTPStatus.TOO_MANY_REQUESTS)",
        "_MAY_HELP = (HTTPStatus.REQUEST_TIMEOUT,)",
        "messages to a receiver that is busy are buried",
        "tests/integration/test_publish_http.py::test_what_a_status_means",
    ),
    Mutant(
        "http: the newest secret only", "delaybridge/publishers/http/signature.py",
        "for secret in secrets)", "for secret in secrets[:1])",
        "receivers that know the old secret refuse everything",
        "tests/integration/test_publish_http.py::test_headers_and_signature_arrive",
    ),
    Mutant(
        "rabbitmq: a returned message is lost", "delaybridge/publish/rabbitmq/channel.py",
        "self._reports.add(self._without_returned(left), outcome)",
        "self._reports.add(left, outcome)",
        "a message that no queue took is sent again although it was refused",
        "tests/unit/test_publish_rabbitmq.py",
    ),
    Mutant(
        "rabbitmq: a multiple ack", "delaybridge/publish/rabbitmq/channel.py",
        "start = self._head if multiple else end - 1", "start = end - 1",
        "messages that a broker confirms together are never settled",
        "tests/unit/test_publish_rabbitmq.py",
    ),
    Mutant(
        "rabbitmq: all channels at once", "delaybridge/publish/rabbitmq/exchange.py",
        "while len(self._under_way) < at_once and any(self._waiting):",
        "while any(self._waiting):",
        "thousands of exchanges that do not exist hold up the confirms of all others",
        "tests/unit/test_openings.py",
    ),
    Mutant(
        "rabbitmq: what was refused goes first", "delaybridge/publish/rabbitmq/exchange.py",
        "self._waiting[exchange.was_refused]", "self._waiting[False]",
        "an exchange that works waits until all that do not exist were asked for",
        "tests/unit/test_openings.py",
    ),
    Mutant(
        "kafka: look-ups in any order", "delaybridge/publish/kafka/topic.py",
        "self._waiting[rank]", "self._waiting[Rank.NEW]",
        "a topic that exists waits until all that do not were looked up",
        "tests/unit/test_publish_kafka_turns.py",
    ),
    Mutant(
        "kafka: look-ups on the loop's threads", "delaybridge/publish/kafka/client.py",
        "return await on_thread(ask)", "return await asyncio.to_thread(ask)",
        "a silent cluster holds up the connections to all other brokers",
        "tests/integration/test_publish_kafka_lookups.py",
    ),
    Mutant(
        "kafka: an old question counts", "delaybridge/publish/kafka/publisher.py",
        "error is not _NOT_ASKED and since_s == self._since_s", "error is not _NOT_ASKED",
        "a connection that is well is given up for a question to the one before",
        "tests/integration/test_publish_kafka_lookups.py",
    ),
    Mutant(
        "kafka: an error is no proof", "delaybridge/publish/kafka/outcomes.py",
        "if refused is not None and is_proof:", "if refused is not None:",
        "a message that may have been written is refused for certain",
        "tests/unit/test_publish_kafka.py",
    ),
    Mutant(
        "kafka: a failed record is in flight", "delaybridge/publish/kafka/topic.py",
        "        self.in_flight -= 1\n", "",
        "a topic never changes its producer again",
        "tests/unit/test_publish_kafka_topic.py",
    ),
    Mutant(
        "kafka: a topic stays with single records", "delaybridge/publish/kafka/clients.py",
        "client in self and client is not self.single", "client in self",
        "a lost connection charges hundreds of innocent records a failed attempt",
        "tests/unit/test_publish_kafka_topic.py",
    ),
    Mutant(
        "kafka: innocents are charged", "delaybridge/publish/kafka/publisher.py",
        "if is_proof and error.code() in OF_A_BATCH:", "if False:",
        "each record of a refused batch is charged a failed attempt",
        "tests/integration/test_publish_kafka_refused.py",
    ),
    Mutant(
        "kafka: without proof", "delaybridge/publish/kafka/publisher.py",
        "if is_proof and error.code() in OF_A_BATCH:", "if error.code() in OF_A_BATCH:",
        "a record that may have been written goes again, although it is to go at most once",
        "tests/integration/test_publish_kafka_refused.py",
    ),
    Mutant(
        "kafka: pieces in one", "delaybridge/publish/kafka/topic.py",
        "return self.in_flight > 0 and (self.change is not None or self.care is not None)",
        "return self.in_flight > 0 and self.change is not None",
        "librdkafka puts the halves of a refused batch into one again",
        "tests/unit/test_publish_kafka_care.py",
    ),
    Mutant(
        "kafka: the named are not believed", "delaybridge/publish/kafka/outcomes.py",
        "if innocent and len(innocent) < len(batch):", "if False:",
        "the innocent of a refused batch go again with the guilty",
        "tests/unit/test_publish_kafka_care.py",
    ),
    Mutant(
        "kafka: many", "delaybridge/publish/kafka/topic.py",
        "MANY = 400", "MANY = 4000",
        "no topic gets the patient producer",
        "tests/unit/test_publish_kafka_topic.py",
    ),
    Mutant(
        "kombu: returned once, returned always", "delaybridge/publishers/kombu/thread.py",
        "    def _publish(self, delivery: Delivery) -> Outcome:\n"
        "        self._returned = None\n",
        "    def _publish(self, delivery: Delivery) -> Outcome:\n",
        "after one message without a queue, all are refused",
        "tests/integration/test_publish_contract.py::TestEveryPublisher::test_a_missing_"
        "destination_is_refused_and_the_others_go_on[kombu-amqp]",
    ),
    Mutant(
        "streams: written is refused", "delaybridge/publishers/redis_streams/publisher.py",
        "unknown = Outcome(Verdict.UNKNOWN, reason, Fault.BROKER)",
        "unknown = Outcome(Verdict.REFUSED, reason, Fault.BROKER)",
        "a message that may have been added is sent again without its attempt counted",
        "tests/integration/test_publish_contract.py::TestEveryPublisher::test_closing_reports_"
        "unconfirmed_messages_unknown -k redis",
    ),
    Mutant(
        "link: a task dies alone", "delaybridge/publish/link.py",
        "        task.add_done_callback(self._look_at)\n", "",
        "after one error in a task its messages have no outcome, and their lane stands still",
        "tests/unit/test_link.py",
    ),
    Mutant(
        "link: what nothing knows any more", "delaybridge/publish/link.py",
        "        loop.call_soon(self._owed.report, self._owed.left, outcome)\n", "",
        "after one error in a call the rest of its batch has no outcome",
        "tests/unit/test_link.py",
    ),
    Mutant(
        "guarded: a task that died", "delaybridge/publish/guarded.py",
        "            self._timer = loop.call_later(self._overdue_s, self._expire)\n",
        "            pass\n",
        "a third party's task that dies leaves its messages without an outcome",
        "tests/unit/test_guarded.py",
    ),
    Mutant(
        "link: a broker that is back", "delaybridge/publish/link.py",
        "            self.unavailable = unavailable\n"
        "            self._on_change()\n",
        "            self.unavailable = unavailable\n",
        "parked messages wait though their broker is back",
        "tests/unit/test_link.py",
    ),
    Mutant(
        "http: a path is decoded twice", "delaybridge/accept/destination.py",
        r'late.pattern(r"[\x00-\x1f\x7f%\\]")', r'late.pattern(r"[\x00-\x1f\x7f\\]")',
        "%252e%252e leads out of the base at a host that decodes twice",
        "tests/integration/test_publish_http.py",
    ),
]  # fmt: skip
