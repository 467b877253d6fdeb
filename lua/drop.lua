-- Drop messages that have ended by the ledger: this server has an older past, and has them still.
--
-- KEYS[1]  lease        string
-- KEYS[2]  messages     hash
-- KEYS[3]  due          zset
-- KEYS[4]  parked       zset
-- KEYS[5]  dead         zset
-- KEYS[6]  dead_reason  hash
-- KEYS[7]  attempts     hash
-- ARGV[1]  token
-- ARGV[2]  ttl          ms
-- ARGV[3+] messages     two each: id, stamp (4 bytes); one that was scheduled by another call stays
-- returns  false if the lease is lost; else how many were dropped
-- cost     O(log n) per message

-- For a new session, when nothing is left in the mirror and nothing is claimed yet.
if redis.call('GET', KEYS[1]) ~= ARGV[1] then
  return false
end
redis.call('PEXPIRE', KEYS[1], ARGV[2])
local count = 0
for i = 3, #ARGV, 2 do
  local id = ARGV[i]
  local record = redis.call('HGET', KEYS[2], id)
  if record and string.sub(record, 10, 13) == ARGV[i + 1] then
    redis.call('ZREM', KEYS[3], id)
    redis.call('ZREM', KEYS[4], id)
    redis.call('ZREM', KEYS[5], id)
    redis.call('HDEL', KEYS[6], id)
    redis.call('HDEL', KEYS[7], id, id .. '\0')
    redis.call('HDEL', KEYS[2], id)
    count = count + 1
  end
end
return count
