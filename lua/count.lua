-- Count what each key of a bucket says: every record is in one set, every dead message has a reason.
--
-- KEYS[1]  lease        string
-- KEYS[2]  messages     hash
-- KEYS[3]  due          zset
-- KEYS[4]  mirror       zset
-- KEYS[5]  parked       zset
-- KEYS[6]  dead         zset
-- KEYS[7]  dead_reason  hash
-- KEYS[8]  marks        hash
-- ARGV[1]  token
-- ARGV[2]  ttl          ms
-- returns  false if the lease is lost; else {records, due, mirror, parked, dead, reasons, dead ones
--          without a record, 1 if they did not add up, now or before, and were not mended since}
-- cost     O(1)
if redis.call('GET', KEYS[1]) ~= ARGV[1] then
  return false
end
redis.call('PEXPIRE', KEYS[1], ARGV[2])
local records, reasons = redis.call('HLEN', KEYS[2]), redis.call('HLEN', KEYS[7])
local due, mirror = redis.call('ZCARD', KEYS[3]), redis.call('ZCARD', KEYS[4])
local parked, dead = redis.call('ZCARD', KEYS[5]), redis.call('ZCARD', KEYS[6])
local marks = redis.call('HMGET', KEYS[8], 'bare', 'suspect', 'claimed')
if not marks[3] then
  return redis.error_reply('ERR the marks are lost')
end
local bare, suspect = tonumber(marks[1] or '') or 0, marks[2] and 1 or 0
-- What the next owner reclaims, or brings back, may make them add up, though it is not right.
if suspect == 0 and (records ~= due + mirror + parked + dead - bare or reasons ~= dead) then
  suspect = redis.call('HSET', KEYS[8], 'suspect', '1')
end
return {records, due, mirror, parked, dead, reasons, bare, suspect}
