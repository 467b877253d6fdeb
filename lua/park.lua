-- Set claimed messages aside, in order, while their broker takes nothing; no attempt is counted.
--
-- KEYS[1]  lease        string
-- KEYS[2]  mirror       zset
-- KEYS[3]  parked       zset
-- ARGV[1]  token
-- ARGV[2]  ttl          ms
-- ARGV[3+] messages     three each: id, claim number, score it was claimed with
-- returns  false if the lease is lost; else how many were parked
-- cost     O(log n) per message
if redis.call('GET', KEYS[1]) ~= ARGV[1] then
  return false
end
redis.call('PEXPIRE', KEYS[1], ARGV[2])
local count = 0
for i = 3, #ARGV, 3 do
  if tonumber(redis.call('ZSCORE', KEYS[2], ARGV[i]) or '') == tonumber(ARGV[i + 1]) then
    redis.call('ZADD', KEYS[3], ARGV[i + 2], ARGV[i])
    redis.call('ZREM', KEYS[2], ARGV[i])
    count = count + 1
  end
end
return count
