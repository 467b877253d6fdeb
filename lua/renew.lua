-- Prolong a lease that the token still holds; never create one.
--
-- KEYS[1]  lease        string
-- KEYS[2]  due          zset
-- ARGV[1]  token
-- ARGV[2]  ttl          ms
-- returns  false if the lease is lost; else the score of the next due message, empty if none
-- cost     O(log n)
if redis.call('GET', KEYS[1]) ~= ARGV[1] then
  return false
end
redis.call('PEXPIRE', KEYS[1], ARGV[2])
return redis.call('ZRANGE', KEYS[2], 0, 0, 'WITHSCORES')[2] or ''
