-- Give claimed messages up: into the dead set, each with its reason.
--
-- KEYS[1]  lease        string
-- KEYS[2]  mirror       zset
-- KEYS[3]  attempts     hash
-- KEYS[4]  dead         zset
-- KEYS[5]  dead_reason  hash
-- ARGV[1]  token
-- ARGV[2]  ttl          ms
-- ARGV[3]  now          ms, empty = the store's clock
-- ARGV[4+] messages     five each: id, claim number, 1 if an attempt is counted, 1 if that attempt
--                       may have arrived, reason
-- returns  false if the lease is lost; else how many were buried
-- cost     O(log n) per message
if redis.call('GET', KEYS[1]) ~= ARGV[1] then
  return false
end
local now = tonumber(ARGV[3])
if not now then
  local t = redis.call('TIME')
  now = t[1] * 1000 + math.floor(t[2] / 1000)
end
redis.call('PEXPIRE', KEYS[1], ARGV[2])
local count = 0
for i = 4, #ARGV, 5 do
  local id = ARGV[i]
  if tonumber(redis.call('ZSCORE', KEYS[2], id) or '') == tonumber(ARGV[i + 1]) then
    if ARGV[i + 2] == '1' then
      local tried = redis.call('HGET', KEYS[3], id) or '0:0:'
      local tries, maybe, due_ms = string.match(tried, '(%d+):(%d):(%d*)')
      if ARGV[i + 3] == '1' or maybe ~= '0' then -- also if it cannot be read: it may have arrived
        maybe = '1'
      end
      redis.call('HSET', KEYS[3], id, ((tries or 0) + 1) .. ':' .. maybe .. ':' .. (due_ms or ''))
    end
    redis.call('HDEL', KEYS[3], id .. '\0')
    redis.call('ZADD', KEYS[4], string.format('%.0f', now), id)
    redis.call('HSET', KEYS[5], id, ARGV[i + 4])
    redis.call('ZREM', KEYS[2], id)
    count = count + 1
  end
end
return count
