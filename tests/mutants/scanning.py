"""Mutants of scan, worker and metrics."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

MUTANTS = [
    Mutant(
        "alarms: a wipe ends with the first bucket", "delaybridge/ledger/comparing/rebuilt.py",
        "and all(found.values())", "and any(found.values())",
        "health is well though most of a wiped Redis is not rebuilt yet",
        "tests/integration/test_setbacks.py -k rebuild",
    ),
    Mutant(
        "alarms: what is lost for good ends, too", "delaybridge/ledger/comparing/rebuilt.py",
        " and not each.is_for_good", "",
        "an alarm ends although messages that the ledger did not have are lost",
        "tests/integration/test_setbacks.py -k rebuild",
    ),
    Mutant(
        "past: what the ledger lacks now, not before", "delaybridge/worker/history_check.py",
        "](maxlen=_RECENT_BEATS)  # of the", "](maxlen=1)  # of the",
        "a bucket is compared after the loss and before it is told: nothing was lost",
        "tests/unit/test_past.py",
    ),
    Mutant(
        "lease: the step back is not told", "delaybridge/scan/leases/lease.py",
        "dedup_ms=dedup_ms, back_ms=back_ms)", "dedup_ms=dedup_ms)",
        "a dead worker's buckets wait for a second lease, if Redis' clock was set back",
        "tests/integration/test_clock_set_back.py",
    ),
    Mutant(
        "announce: a ttl once more", "lua/announce.lua",
        "(tonumber(ARGV[7]) or now)", "now",
        "a dead worker is announced for a second ttl, if Redis' clock was set back",
        "tests/integration/test_clock_set_back.py",
    ),
    Mutant(
        "limit: the lead of 0.3 s", "delaybridge/scan/lanes/limit.py",
        "(1000 * _HOLD_S + _SLOT_MS)", "(1000 * _HOLD_S)",
        "of a burst a third more is parked than can be on time",
        "tests/unit/test_limit.py",
    ),
    Mutant(
        "parking: a surplus stays", "delaybridge/scan/lanes/parking.py",
        "return parked is None or parked.is_returning or not parked.is_before(copy.score)",
        "return True",
        "what comes behind parked messages is in the way of what can go",
        "tests/unit/test_scan_steps.py",
    ),
    Mutant(
        "parked: what is parked while a page is read", "delaybridge/scan/lanes/parked.py",
        "                self._meanwhile.append(one)\n", "                pass\n",
        "a message that is parked while a page is on its way waits for ever",
        "tests/unit/test_parked.py",
    ),
    Mutant(
        "parked: the last known one is parked again", "delaybridge/scan/lanes/parked.py",
        "if one <= self._last or", "if one < self._last or",
        "a message that is parked again while others return is forgotten",
        "tests/unit/test_parked.py",
    ),
    Mutant(
        "returning: no page is read", "delaybridge/scan/lanes/returning.py",
        "                self.lacking.setdefault(session, {})[lane] = None\n",
        "                pass\n",
        "of more than 50,000 parked messages the others wait for ever",
        "tests/unit/test_lane_pages.py",
    ),
    Mutant(
        "returning: a page for one lane", "delaybridge/scan/lanes/returning.py",
        "if self._lacks_page(lane, session)]", "if self._lacks_page(lane, session)][:1]",
        "after an outage with hundreds of destinations the last messages come minutes later",
        "tests/unit/test_lane_pages.py",
    ),
    Mutant(
        "returning: no turns", "delaybridge/scan/lanes/returning.py",
        "[s for s in self.lacking if", "[s for s in reversed(self.lacking) if",
        "the messages of one bucket come back only after all those of another",
        "tests/unit/test_lane_pages.py",
    ),
    Mutant(
        "parked: what a page has before what is not known", "delaybridge/scan/lanes/parked.py",
        "page = {one for one in ours if one > self._last}", "page = {*ours}",
        "messages that came back already are brought back once more",
        "tests/unit/test_parked.py",
    ),
    Mutant(
        "lanes: a confirm ends no refusal", "delaybridge/scan/lanes/outcomes.py",
        "        lane.refusing = None\n", "",
        "a destination that takes messages again is said to refuse them",
        "tests/unit/test_lanes.py",
    ),
    Mutant(
        "routing: one failure is a refusal", "delaybridge/scan/lanes/routing.py",
        "_LEAST_REFUSED_MS = 1000", "_LEAST_REFUSED_MS = 0",
        "one bad message makes its exchange look as if it refused all",
        "tests/unit/test_lanes.py",
    ),
    Mutant(
        "returning: a probe of five", "delaybridge/scan/lanes/returning.py",
        "_PROBES = 5", "_PROBES = 500",
        "a destination that fails gets hundreds of messages at each probe",
        "tests/unit/test_lane_circuits.py",
    ),
    Mutant(
        "lease: it lasts from the answer on", "delaybridge/scan/leases/lease.py",
        "            session.renewed(now_s)\n",
        "            session.renewed(self._clock.monotonic())\n",
        "a worker publishes after its lease has run out",
        "tests/unit/test_leases.py",
    ),
    Mutant(
        "lease: another's lease ends unnoticed", "delaybridge/scan/leases/lease.py",
        "        next_s += self._blocked_s.values()\n", "",
        "a bucket whose owner has died waits for the next renewal",
        "tests/unit/test_leases.py",
    ),
    Mutant(
        "firing: an earlier message is unclaimed", "delaybridge/scan/wheel/firing.py",
        "            if score > horizon:\n"
        "                break\n",
        "",
        "a message overtakes an earlier one of its key",
        "tests/unit/test_scan_steps.py",
    ),
    Mutant(
        "session: a wake-up during a claim", "delaybridge/scan/leases/session.py",
        "self.look_at_ms = min(self.look_at_ms, now_ms if claimed.more else look_at_ms)",
        "self.look_at_ms = now_ms if claimed.more else look_at_ms",
        "a message that came during a claim is late",
        "tests/unit/test_scan_steps.py",
    ),
    Mutant(
        "claiming: bytes are unbounded", "delaybridge/scan/wheel/claiming.py",
        "min(options.batch_bytes, room_bytes) // len(asked)", "options.batch_bytes",
        "the wheel holds more bytes than scan.wheel_bytes",
        "tests/unit/test_scan_steps.py"
        " tests/integration/test_scanner.py::test_wheel_and_window_exceed_their_bytes_by_at_most_"
        "one_message_a_bucket",
    ),
    Mutant(
        "window: bytes are never free", "delaybridge/scan/lanes/lane.py",
        "        lane.load_bytes -= size\n", "",
        "a lane slows down, and stops in the end",
        "tests/unit/test_lanes.py",
    ),
    Mutant(
        "outcomes: unknown is no attempt", "delaybridge/scan/lanes/outcomes.py",
        "elif maybe or outcome.fault is Fault.MESSAGE:", "elif outcome.fault is Fault.MESSAGE:",
        "a message that may have arrived is sent again as if it had not",
        "tests/unit/test_lane_exits.py",
    ),
    Mutant(
        "outcomes: only a confirm closes", "delaybridge/scan/lanes/outcomes.py",
        "outcome.answered", "False",
        "good messages to a destination that is well again wait behind bad ones",
        "tests/unit/test_lane_circuits.py",
    ),
    Mutant(
        "outcomes: Retry-After is not heard", "delaybridge/scan/lanes/outcomes.py",
        "            delay_ms = max(delay_ms, least_ms)\n", "",
        "a receiver gets the message again before it asked for it",
        "tests/unit/test_lane_exits.py::test_a_receiver_may_ask_for_a_longer_wait",
    ),
    Mutant(
        "retry: an attempt more", "delaybridge/scan/lanes/retry.py",
        "if attempts >= self.max_attempts:", "if attempts > self.max_attempts:",
        "a message is tried once more than it may be",
        "tests/unit/test_retry.py",
    ),
    Mutant(
        "exits: an unpark overtakes", "delaybridge/scan/leases/exits.py",
        "return bool(ids) and self._parking.isdisjoint(ids)", "return bool(ids)",
        "a message that is parked meanwhile stays parked",
        "tests/unit/test_session_exits.py::test_messages_parked_by_a_call_under_way_are_brought_back_"
        "only_after_it",
    ),
    Mutant(
        "clock: a step", "delaybridge/scan/leases/clock.py",
        "STEP_MS = ", "STEP_MS = 10 * ",
        "a clock that was set is followed slowly",
        "tests/unit/test_clock.py",
    ),
    Mutant(
        "past: the same turn again", "delaybridge/worker/history_check.py",
        "now.turn <= before.turn", "now.turn < before.turn",
        "a Redis that went back by one lease is not noticed",
        "tests/unit/test_past.py",
    ),
    Mutant(
        "past: sure after three beats", "delaybridge/worker/history_check.py",
        "if self._missing >= _SURE_BEATS:", "if self._missing >= 1:",
        "a fail-over ends all workers",
        "tests/unit/test_past.py",
    ),
    Mutant(
        "shifts: a bucket that is drained elsewhere", "delaybridge/worker/shifts.py",
        "shift.assign(here, share - elsewhere, may_take=may_take)",
        "shift.assign(here, share, may_take=may_take)",
        "two shifts of a worker want one bucket",
        "tests/unit/test_shifts.py",
    ),
    Mutant(
        "ledger: nobody reconciles", "delaybridge/ledger/reconciling/reconciling.py",
        "            await self._reconcile(session)\n", "",
        "what Redis loses while a worker has the bucket does not come back",
        "tests/integration/test_ledger_worker.py::test_deleted_keys_come_back[sqlite]",
    ),
    Mutant(
        "ledger: a wiped namespace is made again by the database alone",
        "delaybridge/worker/open_namespace.py",
        "    await store.run_each(calls.as_known(), redis_only=True)\n", "",
        "no bucket is leased while Redis and the database have failed together",
        "tests/integration/test_ledger_outage.py::test_workers_wait_for_both_and_go_on",
    ),
    Mutant(
        "ledger: it answers, though nobody asked", "delaybridge/ledger/reconciling/reconciling.py",
        "                    await self.waiting.ledger.share()\n                await self._tell",
        "                    pass\n                await self._tell",
        "the log says that the database is back while it is away",
        "tests/integration/test_ledger_outage.py::test_workers_wait_for_both_and_go_on",
    ),
    Mutant(
        "ledger: a bucket is claimed though its database is silent",
        "delaybridge/ledger/reconciling/reconciling.py",
        "self.silence.begins(exc)\n            await asyncio.sleep(_AGAIN_S)\n",
        "return True\n            await asyncio.sleep(_AGAIN_S)\n",
        "what was cancelled is published after Redis and the database have failed together",
        "tests/integration/test_ledger_outage.py::test_workers_wait_for_both_and_go_on",
    ),
    Mutant(
        "ledger: a comparison goes on after its lease was lost",
        "delaybridge/ledger/reconciling/reconciling.py",
        "if not session.alive:  # nor is", "if False:  # nor is",
        "a lease that is lost during its comparison ends the scanner",
        "tests/integration/test_ledger_outage.py::"
        "test_a_lease_that_is_lost_during_its_comparison_ends_only_its_session",
    ),
    Mutant(
        "ledger: a bucket that Redis refuses is claimed", "delaybridge/scan/reclaiming.py",
        'self._retake(done.session, "seal refused")', "pass",
        "a bucket is claimed that was not compared with the ledger",
        "tests/integration/test_ledger_outage.py::test_workers_wait_for_both_and_go_on",
    ),
    Mutant(
        "ledger: whether an old connection answers may take for ever",
        "delaybridge/ledger/sql/engines.py",
        "    engine.dialect.do_ping = ping_with_notice  # type: ignore[method-assign,assignment]\n",
        "",
        "a database that answered nothing for a while is silent for good",
        "tests/integration/test_ledger_outage.py::"
        "test_a_database_that_answered_nothing_is_asked_again",
    ),
    Mutant(
        "ledger: deliveries are forgotten", "delaybridge/ledger/reconciling/reconciling.py",
        "        await self._tell_what_it_forgot(session)\n", "",
        "what was delivered while the database was away comes again after a wipe",
        "tests/integration/test_ledger_delivered.py::test_what_was_delivered_during_an_outage_before_a_wipe"
        "_does_not_come_again",
    ),
    Mutant(
        "ledger: at most once, and forgotten", "delaybridge/scan/wheel/firing.py",
        "self._ledger.left(session, gone,", "self._ledger.left(session, [],",
        "after a wipe what is to come at most once comes twice",
        "tests/integration/test_ledger_delivered.py::test_what_was_delivered_during_an_outage_before_a_wipe"
        "_does_not_come_again",
    ),
    Mutant(
        "ledger: a page that a wipe emptied", "delaybridge/ledger/reconciling/reconciling.py",
        "if stands.generation != str(sealed.generation + 1):", "if False:",
        "what was sealed just before a wipe counts as told, and comes again",
        "tests/integration/test_ledger_delivered.py::"
        "test_a_wipe_while_the_ledger_is_told_makes_nothing_come_twice",
    ),
    Mutant(
        "happened: a message that was moved since", "delaybridge/ledger/reconciling/happened.py",
        "if state not in OVER and row_due_ms == due_ms:", "if state not in OVER:",
        "what was rescheduled after it was delivered is lost with a wipe",
        "tests/integration/test_ledger_delivered.py::"
        "test_only_what_is_still_to_come_as_it_was_delivered_is_told[sqlite]",
    ),
    Mutant(
        "happened: no bound", "delaybridge/ledger/reconciling/happened.py",
        "while self._bytes > self._most_bytes:", "while False:",
        "a worker's memory grows as long as the database is away",
        "tests/unit/test_happened.py",
    ),
    Mutant(
        "happened: what had no answer", "delaybridge/ledger/reconciling/happened.py",
        "self.left(bucket, exits.untold, now_ms)", "pass",
        "what was confirmed just before a wipe comes twice",
        "tests/unit/test_happened.py",
    ),
    Mutant(
        "happened: all is forgotten", "delaybridge/ledger/reconciling/happened.py",
        "while batches and batches[0].number <= last:", "while batches:",
        "what left while the ledger was told is forgotten",
        "tests/unit/test_happened.py",
    ),
    Mutant(
        "promotion: no clock but the worker's", "delaybridge/ledger/comparing/promotion.py",
        "now_ms, after = now_us // 1000,",
        "now_ms, after = __import__('time').time_ns() // 1_000_000,",
        "a worker whose clock is behind delivers cold messages late",
        "tests/integration/test_promoting.py",
    ),
    Mutant(
        "ledger: a call under way by the worker's clock",
        "delaybridge/ledger/reconciling/reconciling.py",
        "now_ms = await self._store_ms(session)", "now_ms = time.time_ns() // 1_000_000",
        "a worker whose clock is behind restores nothing that vanished",
        "tests/integration/test_promoting.py",
    ),
    Mutant(
        "rounds: a look takes its time from the next", "delaybridge/ledger/reconciling/rounds.py",
        "began_s + self._every_s", "now_s + self._every_s",
        "a bucket is compared with the ledger later than ledger.reconcile_s after the last time",
        "tests/unit/test_rounds.py",
    ),
    Mutant(
        "rounds: new ones go first", "delaybridge/ledger/reconciling/rounds.py",
        "{each: now_s + i * step_s for", "{each: now_s for",
        "all buckets of a worker that starts are compared at once",
        "tests/unit/test_rounds.py::test_the_first_looks_are_spread",
    ),
    Mutant(
        "rounds: no rest", "delaybridge/ledger/reconciling/rounds.py",
        "        self._rest_s = now_s + (now_s - began_s)\n", "",
        "a large ledger is read without a pause",
        "tests/unit/test_rounds.py::test_long_looks_take_half_of_the_time_and_each_has_its_turn",
    ),
    Mutant(
        "pulse: a beat that is missed", "delaybridge/worker/pulse.py",
        "if next_s <= now_s:", "if False:",
        "after a stall the beats come all at once",
        "tests/unit/test_pulse.py",
    ),
    Mutant(
        "tail: the first beat", "delaybridge/operate/parts/broadcast.py",
        "self._lines, self._dropped, self._number = [], 0, self._number + 1",
        "self._lines, self._dropped = [], 0",
        "nobody sees that lines are missing",
        "tests/unit/test_tail.py",
    ),
    Mutant(
        "metrics: a value at a bound", "delaybridge/histogram.py",
        "self.counts[bisect_left(self.bounds, value)] += 1",
        "self.counts[bisect_right(self.bounds, value)] += 1",
        "what took exactly 1 s is not within 1 s",
        "tests/unit/test_counts.py",
    ),
    Mutant(
        "metrics: a sum in milliseconds", "delaybridge/operate/metrics/exposition.py",
        "histogram.sum / unit", "histogram.sum",
        "sums of times are a thousand times too high",
        "tests/unit/test_metrics.py tests/unit/test_counts.py",
    ),
    Mutant(
        "metrics: one label more", "delaybridge/operate/metrics/counts.py",
        "if len(self._known) >= self._most:", "if len(self._known) > self._most:",
        "201 destinations have totals of their own",
        "tests/unit/test_metrics.py tests/unit/test_counts.py",
    ),
    Mutant(
        "mending: the session goes on", "delaybridge/scan/mending.py",
        "if is_lacking or counts.difference != session.residue:", "if False:",
        "messages that are in no set never come",
        "tests/integration/test_mending.py::test_messages_come_at_their_time_"
        "though_due_vanished",
    ),
    Mutant(
        "mending: a new session does not walk", "delaybridge/scan/reclaiming.py",
        "or each.session.counts.difference != orphans.SOUND:", "or False:",
        "a bucket is taken again each minute, and never mended",
        "tests/integration/test_mending.py::test_messages_come_at_their_time_"
        "though_due_vanished",
    ),
    Mutant(
        "mending: a hundred are parked", "delaybridge/scan/mending.py",
        "_MOST_AT_ONCE = 100 ", "_MOST_AT_ONCE = 99 ",
        "an operator is asked about a handful of messages",
        "tests/integration/test_mending.py::test_a_hundred_that_are_long_overdue_"
        "are_published",
    ),
    Mutant(
        "mending: nobody offers again", "delaybridge/scan/mending.py",
        "elif page is not None and self._waits_in_vain(session, page):", "elif False:",
        "messages of a pull topic whose order vanished are never received",
        "tests/integration/test_mending.py::test_messages_of_a_pull_topic_can_be_"
        "received_again_though_their_order_vanished",
    ),
    Mutant(
        "mending: a walk goes on", "delaybridge/scan/mending.py",
        "if not session.stays:", "if not session.alive:",
        "a worker that stops waits until its whole bucket was walked through",
        "tests/integration/test_mending.py::test_a_worker_that_leaves_during_the_walk_"
        "gives_the_bucket_back",
    ),
]  # fmt: skip
