-- Move parked messages back to due: those named, else the earliest.
--
-- KEYS[1]  lease        string
-- KEYS[2]  parked       zset
-- KEYS[3]  due          zset
-- ARGV[1]  token
-- ARGV[2]  ttl          ms
-- ARGV[3]  limit        messages, at most 1000
-- ARGV[4+] ids          if there are none: the earliest
-- returns  false if the lease is lost; else how many are left, without those for the operator
-- cost     O(log n) per message
local ORPHANED = 4503599627370496 -- 2^52: from there on orphans, parked for the operator
local BELOW = '(' .. string.format('%.0f', ORPHANED)
if redis.call('GET', KEYS[1]) ~= ARGV[1] then
  return false
end
redis.call('PEXPIRE', KEYS[1], ARGV[2])
if #ARGV > 3 then
  for i = 4, #ARGV do
    local score = redis.call('ZSCORE', KEYS[2], ARGV[i])
    if score and tonumber(score) < ORPHANED then
      redis.call('ZADD', KEYS[3], score, ARGV[i])
      redis.call('ZREM', KEYS[2], ARGV[i])
    end
  end
else
  local found = redis.call('ZRANGEBYSCORE', KEYS[2], '-inf', BELOW, 'WITHSCORES', 'LIMIT', 0, ARGV[3])
  for i = 1, #found, 2 do
    redis.call('ZADD', KEYS[3], found[i + 1], found[i])
    redis.call('ZREM', KEYS[2], found[i])
  end
end
return redis.call('ZCOUNT', KEYS[2], '-inf', BELOW)
