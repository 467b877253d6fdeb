"""Mutants of what is sealed, told as left, restored and dropped in a bucket; and of controls."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

_ONE_BUCKET = "tests/integration/test_store_ledger.py"
_TALLY = "tests/integration/test_tally.py"
_TRIM = "tests/integration/test_trim.py"
_REINSTATING = "tests/integration/test_reinstating.py"
MUTANTS = [
    Mutant(
        "restore: a reading of long ago", "lua/restore.lua",
        "passed > 1 then", "passed > 2 then",
        "what left, and is forgotten, comes back", f"{_ONE_BUCKET} -k last_seal_but_one",
    ),
    Mutant(
        "restore: a reading of the future", "lua/restore.lua",
        "or passed < 0 or passed > 1", "or passed > 1",
        "what left since an older past comes back", f"{_ONE_BUCKET} -k has_forgotten",
    ),
    Mutant(
        "restore: another comparison", "lua/restore.lua",
        "(marks[3] or '') ~= ARGV[3] or passed", "passed",
        "what was cancelled before a wipe comes back", f"{_ONE_BUCKET} -k another_comparison",
    ),
    Mutant(
        "restore: calls are not looked at", "lua/restore.lua",
        " or has_ended(stamp .. id) then", " then",
        "what was cancelled before the first seal comes back",
        f"{_ONE_BUCKET} -k undone_or_refused",
    ),
    Mutant(
        "restore: gone is not looked at", "lua/restore.lua",
        "redis.call('ZSCORE', KEYS[7], stamp .. id) or ", "",
        "what was delivered comes again", f"{_ONE_BUCKET} -k what_left",
    ),
    Mutant(
        "restore: nobody wakes up", "lua/restore.lua",
        "if first_due < look then", "if false then",
        "a restored message is late", f"{_ONE_BUCKET} -k wakes",
    ),
    Mutant(
        "restore: a sharded channel", "lua/restore.lua",
        "redis.call('SPUBLISH', string.sub(ARGV[4], 2), text)",
        "redis.call('PUBLISH', ARGV[4], text)",
        "on a Cluster a restored message is late", f"{_ONE_BUCKET} -k wakes",
    ),
    Mutant(
        "restore: the last due, not the first", "lua/restore.lua",
        "first_due = math.min(first_due, score)", "first_due = math.min(math.huge, score)",
        "an owner is told no time at which to look", f"{_ONE_BUCKET} -k wakes",
    ),
    Mutant(
        "restore: any birth id", "lua/restore.lua",
        "if marks[1] and marks[1] ~= ARGV[1] then", "if false then",
        "messages of another namespace come into this one", f"{_ONE_BUCKET} -k whose_ledger",
    ),
    Mutant(
        "restore: another call is this one", "lua/restore.lua",
        "stamp and HERE or OTHER", "stamp and HERE or HERE",
        "a call that was never answered counts as restored", f"{_ONE_BUCKET} -k only_as_the_call",
    ),
    Mutant(
        "restore: maybe is forgotten", "lua/restore.lua",
        "if tried and string.match(tried, ':(%d)') ~= '0' then", "if false then",
        "a cancel answers `cancelled` though a copy may have arrived", f"{_ONE_BUCKET} -k attempts",
    ),
    Mutant(
        "restore: dead as before", "lua/restore.lua",
        "if redis.call('HGET', KEYS[4], id) == 'payload_missing' then", "if false then",
        "a restored message is dead, and is delivered", f"{_ONE_BUCKET} -k buried_without",
    ),
    Mutant(
        "restore: priority", "lua/restore.lua",
        "string.format('%.17g', score), id)", "string.format('%.0f', score), id)",
        "restored messages go out in another order", f"{_ONE_BUCKET} -k priority",
    ),
    Mutant(
        "seal: one seal early", "lua/seal.lua",
        "'(' .. string.format('%.0f', known)", "string.format('%.0f', known + 1)",
        "a restore brings back what left just before", f"{_ONE_BUCKET} -k second_seal",
    ),
    Mutant(
        "seal: nothing is forgotten", "lua/seal.lua",
        "if known then\n  redis.call('ZREM", "if false then\n  redis.call('ZREM",
        "`gone` grows for ever", f"{_ONE_BUCKET} -k second_seal",
    ),
    Mutant(
        "seal: writes were lost, one", "lua/seal.lua",
        "known >= sealed", "known > sealed",
        "a bucket of an older past goes on", f"{_ONE_BUCKET} -k lost_writes",
    ),
    Mutant(
        "seal: without the lease", "lua/seal.lua",
        "if redis.call('GET', KEYS[1]) ~= ARGV[1] then", "if false then",
        "a worker that lost the bucket says that it is compared",
        f"{_ONE_BUCKET} -k without_the_lease",
    ),
    Mutant(
        "seal: healed is forgotten", "lua/seal.lua",
        "if ARGV[4] ~= '' then\n  redis", "if true then\n  redis",
        "each seal makes the bucket to be compared again", f"{_ONE_BUCKET} -k name_of_the_last",
    ),
    Mutant(
        "settle: the second 500", "lua/settle.lua",
        "unpack(ARGV, i, last)}", "unpack(ARGV, at + 2, at + 2 + last - i)}",
        "of more than 500 messages some stay in flight for good", f"{_ONE_BUCKET} -k five_hundred",
    ),
    Mutant(
        "settle: 500 at most", "lua/settle.lua",
        "for i = at + 2, at + 1 + size, 500 do",
        "for i = at + 2, math.min(at + 501, at + 1 + size), 500 do",
        "the others are published, and come again", f"{_ONE_BUCKET} -k five_hundred",
    ),
    Mutant(
        "settle: withdrawn, not published", "lua/settle.lua",
        "generation + PUBLISHED / 256", "generation + 2 * PUBLISHED / 256",
        "what was delivered is cancelled in the ledger", f"{_ONE_BUCKET} -k what_left",
    ),
    Mutant(
        "settle: at most once is not kept", "lua/settle.lua",
        "if generation then\n        keep(ids)",
        "if generation and not once then\n        keep(ids)",
        "what was delivered at most once comes again after a wipe", f"{_ONE_BUCKET} -k what_left",
    ),
    Mutant(
        "settle: kept for the next seal", "lua/settle.lua",
        "'%.17g', generation + PUBLISHED", "'%.17g', generation + 1 + PUBLISHED",
        "what left is told to the ledger a seal too late", f"{_ONE_BUCKET} -k second_seal",
    ),
    Mutant(
        "settle: at most once, sent again", "lua/settle.lua",
        "redis.call('ZADD', KEYS[5], score, string.sub(record, 10, 13) .. id)", "tostring(score)",
        "a call that is sent again publishes its message again", f"{_ONE_BUCKET} -k sent_again",
    ),
    Mutant(
        "tally: the latest due", "lua/tally.lua",
        "tonumber(score) < tonumber(firsts[destination])",
        "tonumber(score) > tonumber(firsts[destination])",
        "a destination looks on time though it is late", f"{_TALLY} -k first_of_each",
    ),
    Mutant(
        "tally: one seed", "lua/tally.lua",
        "math.randomseed(tonumber(ARGV[3]))", "math.randomseed(1)",
        "each look at a large bucket sees the same messages", f"{_TALLY} -k first_of_each",
    ),
    Mutant(
        "trim: not gone", "lua/trim.lua",
        "    if generation then\n", "    if false then\n",
        "a message that was dropped comes back dead", f"{_ONE_BUCKET} -k what_left",
    ),
    Mutant(
        "trim: published", "lua/trim.lua",
        "WITHDRAWN / 256", "1 / 256",
        "what was never delivered is published in the ledger", f"{_ONE_BUCKET} -k what_left",
    ),
    Mutant(
        "trim: a note of the call", "lua/trim.lua",
        "string.format('%.17g', now + CANCELLED / 256), string.sub(old, 10, 13) .. id)",
        "'0', string.sub(old, 10, 13) .. id)",
        "a schedule that is sent again revives a dropped message", f"{_TRIM} -k its_call_is_known",
    ),
    Mutant(
        "trim: one too old", "lua/trim.lua",
        "'(' .. string.format('%.0f', now - ARGV[5])", "string.format('%.0f', now - ARGV[5])",
        "a message is dropped before its age", f"{_TRIM} -k whichever_bound",
    ),
    Mutant(
        "trim: the fewer of two bounds", "lua/trim.lua",
        "math.max(beyond, old)", "math.min(beyond, old)",
        "the dead set outgrows one of its bounds", f"{_TRIM} -k whichever_bound",
    ),
    Mutant(
        "trim: more than the limit", "lua/trim.lua",
        "local count = math.min(beyond, tonumber(ARGV[6]))", "local count = beyond",
        "one call drops all, and Redis answers nobody meanwhile", f"{_TRIM} -k whichever_bound",
    ),
    Mutant(
        "trim: what is parked is deleted", "lua/trim.lua",
        "or redis.call('ZSCORE', KEYS[8], id)) then", ") then",
        "a message that waits is lost", f"{_TRIM} -k another_set",
    ),
    Mutant(
        "trim: bare", "lua/trim.lua",
        "bare = bare + (old and 0 or 1)", "bare = bare + (old and 1 or 1)",
        "the count of messages without records is too low", f"{_TRIM} -k bare",
    ),
    Mutant(
        "trim: a message in ready", "lua/trim.lua",
        "or '') ~= score then", "or '') == score then",
        "a consumer never gets what is ready", f"{_TRIM} -k ready",
    ),
    Mutant(
        "controls: one page", "delaybridge/ledger/comparing/reinstating.py",
        "for i in range(0, len(controls), _PAGE))",
        "for i in range(0, min(1, len(controls)), _PAGE))",
        "all rules but two hundred are lost", f"{_REINSTATING} -k every_page",
    ),
    Mutant(
        "controls: another server's comparison", "delaybridge/ledger/comparing/reinstating.py",
        'is_pending = of_run == f"?{run}" and', 'is_pending = of_run[:1] == "?" and',
        "after a restart nothing is claimed for fifteen seconds", f"{_REINSTATING} -k of_this_run",
    ),
    Mutant(
        "controls: a clock set back", "delaybridge/ledger/comparing/reinstating.py",
        "0 <= now_ms - int(last_ms) <", "now_ms - int(last_ms) <",
        "nothing is claimed until the clock is where it was", f"{_REINSTATING} -k of_this_run",
    ),
    Mutant(
        "controls: removed, and lost", "delaybridge/ledger/comparing/reinstating.py",
        "return bool(control.value) or control.key in lost", "return bool(control.value)",
        "each comparison counts a rule that was removed long ago",
        f"{_REINSTATING} -k leaves_no_time",
    ),
    Mutant(
        "controls: a change that is gone", "delaybridge/ledger/comparing/reinstating.py",
        "return None if found < 0 else changed", "return changed",
        "a worker goes on by rules that are not those of Redis", f"{_REINSTATING} -k last_call",
    ),
    Mutant(
        "controls: a backfill from its second run", "delaybridge/ledger/comparing/resuming.py",
        'int(found.get("from_ms", 1)) - 1', 'int(found.get("from_ms", 1))',
        "the first run of a backfill is lost", f"{_REINSTATING} -k backfill",
    ),
    Mutant(
        "controls: back to the ledger's run", "delaybridge/ledger/comparing/resuming.py",
        "if at_ms is None or int(at_ms) < plan[2]", "if True",
        "runs that were left out are made", f"{_REINSTATING} -k backfill",
    ),
    Mutant(
        "controls: without a time", "delaybridge/ledger/comparing/reinstating.py",
        "wanted = [each for key, each in new.items() if not here[key].changed_ms]", "wanted = []",
        "a rule from before the ledger is of now at each comparison",
        f"{_REINSTATING} -k every_page",
    ),
    Mutant(
        "controls: others are recorded", "delaybridge/ledger/comparing/reinstating.py",
        'plain("ZREMRANGEBYSCORE", name, at_ms, at_ms, parse=int)',
        'plain("ZREMRANGEBYSCORE", name, "-inf", at_ms, parse=int)',
        "a change that the ledger lacks is forgotten", f"{_REINSTATING} -k earlier_stays",
    ),
]  # fmt: skip
