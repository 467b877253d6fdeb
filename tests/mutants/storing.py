"""Mutants of the store and of its Lua scripts."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

BUCKET = (
    "tests/integration/test_store_schedule.py tests/integration/test_store_resend.py"
    " tests/integration/test_store_clock.py"
)
DURABLE = "tests/unit/test_durability_gate.py tests/integration/test_durability.py"
LEDGER = "tests/integration/test_ledger.py"
PULL = "tests/integration/test_pull.py"
RECURRING = "tests/integration/test_recurring.py"
SELECTION = "tests/integration/test_selection.py"
SENTINELS = "tests/unit/test_sentinels.py"
WIRE = "tests/unit/test_wire.py"

MUTANTS = [
    Mutant(
        "sentinels: the oldest epoch", "delaybridge/store/sentinels.py",
        "latest = max(found, default=", "latest = min(found, default=",
        "writes go to a master that was replaced, and are lost", SENTINELS,
    ),
    Mutant(
        "sentinels: those who know are silent", "delaybridge/store/sentinels.py",
        "if latest.epoch < self._epoch and 2 * len(found) <= len(self._wires):", "if False:",
        "one Sentinel that was cut off leads back to a master of the past", SENTINELS,
    ),
    Mutant(
        "sentinels: one that is silent", "delaybridge/store/sentinels.py",
        "if one is not None and one.address == known:", "if one is None or one.address == known:",
        "a silent Sentinel is taken to know of no fail-over", SENTINELS,
    ),
    Mutant(
        "sentinels: none is asked after a failed call", "delaybridge/store/servers.py",
        "            self._doubts += 1\n", "            pass\n",
        "a master that was replaced and comes back gets writes, and all are lost", SENTINELS,
    ),
    Mutant(
        "sentinels: one is asked in doubt", "delaybridge/store/servers.py",
        "self._sentinels.master(self._master if doubt == self._settled else None)",
        "self._sentinels.master(self._master)",
        "after a failed call the one that has not heard of the fail-over is believed", SENTINELS,
    ),
    Mutant(
        "wire: a connection to a server that moved", "delaybridge/store/wire.py",
        "if self._closed or connection.generation != self.generation:", "if self._closed:",
        "calls go on to the server that was replaced", WIRE,
    ),
    Mutant(
        "wire: others on a broken path", "delaybridge/store/wire.py",
        "            self.close_idle()  # the others probably take the same broken path\n",
        "            pass\n",
        "each idle connection costs one more time-out", WIRE,
    ),
    Mutant(
        "ids: the same in a child", "delaybridge/store/ids.py",
        "if time.monotonic() < until_s and pid == os.getpid():", "if time.monotonic() < until_s:",
        "a forked process draws the ids of its parent", "tests/unit/test_ids.py",
    ),
    Mutant(
        "gate: WAITAOF of 7.2", "delaybridge/store/gate.py",
        "if word.isdigit()) >= _HAS_WAITAOF", "if word.isdigit()) > _HAS_WAITAOF",
        "Redis 7.2 is refused", DURABLE,
    ),
    Mutant(
        "gate: a replica too many", "delaybridge/store/gate.py",
        "if online < wanted:", "if online <= wanted:",
        "as many replicas as are asked for are too few", DURABLE,
    ),
    Mutant(
        "durability: one replica is enough", "delaybridge/store/durability.py",
        "if reply >= self._asked.replicas:", "if reply >= 1:",
        "a write is confirmed that only some of the replicas have", DURABLE,
    ),
    Mutant(
        "durability: no write before WAIT", "delaybridge/store/durability.py",
        'words: list[tuple[Any, ...]] = [("SET", _beside(command), 1)]',
        'words: list[tuple[Any, ...]] = [("GET", _beside(command))]',
        "a duplicate is confirmed that no replica has", DURABLE,
    ),
    Mutant(
        "quota: one message more", "delaybridge/store/quota.py",
        "round(counted[label]) >= limit", "round(counted[label]) > limit",
        "limits are exceeded by one", "tests/unit/test_quota.py",
    ),
    Mutant(
        "idempotency: the second try counts", "delaybridge/store/idempotency.py",
        'plain("HSETNX", key, "record"', 'plain("HSET", key, "record"',
        "two tries at once store two messages", "tests/integration/test_http_idempotency.py",
    ),
    Mutant(
        "selection: the last due time", "delaybridge/store/selection.py",
        "due_ms <= high)", "due_ms < high)",
        "a message due at the end of the span is left out", SELECTION,
    ),
    Mutant(
        "selection: the first page only", "delaybridge/store/selection.py",
        "return found, bound_for[-1][:2] if page.more else None", "return found, None",
        "a bulk verb stops after 500 messages of a bucket", SELECTION,
    ),
    Mutant(
        "selection: a record at the page's edge", "delaybridge/store/selection.py",
        "(rows[-1].score, rows[-1].id) if more else None",
        "(rows[-1].score + 1, rows[-1].id) if more else None",
        "a bulk verb with a filter leaves out what is due with a page's last message", SELECTION,
    ),
    Mutant(
        "agreement: a later due time", "delaybridge/store/agreement.py",
        "int(call.score) < due_ms)", "int(call.score) <= due_ms)",
        "a new session drops and restores each message", LEDGER,
    ),
    Mutant(
        "agreement: the end of a page", "delaybridge/store/agreement.py",
        "            after = calls[-1].score, calls[-1].id\n", "            more = False\n",
        "of a bucket only 1000 messages are compared", LEDGER,
    ),
    # Lua
    Mutant(
        "define: without the progress", "lua/define.lua",
        "if now ~= before or progress ~= ARGV[4] then", "if now ~= before then",
        "a worker that was slow repeats runs that another has made", RECURRING,
    ),
    Mutant(
        "recur: without the pause", "lua/recur.lua",
        "now + ARGV[2]), name)", "now), name)",
        "all workers make the same runs at once", RECURRING,
    ),
    Mutant(
        "receive: 1 ms short", "lua/receive.lua",
        "now + ARGV[5] + (ARGV[1] == '' and 1 or 0)", "now + ARGV[5]",
        "a message comes again before the time to run has ended", PULL,
    ),
    Mutant(
        "receive: a record more", "lua/receive.lua",
        "size + #record > bytes then", "size > bytes then",
        "an answer is larger than its bound by one record", PULL,
    ),
    Mutant(
        "claim: a record more", "lua/claim.lua",
        "elseif size < bytes then", "elseif size <= bytes then",
        "a claim is larger than its bound by one record", BUCKET,
    ),
    Mutant(
        "allow: rounded down", "lua/allow.lua",
        "math.ceil(spent + granted * each_us)", "math.floor(spent + granted * each_us)",
        "a rate is exceeded by a little, all the time", "tests/integration/test_allow.py",
    ),
    Mutant(
        "acquire: a dead owner after a clock step", "lua/acquire.lua",
        "if left < 0 or left > ttl then", "if left < 0 then",
        "a bucket has no worker until the clock is where it was", BUCKET,
    ),
    Mutant(
        "set_rule: without the comparison", "lua/set_rule.lua",
        "elseif now ~= ARGV[2] then", "elseif false then",
        "of two changes of a rule at once, one is lost", "tests/integration/test_rules.py",
    ),
    Mutant(
        "fence: twice", "lua/fence.lua",
        "if read and read < FENCED then", "if read then",
        "a source that was fenced twice has lost where it was",
        "tests/integration/test_store_ingest.py tests/integration/test_ingest_owners.py",
    ),
    Mutant(
        "settle: errors stay", "lua/settle.lua",
        "        redis.call('HDEL', KEYS[4], unpack(errors_of(ids)))\n", "",
        "each message that failed once leaves an entry for ever", BUCKET,
    ),
    Mutant(
        "kick: it may have arrived", "lua/kick.lua",
        "redis.call('HSET', KEYS[3], id, '0:1:')", "redis.call('HSET', KEYS[3], id, '0:0:')",
        "a kicked message that may have arrived is cancelled as if it had not", BUCKET,
    ),
    Mutant(
        "trim: an age at the bound", "lua/trim.lua",
        "local count = math.min(beyond, tonumber(ARGV[6]))",
        "local count = math.min(beyond + 1, tonumber(ARGV[6]))",
        "one dead message more than asked for is dropped", "tests/integration/test_cli.py -k trim",
    ),
    Mutant(
        "seal: a lost write", "lua/seal.lua",
        "if known and known >= sealed then", "if known and known > sealed then",
        "what the ledger was told is removed from a Redis that went back", LEDGER,
    ),
    Mutant(
        "drop: another call's message", "lua/drop.lua",
        "if record and string.sub(record, 10, 13) == ARGV[i + 1] then", "if record then",
        "a message that was scheduled meanwhile is dropped for the one that has ended", LEDGER,
    ),
    Mutant(
        "record: a sample counts twice", "lua/record.lua",
        "number <= workers[instance][2] then", "number < workers[instance][2] then",
        "a sample sent again is counted again", "tests/integration/test_series.py",
    ),
]  # fmt: skip
