-- Write a recurring definition, its progress and its next look, if both are still as the caller read them.
--
-- KEYS[1]  recurring       hash
-- KEYS[2]  recurring_due   zset
-- KEYS[3]  recurring_state hash
-- ARGV[1]  name
-- ARGV[2]  before       the definition as it was read; empty: there was none
-- ARGV[3]  after        the definition; empty: remove it
-- ARGV[4]  progress     as it was read; empty: there was none
-- ARGV[5]  done         the progress from now on; empty: none
-- ARGV[6]  look         epoch ms: when a worker looks at it; empty: never
-- ARGV[7]  limit        definitions
-- returns  1 it is written, 0 another call was faster: read it again, -1 there are `limit` definitions
-- cost     O(log n)
local name, before, after = ARGV[1], ARGV[2], ARGV[3]
local now = redis.call('HGET', KEYS[1], name) or ''
local progress = redis.call('HGET', KEYS[3], name) or ''
redis.call('ZCARD', KEYS[2]) -- fails here, before the first write, if it is not a zset
if now ~= before or progress ~= ARGV[4] then
  return now == after and progress == ARGV[5] and 1 or 0
elseif now == '' and redis.call('HLEN', KEYS[1]) >= tonumber(ARGV[7]) then
  return -1
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
return 1
