-- Set or remove the rule of one place, if it is still the one that the caller has read.
--
-- KEYS[1]  destinations hash
-- ARGV[1]  place
-- ARGV[2]  before       JSON as it was read; empty: there was none
-- ARGV[3]  after        JSON; empty: remove it
-- ARGV[4]  limit        rules
-- ARGV[5]  channel      where the fleet listens
-- returns  1 the rule is set, 0 another call was faster: read it again, -1 there are `limit` rules
-- cost     O(1)
local now = redis.call('HGET', KEYS[1], ARGV[1]) or ''
if now == ARGV[3] then
  return 1
elseif now ~= ARGV[2] then
  return 0
elseif now == '' and redis.call('HLEN', KEYS[1]) >= tonumber(ARGV[4]) then
  return -1
end
-- The first write cannot grow memory: a destination can also be paused while Redis is full.
redis.call('HDEL', KEYS[1], ARGV[1])
if ARGV[3] ~= '' then
  redis.call('HSET', KEYS[1], ARGV[1], ARGV[3])
end
redis.call('PUBLISH', ARGV[5], 'destinations')
return 1
