-- Set or remove the rule of one place, if it is still the one that the caller has read.
--
-- KEYS[1]  destinations hash
-- KEYS[2]  controls     hash
-- KEYS[3]  unrecorded   zset
-- ARGV[1]  place
-- ARGV[2]  before       JSON as it was read; empty: there was none
-- ARGV[3]  after        JSON; empty: remove it
-- ARGV[4]  limit        rules
-- ARGV[5]  channel      where the fleet listens
-- ARGV[6]  recorded     1: the caller has a ledger
-- returns  1 the rule is set, 0 another call was faster: read it again, -1 there are `limit` rules;
--          then the time of the change, 0 if the ledger need not know of it
-- cost     O(log n)
local now = redis.call('HGET', KEYS[1], ARGV[1]) or ''
local name = 'rule:' .. ARGV[1]
local clock = redis.call('HGET', KEYS[2], 'clock')
local told = redis.call('ZSCORE', KEYS[3], name)
-- The ledger may have a rule that Redis lost: its removal is a change.
local unseen = now == '' and ARGV[6] == '1' and not told
if now == ARGV[3] and not unseen then
  return {1, tonumber(told or redis.call('HGET', KEYS[2], name) or 0)}
elseif now ~= ARGV[2] then
  return {0, 0}
elseif now == '' and ARGV[3] ~= '' and redis.call('HLEN', KEYS[1]) >= tonumber(ARGV[4]) then
  return {-1, 0}
end
-- The first write cannot grow memory: a destination can also be paused while Redis is full.
redis.call('HDEL', KEYS[1], ARGV[1])
if ARGV[3] ~= '' then
  redis.call('HSET', KEYS[1], ARGV[1], ARGV[3])
end
local at = 0
if clock or ARGV[6] == '1' then
  -- Later than every other change, also after the clock was set back.
  local t = redis.call('TIME')
  at = math.max(t[1] * 1000 + math.floor(t[2] / 1000), (tonumber(clock) or 0) + 1)
  local text = string.format('%.0f', at)
  redis.call('HDEL', KEYS[2], name)
  if ARGV[3] ~= '' then
    redis.call('HSET', KEYS[2], name, text)
  end
  redis.call('HSET', KEYS[2], 'clock', text, 'rules', redis.call('HLEN', KEYS[1]))
  redis.call('ZADD', KEYS[3], text, name)
end
redis.call('PUBLISH', ARGV[5], 'destinations')
return {1, at}
