-- Prolong a lease that the token still holds; never create one.
--
-- KEYS[1]  lease        string
-- KEYS[2]  due          zset
-- KEYS[3]  marks        hash
-- ARGV[1]  token
-- ARGV[2]  ttl          ms
-- ARGV[3]  known        number of the last claim that the owner received; empty: not compared
-- returns  false if the lease is lost; else the score of the next due message, empty if none; 0 if
--          there is a claim that the owner has not received
-- cost     O(log n)
if redis.call('GET', KEYS[1]) ~= ARGV[1] then
  return false
end
local known = tonumber(ARGV[3])
local claimed = known and tonumber(redis.call('HGET', KEYS[3], 'claimed') or 0)
if known and known > claimed then
  return false -- the store lost writes that the owner knows of
end
redis.call('PEXPIRE', KEYS[1], ARGV[2])
-- A claim executed late, once more: nothing of it is in `due`, and no owner was woken.
if known and known < claimed then
  return '0'
end
return redis.call('ZRANGE', KEYS[2], 0, 0, 'WITHSCORES')[2] or ''
