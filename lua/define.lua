-- Write a recurring definition, its progress and its next look, if both are still as the caller read them.
--
-- KEYS[1]  recurring       hash
-- KEYS[2]  recurring_due   zset
-- KEYS[3]  recurring_state hash
-- KEYS[4]  controls        hash
-- KEYS[5]  unrecorded      zset
-- ARGV[1]  name
-- ARGV[2]  before       the definition as it was read; empty: there was none
-- ARGV[3]  after        the definition; empty: remove it
-- ARGV[4]  progress     as it was read; empty: there was none
-- ARGV[5]  done         the progress from now on; empty: none
-- ARGV[6]  look         epoch ms: when a worker looks at it; empty: never
-- ARGV[7]  limit        definitions
-- ARGV[8]  again        1: it is a change though it is as it was
-- ARGV[9]  now          ms, empty = the store's clock
-- ARGV[10] recorded     1: the caller has a ledger
-- returns  1 it is written, 0 another call was faster: read it again, -1 there are `limit` definitions;
--          then the time of the change, 0 if the ledger need not know of it
-- cost     O(log n)
local name, before, after = ARGV[1], ARGV[2], ARGV[3]
local now = redis.call('HGET', KEYS[1], name) or ''
local progress = redis.call('HGET', KEYS[3], name) or ''
local clock = redis.call('HGET', KEYS[4], 'clock')
local told = redis.call('ZSCORE', KEYS[5], 'definition:' .. name)
redis.call('ZCARD', KEYS[2]) -- fails here, before the first write, if it is not a zset
if now ~= before or progress ~= ARGV[4] then
  local done = now == after and progress == ARGV[5]
  return {done and 1 or 0, done and tonumber(told) or 0}
elseif now == '' and after ~= '' and redis.call('HLEN', KEYS[1]) >= tonumber(ARGV[7]) then
  return {-1, 0}
end
-- What cannot grow memory comes first: a full Redis also removes definitions.
redis.call('HDEL', KEYS[3], name)
if ARGV[6] == '' then
  redis.call('ZREM', KEYS[2], name)
end
if after == '' then
  redis.call('HDEL', KEYS[1], name)
else
  redis.call('HSET', KEYS[1], name, after)
end
if ARGV[5] ~= '' then
  redis.call('HSET', KEYS[3], name, ARGV[5])
end
if ARGV[6] ~= '' then
  redis.call('ZADD', KEYS[2], ARGV[6], name)
end
-- The ledger may have a later change that Redis lost.
if after == before and ARGV[8] ~= '1' or not (clock or ARGV[10] == '1') then
  return {1, 0}
end
-- Later than every other change, also after the clock was set back.
local at = tonumber(ARGV[9])
if not at then
  local t = redis.call('TIME')
  at = t[1] * 1000 + math.floor(t[2] / 1000)
end
at = math.max(at, (tonumber(clock) or 0) + 1)
local text = string.format('%.0f', at)
redis.call('HDEL', KEYS[4], 'definition:' .. name)
if after ~= '' then
  redis.call('HSET', KEYS[4], 'definition:' .. name, text)
end
redis.call('HSET', KEYS[4], 'clock', text, 'definitions', redis.call('HLEN', KEYS[1]))
redis.call('ZADD', KEYS[5], text, 'definition:' .. name)
return {1, at}
