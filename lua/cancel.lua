-- Remove one message that was not handed to the broker yet; nothing of it is delivered afterwards.
--
-- KEYS[1]  messages     hash
-- KEYS[2]  due          zset
-- KEYS[3]  mirror       zset
-- KEYS[4]  attempts     hash
-- KEYS[5]  parked       zset
-- KEYS[6]  dead         zset
-- KEYS[7]  dead_reason  hash
-- KEYS[8]  marks        hash
-- KEYS[9]  revoked      zset
-- KEYS[10] calls        zset
-- KEYS[11] sources      hash
-- KEYS[12] gone         zset
-- KEYS[13] delivered    zset
-- ARGV[1]  now          ms, empty = the store's clock
-- ARGV[2]  stamp        4 bytes, one for each call; a call sent again keeps its stamp
-- ARGV[3]  id
-- ARGV[4]  source       topic and partition that the call was read from; empty: none
-- ARGV[5]  offset       in the source; a call read before is answered unknown and does nothing;
--                       empty: nothing is done unless the source is known to the bucket
-- ARGV[6]  otherwise    1: if nothing is done, the call does not count as read: another follows
-- ARGV[7]  reach        a JSON list of destinations, each a list of Lua patterns that follow each other:
--                       only a message bound for one of them is removed; = and 12 bytes, score and
--                       stamp: only one whose head has them; empty: any
-- ARGV[8]  receipt      of a pull topic: the message is removed only if it was given out last with
--                       this one, and wherever it is; empty: any
-- ARGV[9]  row          stamp of the ledger's row, if the message is to be cancelled though it is not
--                       here; then it is not brought here any more; ?: only answer with the stamp of
--                       the one that is removed; empty: neither
-- returns  answer: 0 unknown, 5 in flight, 6 cancelled, 7 cancelled, may have been delivered, 14
--          foreign: bound for a destination outside the reach; with ARGV[9] a list: the answer, and
--          the stamp of the call that scheduled the message, empty if none was removed now; with 0 that
--          of the row, if its message has left
-- cost     O(log n)
local UNKNOWN, REPLACED, IN_FLIGHT, CANCELLED, CANCELLED_MAYBE, FOREIGN = 0, 4, 5, 6, 7, 14
local KEPT, BEGUN = 18, 19 -- in `calls`, of gathered messages
local PUBLISHED, WITHDRAWN = 1, 2 -- in `gone`
local KEEP_CALLS_MS = 600000
local LATER, NEVER = 'moved\0', '9007199254740991' -- in `calls`, as `lift` has it
local stamp, id, source, reach, receipt = ARGV[2], ARGV[3], ARGV[4], ARGV[7], ARGV[8]

-- After a head of 13 bytes a payload is a MessagePack array; its first item is the destination.
local function is_foreign(record)
  if reach == '' then
    return false
  elseif string.byte(reach) == 61 then
    return string.sub(record, 2, 13) ~= string.sub(reach, 2)
  end
  local ok, _, destination = pcall(cmsgpack.unpack_limit, record, 1, 14)
  for _, parts in ipairs(cjson.decode(reach)) do
    local at = ok and type(destination) == 'string' and 0
    for _, part in ipairs(parts) do
      at = at and select(2, string.find(destination, part, at + 1))
    end
    if at then
      return false
    end
  end
  return true
end

local function with_stamp(answer, row)
  return ARGV[9] == '' and answer or {answer, row or ''}
end

local past = redis.call('ZSCORE', KEYS[10], stamp .. id)
if past then
  return with_stamp(past % 1 * 256)
end
local read = source ~= '' and redis.call('HGET', KEYS[11], source)
if ARGV[5] == '' then
  if not read then
    return with_stamp(UNKNOWN)
  end
  source = ''
elseif source ~= '' and (tonumber(read) or -1) >= tonumber(ARGV[5]) then
  return with_stamp(UNKNOWN)
end
local old = redis.call('HGET', KEYS[1], id)
local is_free = old and not is_foreign(old)

local function count_as_read()
  if source ~= '' and (is_free or ARGV[6] ~= '1') then
    redis.call('HSET', KEYS[11], source, ARGV[5])
  end
end

local now = tonumber(ARGV[1])
if not now then
  local t = redis.call('TIME')
  now = t[1] * 1000 + math.floor(t[2] / 1000)
end

local marks = redis.call('HMGET', KEYS[8], 'generation', 'dedup_ms')
local generation = marks[1] -- if there is a ledger
if generation then
  redis.call('ZCARD', KEYS[12]) -- fails here, before the first write, if it is not a zset
end
local window = receipt ~= '' and tonumber(marks[2]) -- if delivered ids are kept
if window then
  redis.call('ZCARD', KEYS[13]) -- the same
end

-- Keep it for the ledger; and if its schedule is sent again, it must not revive the message.
local function forget(row, how)
  if generation then
    redis.call('ZADD', KEYS[12], string.format('%.17g', generation + how / 256), row .. id)
  end
  redis.call('ZADD', KEYS[10], string.format('%.17g', now + CANCELLED / 256), row .. id)
end

-- Whether the row's message has left, or was never here: its call was refused. Another one that was
-- stored may be lost.
local function has_left(row)
  local known = redis.call('ZSCORE', KEYS[10], row .. id)
  local its = known and known % 1 * 256
  return redis.call('ZSCORE', KEYS[12], row .. id)
    or its and its ~= REPLACED and its ~= KEPT and its ~= BEGUN
end

if not old and #ARGV[9] == 4 and has_left(ARGV[9]) then
  return with_stamp(UNKNOWN, ARGV[9])
elseif not old and #ARGV[9] == 4 and redis.call('HEXISTS', KEYS[8], 'cut') == 1 then
  redis.call('ZADD', KEYS[10], NEVER, LATER .. id) -- where it would be brought to, it is noted
  return with_stamp(UNKNOWN)
elseif not old and #ARGV[9] == 4 then
  forget(ARGV[9], WITHDRAWN)
  redis.call('ZADD', KEYS[10], string.format('%.17g', now + CANCELLED / 256), stamp .. id)
  return with_stamp(CANCELLED, ARGV[9])
elseif not is_free then
  count_as_read()
  return with_stamp(old and FOREIGN or UNKNOWN)
end
local claim = tonumber(redis.call('ZSCORE', KEYS[3], id) or '')
local tried = redis.call('HGET', KEYS[4], id)
if receipt ~= '' then -- only `receive` delivers it: also a fired copy can be removed
  if string.match(tried or '', '^%d+:%d:%d*:(%d+)$') ~= receipt then
    return with_stamp(UNKNOWN)
  end
elseif claim then
  local fired = redis.call('HMGET', KEYS[8], 'fired_score', 'fired_claim')
  local score = struct.unpack('>d', old, 2)
  if claim <= tonumber(fired[2] or -1) and score <= tonumber(fired[1] or -1) then
    count_as_read()
    return with_stamp(IN_FLIGHT)
  end
end
local answer = tried and string.match(tried, ':(%d)') ~= '0' and CANCELLED_MAYBE or CANCELLED

-- Without a source the first write cannot grow memory: a full Redis still removes messages.
count_as_read()
local was_due = redis.call('ZREM', KEYS[2], id) == 1
if claim then -- it is revoked also if `due`, come back as it was long ago, still has it
  redis.call('ZADD', KEYS[9], redis.call('HINCRBY', KEYS[8], 'turn', 1), id)
  redis.call('ZREM', KEYS[3], id)
elseif not was_due and redis.call('ZREM', KEYS[5], id) == 0 then
  redis.call('HDEL', KEYS[7], id)
  if redis.call('ZREM', KEYS[6], id) == 0 then
    -- It was in no set, as a key has vanished: a copy may be on a wheel, or even be fired.
    redis.call('ZADD', KEYS[9], redis.call('HINCRBY', KEYS[8], 'turn', 1), id)
    local fired_score = tonumber(redis.call('HGET', KEYS[8], 'fired_score') or -1)
    answer = struct.unpack('>d', old, 2) <= fired_score and CANCELLED_MAYBE or answer
  end
end
redis.call('HDEL', KEYS[1], id)
redis.call('HDEL', KEYS[4], id, id .. '\0')
if receipt == ''
  and type(redis.pcall('HINCRBY', KEYS[8], 'cancelled', '1')) ~= 'number' then
  redis.call('HSET', KEYS[8], 'cancelled', '1') -- it was not a number: it begins again
end
local old_calls = redis.call('ZRANGEBYSCORE', KEYS[10], '-inf', now - KEEP_CALLS_MS,
  'LIMIT', 0, 100)
if #old_calls > 0 then
  redis.call('ZREM', KEYS[10], unpack(old_calls))
end
redis.call('ZADD', KEYS[10], string.format('%.17g', now + answer / 256), stamp .. id)
forget(string.sub(old, 10, 13), receipt ~= '' and PUBLISHED or WITHDRAWN)
if window then -- its consumer has finished it
  local expired = redis.call('ZRANGEBYSCORE', KEYS[13], '-inf', now, 'LIMIT', 0, 100)
  if #expired > 0 then
    redis.call('ZREM', KEYS[13], unpack(expired))
  end
  redis.call('ZADD', KEYS[13], 'GT', string.format('%.0f', now + window), id)
end
return with_stamp(answer, string.sub(old, 10, 13))
