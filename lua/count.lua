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
--          without a record}
-- cost     O(1)
if redis.call('GET', KEYS[1]) ~= ARGV[1] then
  return false
end
redis.call('PEXPIRE', KEYS[1], ARGV[2])
return {
  redis.call('HLEN', KEYS[2]),
  redis.call('ZCARD', KEYS[3]),
  redis.call('ZCARD', KEYS[4]),
  redis.call('ZCARD', KEYS[5]),
  redis.call('ZCARD', KEYS[6]),
  redis.call('HLEN', KEYS[7]),
  tonumber(redis.call('HGET', KEYS[8], 'bare') or '') or 0,
}
