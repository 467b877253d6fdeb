"""The Lua with one rule taken out: a replay that does not notice it compares nothing."""

from __future__ import annotations

from typing import NamedTuple

from delaybridge.store.protocol.scripts import scripts

LEASE = "redis.call('GET', KEYS[1]) ~= ARGV[1]"
OF_CLAIM = "tonumber(redis.call('ZSCORE', {}) or '') == tonumber(ARGV[i + 1])"


class LuaMutant(NamedTuple):
    """script: its name. old: text of it, once or more often, which becomes `new`."""

    name: str
    script: str
    old: str
    new: str

    @property
    def mutated(self) -> dict[str, str]:
        text, _ = scripts()[self.script]
        assert self.old in text, self
        return {self.script: text.replace(self.old, self.new)}


def _by_id(script: str, key_and_id: str) -> LuaMutant:
    old = OF_CLAIM.format(key_and_id)
    return LuaMutant(f"{script} by bare id", script, old, f"redis.call('ZSCORE', {key_and_id})")


LUA_MUTANTS = [
    *(
        LuaMutant(f"{verb} without the lease", verb, LEASE, "not redis.call('TIME')")
        for verb in ("claim", "fire", "settle", "retry", "bury", "park", "offer", "unpark",
                     "reclaim", "count", "mend")
    ),
    LuaMutant("renew without the lease", "renew", LEASE, "not redis.call('TIME')"),
    LuaMutant("renew creates", "renew", "  return false", "  redis.call('SET', KEYS[1], ARGV[1])"),
    LuaMutant("renew misses late claims", "renew", "known and known < claimed", "false"),
    LuaMutant("forgotten claims are renewed", "renew", "known > claimed", "known < 0"),
    LuaMutant("renew tells nothing", "renew", "[2] or ''", "[3] or ''"),
    LuaMutant("release without the lease", "release", LEASE, "not redis.call('TIME')"),
    LuaMutant("settle by bare id", "settle", "tonumber(of or '') == claim", "of"),
    LuaMutant("settle once without notes", "settle", "string.sub(record, 10, 13) .. id", "'    y'"),
    _by_id("retry", "KEYS[3], id"),
    _by_id("bury", "KEYS[2], id"),
    _by_id("park", "KEYS[2], ARGV[i]"),
    _by_id("offer", "KEYS[2], id"),
    LuaMutant("receive gives what is elsewhere", "receive", "not record or", "not record and"),
    LuaMutant("receive leaves the due time", "receive", "local new = until_ms + score % 1",
              "local new = score"),
    LuaMutant("receive counts no delivery", "receive", "count .. ':1:'", "count .. ':0:'"),
    LuaMutant("receive wakes nobody", "receive", "first < tonumber(head", "0 > tonumber(head"),
    LuaMutant("receive takes what is not due", "receive", "now + 1)", "now + 10000)"),
    LuaMutant("finished under any receipt", "cancel", "$') ~= receipt", "$') == ''"),
    LuaMutant("moved under any receipt", "reschedule", "$') ~= receipt", "$') == ''"),
    LuaMutant("a receipt outlives a release", "reschedule", "ARGV[11] == '1'", "receipt ~= ''"),
    LuaMutant("an extended receipt is void", "reschedule", "ARGV[11] == '1'", "ARGV[11] == '2'"),
    LuaMutant("seen removes what is only reported", "fire", "'-inf', ARGV[5]", "'-inf', '+inf'"),
    LuaMutant("nothing is acknowledged", "fire", "'-inf', ARGV[5]", "'-inf', '-inf'"),
    LuaMutant("a late fire lowers the watermark", "fire", "or -1) >= turn", "or -1) < -1"),
    LuaMutant("the first fire does not replace", "fire", "or -1) >= turn", "or -1) >= 0"),
    LuaMutant("forgotten claims are fired", "fire", "last_claim > claimed", "last_claim < 0"),
    LuaMutant("forgotten claims are claimed", "claim", "last_claim > claimed", "last_claim < 0"),
    LuaMutant("a lost batch is gone", "claim", "again = last_claim < claimed", "again = false"),
    LuaMutant("claim promises to look at once", "claim", "math.min(look + ", "math.min(now + "),
    LuaMutant("reclaim takes everything", "reclaim", "'(' .. string.match(ARGV[1], ':(%d+)$')",
              "'+inf'"),
    LuaMutant("reclaim counts what was not fired", "reclaim", "claim <= fired_claim and ", ""),
    LuaMutant("acquire keeps revocations", "acquire", "redis.call('DEL', KEYS[3])", ""),
    LuaMutant("acquire keeps the last claim", "acquire", "'claimed', turn, ", ""),
    LuaMutant("cancel: fired is a score", "cancel", "claim <= tonumber(fired[2] or -1) and ", ""),
    LuaMutant("cancel revokes nothing", "cancel", "redis.call('ZADD', KEYS[9],", "tostring("),
    LuaMutant("cancel forgets parked ones", "cancel", "redis.call('ZREM', KEYS[5], id) == 0",
              "true"),
    LuaMutant("cancel sent again", "cancel", "if past then", "if false then"),
    LuaMutant("reschedule: fired is a score", "reschedule",
              "claim <= tonumber(marks[2] or -1) and ", ""),
    LuaMutant("reschedule never says maybe", "reschedule", "maybe == '0' and RESCHEDULED or",
              "RESCHEDULED or"),
    LuaMutant("reschedule wakes nobody", "reschedule", "if new < tonumber(head",
              "if 0 > tonumber(head"),
    LuaMutant("reschedule sent again", "reschedule", "if past then", "if false then"),
    LuaMutant("mended after a claim", "mend", "marks[1] ~= ", "'' == "),
    LuaMutant("orphans lose their time", "mend", "'%.17g', score)", "'%.17g', score + 1000)"),
    LuaMutant("dead orphans live again", "mend",
              "reason and reason ~= 'payload_missing' or not score", "not score"),
    LuaMutant("a fire that vanished is forgotten", "mend", "if score <= fired_score or", "if"),
    LuaMutant("cancel revokes no orphan", "cancel", "redis.call('ZREM', KEYS[6], id) == 0",
              "false"),
    LuaMutant("cancel says no maybe of an orphan", "cancel", "<= fired_score and", "< 0 and"),
    LuaMutant("reschedule revokes no orphan", "reschedule", "not (claim or was_parked)", "false"),
    LuaMutant("replace revokes no orphan", "schedule", "redis.call('ZREM', KEYS[6], id) == 0",
              "redis.call('ZREM', KEYS[6], id) == 9"),
    LuaMutant("kick sent again", "kick", "if past then", "if false then"),
    LuaMutant("schedule sent again", "schedule", "if past and past % 1 * 256 ~= IN_FLIGHT then",
              "if false then"),
    LuaMutant("schedule: own stamp unknown", "schedule", "string.sub(old, 10, 13) == stamp",
              "false"),
    LuaMutant("schedule: fired is a score", "schedule",
              "return claim and claim <= tonumber(fired[2] or -1) and", "return claim and"),
    LuaMutant("schedule: a fired message is pending", "schedule", "is_fired(id, its_score) then",
              "policy == REPLACE and is_fired(id, its_score) then"),
    LuaMutant("schedule: what is held is pending", "schedule", "elseif is_held then",
              "elseif false then"),
    LuaMutant("schedule: held for ever", "schedule", "tried and math.floor(its_score) > now",
              "tried"),
    LuaMutant("schedule: a duplicate leaves the receipt", "schedule", "ends and end_receipt",
              "false and end_receipt"),
    LuaMutant("touch replaces what is there", "schedule", "string.sub(old, 10, 13) ~= only",
              "false"),
    LuaMutant("touch undoes a reschedule", "schedule", "or its_score ~= score or is_held",
              "or is_held"),
    LuaMutant("touch stores what is gone", "schedule", "if only and redis.call('HEXISTS'",
              "if false and redis.call('HEXISTS'"),
    LuaMutant("replace revokes nothing", "schedule", "redis.call('ZADD', KEYS[9],", "tostring("),
    LuaMutant("replace forgets maybe", "schedule", "string.match(tried, ':(%d)') ~= '0'", "false"),
    LuaMutant("debounce: each call sets another end", "schedule",
              "last_ms > 0 and last_ms or now + longest", "now + longest"),
    LuaMutant("debounce: it is not bounded", "schedule", "math.min(now + span, last_ms)",
              "now + span"),
    LuaMutant("throttle: no span", "schedule", "      note_span(id, due_ms + span)", ""),
    LuaMutant("throttle: a span is one too long", "schedule",
              "ends_ms - span > left and ends_ms - span or ends_ms", "ends_ms"),
    LuaMutant("gathered: what is due is replaced", "schedule",
              "waits and not is_again and is_leaving", "false and is_leaving"),
    LuaMutant("gathered: what was due long ago leaves", "schedule",
              "due_ms > now - LEAVES_MS or", "true or"),
    LuaMutant("gathered: each call makes it leave", "schedule",
              "math.max(now - LEAVES_MS, math.floor(its_score))", "now"),
    LuaMutant("gathered: what is parked leaves", "schedule",
              "due_ms <= now and not redis.call('ZSCORE', KEYS[5], id)", "due_ms <= now"),
    LuaMutant("gathered: no note", "schedule", "remember(stamp, id, answer == KEPT",
              "tostring(answer == KEPT"),
    LuaMutant("gathered: another kind is replaced", "schedule",
              "gathers and not begins_as(payload_of(old)", "false and begins_as(payload_of(old)"),
    LuaMutant("gathered: a dead one waits", "schedule",
              "and not redis.call('ZSCORE', KEYS[6], id)\n", "\n"),
    LuaMutant("schedule_one knows no undone call", "schedule_one",
              "if redis.call('ZSCORE', KEYS[4]", "if false and redis.call('ZSCORE', KEYS[4]"),
    LuaMutant("schedule_one knows no delivered id", "schedule_one",
              "redis.call('ZSCORE', KEYS[9], id)", "false"),
    LuaMutant("schedule_one stores twice", "schedule_one",
              "    redis.call('ZREM', KEYS[2], id)\n", ""),
    LuaMutant("schedule_one wakes nobody", "schedule_one", "if head and score < head", "if false"),
    LuaMutant("schedule_one wakes always", "schedule_one",
              "if score < (tonumber(marks[2]) or 0)", "if true"),
    LuaMutant("schedule wakes nobody", "schedule", "if head and first_due < head", "if false"),
    LuaMutant("schedule wakes always", "schedule", "if not head and first_due < look",
              "if not head"),
]  # fmt: skip
