"""Mutants of the store and of its Lua scripts."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

MUTANTS = [
    Mutant(
        "schedule: a fired message is pending", "lua/schedule.lua",
        "policy ~= KNOWN_SOURCE and not is_held and is_fired(id, its_score)",
        "policy == REPLACE and is_fired(id, its_score)",
        "a consumer that schedules again what it received is told duplicate, and nothing comes",
        "tests/integration/test_scheduled_again.py",
    ),
    Mutant(
        "schedule: what a consumer has is pending", "lua/schedule.lua",
        "    elseif is_held then", "    elseif false then",
        "a consumer of a pull topic that schedules again what it has ends its chain",
        "tests/integration/test_pull.py",
    ),
    Mutant(
        "schedule: a late finish", "lua/schedule.lua",
        "return ends and end_receipt(stamp, id, tried) or refuse(", "return refuse(",
        "a late consumer ends a message that somebody was told to expect",
        "tests/integration/test_pull.py",
    ),
    Mutant(
        "schedule: in flight for good", "lua/schedule.lua",
        "if past and past % 1 * 256 ~= IN_FLIGHT then", "if past then",
        "with a ledger a call that waits is never stored",
        "tests/integration/test_scheduled_again.py -k ledger",
    ),
    Mutant(
        "tiers: a cold call that was refused", "delaybridge/ledger/recording/tiering.py",
        "        if notes:", "        if False:",
        "with a ledger a call that waited is created, and its message never comes",
        "tests/integration/test_scheduled_again.py -k ledger",
    ),
    Mutant(
        "scheduling: a batch that waits is sent again", "delaybridge/store/messages/scheduling.py",
        "self._try_again(outgoing, policy, outgoing.late,",
        "self._try_again(outgoing, policy, range(len(outgoing)),",
        "all messages of a batch are sent again for one that is in flight",
        "tests/unit/test_scheduling.py",
    ),
    Mutant(
        "scheduling: each try counts", "delaybridge/store/messages/scheduling.py",
        "self.quota.count(message.payload, -1)", "pass",
        "calls that wait fill limits.pending_messages, and others are refused",
        "tests/integration/test_scheduled_again.py -k against_a_limit",
    ),
    Mutant(
        "batching: nobody waits", "delaybridge/client/batching.py",
        "late = [place for place in sent.late if place >= last]", "late = []",
        "a call of an AsyncClient is not stored, though its id is free a moment later",
        "tests/integration/test_scheduled_again.py",
    ),
    Mutant(
        "once: a request does not wait", "delaybridge/serve/stored/idempotency.py",
        "if answer is not Answer.IN_FLIGHT or not (pause_s := patience.pause_s()):", "if True:",
        "a request with a key is refused, though its id is free a moment later",
        "tests/integration/test_scheduled_again.py -k http",
    ),
    Mutant(
        "sentinels: the oldest epoch", "delaybridge/store/redis/sentinels.py",
        "latest = max(found, default=", "latest = min(found, default=",
        "writes go to a master that was replaced, and are lost",
        "tests/unit/test_sentinels.py",
    ),
    Mutant(
        "sentinels: those who know are silent", "delaybridge/store/redis/sentinels.py",
        "if latest.epoch < self._epoch and 2 * len(found) <= len(self._wires):", "if False:",
        "one Sentinel that was cut off leads back to a master of the past",
        "tests/unit/test_sentinels.py",
    ),
    Mutant(
        "sentinels: one that is silent", "delaybridge/store/redis/sentinels.py",
        "if one is not None and one.address == known:", "if one is None or one.address == known:",
        "a silent Sentinel is taken to know of no fail-over",
        "tests/unit/test_sentinels.py",
    ),
    Mutant(
        "sentinels: none is asked after a failed call", "delaybridge/store/redis/servers.py",
        "            self._doubts += 1\n", "            pass\n",
        "a master that was replaced and comes back gets writes, and all are lost",
        "tests/unit/test_sentinels.py",
    ),
    Mutant(
        "sentinels: one is asked in doubt", "delaybridge/store/redis/servers.py",
        "self._sentinels.master(self._master if doubt == self._settled else None)",
        "self._sentinels.master(self._master)",
        "after a failed call the one that has not heard of the fail-over is believed",
        "tests/unit/test_sentinels.py",
    ),
    Mutant(
        "wire: a connection to a server that moved", "delaybridge/store/redis/wire.py",
        "if self._closed or connection.generation != self.generation:", "if self._closed:",
        "calls go on to the server that was replaced",
        "tests/unit/test_wire.py",
    ),
    Mutant(
        "ids: the same in a child", "delaybridge/store/protocol/ids.py",
        "if time.monotonic() < until_s and pid == os.getpid():", "if time.monotonic() < until_s:",
        "a forked process draws the ids of its parent",
        "tests/unit/test_ids.py",
    ),
    Mutant(
        "gate: WAITAOF of 7.2", "delaybridge/store/namespace/gate.py",
        "if word.isdigit()) >= _HAS_WAITAOF", "if word.isdigit()) > _HAS_WAITAOF",
        "Redis 7.2 is refused",
        "tests/unit/test_durability_gate.py",
    ),
    Mutant(
        "durability: one replica is enough", "delaybridge/store/redis/durability.py",
        "if reply >= self._asked.replicas:", "if reply >= 1:",
        "a write is confirmed that only some of the replicas have",
        "tests/unit/test_durability_gate.py",
    ),
    Mutant(
        "durability: no write before WAIT", "delaybridge/store/redis/durability.py",
        'words: list[tuple[Any, ...]] = [("SET", _beside(command), 1)]',
        'words: list[tuple[Any, ...]] = [("GET", _beside(command))]',
        "a duplicate is confirmed that no replica has",
        "tests/unit/test_durability_gate.py",
    ),
    Mutant(
        "quota: one message more", "delaybridge/store/namespace/quota.py",
        "round(found.estimate[unit] - error) >= limit",
        "round(found.estimate[unit] - error) > limit",
        "limits are exceeded by one",
        "tests/unit/test_quota.py",
    ),
    Mutant(
        "quota: a refusal makes the next call look", "delaybridge/store/namespace/quota.py",
        "if self._pending[place].is_counted and not self._looks:", "if not self._looks:",
        "who is refused keeps Redis busy with small requests",
        "tests/unit/test_quota.py",
    ),
    Mutant(
        "quota: a tenant by its estimate", "delaybridge/store/namespace/quota.py",
        "found.estimate[unit] - error", "found.estimate[unit]",
        "one message of a small tenant stands for thousands, and the tenant is refused",
        "tests/unit/test_quota.py",
    ),
    Mutant(
        "quota: messages of no tenant count for one", "delaybridge/store/namespace/quota.py",
        "if self._by_tenant and (tenant := tenant_text(end)):",
        "if self._by_tenant and ((tenant := tenant_text(end)) or True):",
        "whoever is of no tenant is refused, too",
        "tests/unit/test_quota.py",
    ),
    Mutant(
        "selection: the last due time", "delaybridge/store/messages/selection.py",
        "due_ms <= high)", "due_ms < high)",
        "a message due at the end of the span is left out",
        "tests/integration/test_selection.py",
    ),
    Mutant(
        "selection: the first page only", "delaybridge/store/messages/selection.py",
        "return found, bound_for[-1][:2] if page.more else None", "return found, None",
        "a bulk verb stops after 500 messages of a bucket",
        "tests/integration/test_selection.py",
    ),
    Mutant(
        "selection: a record at the page's edge", "delaybridge/store/messages/selection.py",
        "(rows[-1].score, rows[-1].id) if more else None",
        "(rows[-1].score + 1, rows[-1].id) if more else None",
        "a bulk verb with a filter leaves out what is due with a page's last message",
        "tests/integration/test_selection.py::test_messages_due_at_once_are_found_on_whatever_"
        "page",
    ),
    Mutant(
        "agreement: the end of a page", "delaybridge/ledger/comparing/agreement.py",
        "            after = calls[-1].score, calls[-1].id\n", "            more = False\n",
        "of a bucket only 1000 messages are compared",
        "tests/unit/test_agreement.py",
    ),
    Mutant(
        "claim: what the marks forgot", "lua/claim.lua",
        "if lowest and tonumber(lowest) < claimed then", "if false then",
        "what was in flight when a bucket lost its marks and lease stays so",
        "tests/integration/test_store_claims.py::test_a_session_that_began_without_the_marks_ends_"
        "once_they_are_repaired",
    ),
    Mutant(
        "alarm: lost keys stay", "delaybridge/operate/notices/alarms.py",
        "(yield from repairs.clear(namespace)) or bool(cleared)", "bool(cleared)",
        "lost keys are told for ever",
        "tests/integration/test_mended.py",
    ),
    Mutant(
        "redis: any server is trusted", "delaybridge/store/redis/redis_client.py",
        "            **keepalive,\n",
        "            **keepalive,\n"
        "            **dict.fromkeys(('ssl_cert_reqs', 'ssl_check_hostname') * (url[5] == 's')),\n",
        "TLS does not verify the server",
        "tests/integration/test_redis_tls.py",
    ),
    Mutant(
        "stats: what is in no set", "delaybridge/operate/notices/repairs.py",
        "return max(0, records - sum(listed) + bare)", "return 0",
        "health is content though messages lost their entries in `due`",
        "tests/integration/test_mended.py::test_a_message_in_no_set_is_told_though_it_cannot_be_late",
    ),
    Mutant(
        "stats: one look is enough", "delaybridge/operate/views/bucket_counts.py",
        "min(counts[at].unlisted, again)", "counts[at].unlisted",
        "a message that moves while its bucket is counted is an alarm",
        "tests/unit/test_cli_checks.py::test_a_message_that_was_moved_while_its_bucket_was_counted_"
        "is_in_a_set",
    ),
    Mutant(
        "stats: held back is failing", "delaybridge/operate/views/retrying.py",
        "if first_word(one.error) != ORPHANED", "if one.error",
        "messages that wait for an operator count as failing publishes",
        "tests/integration/test_mended.py",
    ),
    Mutant(
        "define: without the progress", "lua/define.lua",
        "if now ~= before or progress ~= ARGV[4] then", "if now ~= before then",
        "a worker that was slow repeats runs that another has made",
        "tests/integration/test_recurring.py::test_progress_is_written_only_over_the_progress_"
        "that_was_read",
    ),
    Mutant(
        "recur: without the pause", "lua/recur.lua",
        "now + ARGV[2]), name)", "now), name)",
        "all workers make the same runs at once",
        "tests/integration/test_recurring.py::test_what_one_worker_looks_at_is_left_to_it_for_"
        "one_and_a_half_seconds",
    ),
    Mutant(
        "receive: 1 ms short", "lua/receive.lua",
        "now + ARGV[5] + (ARGV[1] == '' and 1 or 0)", "now + ARGV[5]",
        "a message comes again before the time to run has ended",
        "tests/integration/test_pull.py::test_the_time_to_run_is_not_cut_short_by_a_part_of_a_"
        "millisecond",
    ),
    Mutant(
        "receive: a record more", "lua/receive.lua",
        "size + #record > bytes then", "size > bytes then",
        "an answer is larger than its bound by one record",
        "tests/integration/test_pull.py::test_one_answer_has_no_more_bytes_than_its_bound_but_"
        "always_a_message",
    ),
    Mutant(
        "claim: a record more", "lua/claim.lua",
        "elseif size < bytes then", "elseif size <= bytes then",
        "a claim is larger than its bound by one record",
        "tests/integration/test_store_claims.py::test_a_claim_ends_with_the_record_that_"
        "reaches_its_bytes",
    ),
    Mutant(
        "allow: rounded down", "lua/allow.lua",
        "math.ceil(spent + granted * each_us)", "math.floor(spent + granted * each_us)",
        "a rate is exceeded by a little, all the time",
        "tests/integration/test_allow.py",
    ),
    Mutant(
        "set_rule: without the comparison", "lua/set_rule.lua",
        "elseif now ~= ARGV[2] and now ~= ARGV[3] then", "elseif false then",
        "of two changes of a rule at once, one is lost",
        "tests/integration/test_rules.py::test_changes_of_different_fields_at_once_all_win",
    ),
    Mutant(
        "fence: twice", "lua/fence.lua",
        "if read and read < FENCED then", "if read then",
        "a source that was fenced twice has lost where it was",
        "tests/integration/test_store_ingest.py::test_a_fenced_source_reads_no_more_and_tells_"
        "where_it_was_however_often",
    ),
    Mutant(
        "settle: errors stay", "lua/settle.lua",
        "        redis.call('HDEL', KEYS[4], unpack(errors_of(ids)))\n", "",
        "each message that failed once leaves an entry for ever",
        "tests/integration/test_store_interleavings.py::test_nothing_is_left_of_the_failures_of_"
        "a_message_that_is_settled",
    ),
    Mutant(
        "kick: it may have arrived", "lua/kick.lua",
        "redis.call('HSET', KEYS[3], id, '0:1:')", "redis.call('HSET', KEYS[3], id, '0:0:')",
        "a kicked message that may have arrived is cancelled as if it had not",
        "tests/integration/test_store_calls.py::test_a_kicked_message_remembers_that_it_"
        "may_have_been_delivered",
    ),
    Mutant(
        "drop: another call's message", "lua/drop.lua",
        "if record and string.sub(record, 10, 13) == ARGV[i + 1] then", "if record then",
        "a message that was scheduled meanwhile is dropped for the one that has ended",
        "tests/integration/test_store_interleavings.py::test_a_message_is_dropped_only_for_the_"
        "call_that_scheduled_it",
    ),
    Mutant(
        "record: a sample counts twice", "lua/record.lua",
        "number <= workers[instance][2] then", "number < workers[instance][2] then",
        "a sample sent again is counted again",
        "tests/integration/test_series.py::test_the_rings_hold_what_was_sent_in_their_periods_"
        "and_no_more",
    ),
    Mutant(
        "claim: lost records are not counted", "lua/claim.lua",
        "  redis.call('HSET', KEYS[8], 'bare', bare)\n", "",
        "a bucket with a dead entry that has no record is taken again and walked through",
        "tests/integration/test_mending.py::test_dead_ones_whose_record_was_"
        "gone_when_they_were_claimed_are_no_contradiction",
    ),
    Mutant(
        "mend: long overdue ones are published", "lua/mend.lua",
        "elseif is_long and ARGV[7] == 'hold' then", "elseif false then",
        "messages of long ago go out unasked, thousands at once",
        "tests/integration/test_mending.py::test_more_that_are_long_overdue_wait_"
        "for_the_operator",
    ),
    Mutant(
        "unpark: parked orphans come back", "lua/unpark.lua",
        "'-inf', BELOW, 'WITHSCORES'", "'-inf', '+inf', 'WITHSCORES'",
        "messages that wait for an operator are published",
        "tests/integration/test_mending.py::test_what_waits_for_the_operator_stays_"
        "when_all_others_are_unparked",
    ),
    Mutant(
        "count: a contradiction is forgotten", "lua/count.lua",
        "  suspect = redis.call('HSET', KEYS[8], 'suspect', '1')\n", "",
        "the next owner brings back what hides it, and does not walk",
        "tests/integration/test_mending_old_keys.py::test_old_entries_beside_the_present_"
        "ones_are_dropped",
    ),
    Mutant(
        "mend: the earlier of two times", "lua/mend.lua",
        "math.max(score, listed) or score", "math.min(score, listed) or score",
        "a message that was moved comes early after an old copy of its bucket's records",
        "tests/integration/test_mending_old_keys.py::test_of_two_due_times_the_later_one_counts",
    ),
    Mutant(
        "mend: the dead live again", "lua/mend.lua",
        "(not score or of[3] + LEAD_MS >=", "(not score or 0 >",
        "dead messages are published after an old copy of `due`",
        "tests/integration/test_mending_old_keys.py::test_what_died_is_not_published_again_"
        "though_due_is_old",
    ),
    Mutant(
        "mend: the cancelled come back", "lua/mend.lua",
        "return answer == CANCELLED or", "return",
        "a message goes out after `cancelled`",
        "tests/integration/test_mending_old_keys.py::test_what_was_cancelled_does_not_come_"
        "though_messages_is_old",
    ),
    Mutant(
        "schedule: the copy of a lost record", "lua/schedule.lua",
        "if is_lost and redis.call('ZSCORE', KEYS[3], id) then", "if false then",
        "a new message is settled by the copy of the last one of its id",
        "tests/integration/test_lost_records.py -k last_message",
    ),
    Mutant(
        "schedule: the receipt of a lost record", "lua/schedule.lua",
        "if any_tried then\n        redis", "if false then\n        redis",
        "a consumer finishes a message that it has not received",
        "tests/integration/test_lost_records.py -k receipt",
    ),
    Mutant(
        "schedule: old attempts", "lua/schedule.lua",
        "if any_tried and redis.call('HDEL'", "if false and redis.call('HDEL'",
        "a new message counts as expired since the last one of its id was due",
        "tests/integration/test_lost_records.py -k nothing_contradicts",
    ),
    Mutant(
        "cancel: claimed, and in an old `due`", "lua/cancel.lua",
        "if claim then -- it is revoked", "if claim and not was_due then -- it is revoked",
        "a copy on a wheel is published after `cancelled`",
        "tests/integration/test_mending_old_keys.py -k revoked",
    ),
    Mutant(
        "discard: an old `dead`", "lua/discard.lua",
        "return IN_FLIGHT", "return UNKNOWN",
        "what is quarantined with its id is deleted instead",
        "tests/integration/test_mending_old_keys.py -k quarantined",
    ),
    Mutant(
        "trim: an old `dead`", "lua/trim.lua",
        "redis.call('ZSCORE', KEYS[12], id) or ", "",
        "a worker deletes a message that lives",
        "tests/integration/test_mending_old_keys.py -k not_taken_for_dead",
    ),
    Mutant(
        "selection: orphans are due later", "delaybridge/store/messages/selection.py",
        "if high is None or state is State.PARKED:", "if high is None:",
        "messages that are held back are not found by their due time",
        "tests/integration/test_mended.py",
    ),
    Mutant(
        "wire: closed during its handshake", "delaybridge/store/redis/store.py",
        "with lost_if_closed():", "if True:",
        "a scanner ends when a server of a Cluster resets a new connection",
        "tests/unit/test_stream_connection.py",
    ),
]  # fmt: skip
