-- Seal the messages that left this bucket so far, to be told to the ledger, and forget those that the
-- ledger knew at the last seal but one.
--
-- KEYS[1]  lease        string
-- KEYS[2]  marks        hash
-- KEYS[3]  gone         zset
-- ARGV[1]  token
-- ARGV[2]  ttl          ms
-- ARGV[3]  known        the ledger has all generations up to this one; empty: not known
-- ARGV[4]  healed       run id of the server under which the bucket was compared with the ledger as a
--                       whole, and the name of that comparison; empty: it stays as it is
-- returns  false if the lease is lost; else {sealed generation, entries of `gone`, healed or empty}
-- cost     O(log n) and the entries that are forgotten

-- `gone` has them by the generation in which they left. What is in a sealed generation has left before
-- the seal. Whoever read the ledger within the last two generations finds here what it may not have
-- known then (`restore`).
if redis.call('GET', KEYS[1]) ~= ARGV[1] then
  return false
end
local known = tonumber(ARGV[3])
local marks = redis.call('HMGET', KEYS[2], 'generation', 'healed')
local sealed = tonumber(marks[1] or 0)
if known and known >= sealed then
  return false -- the store lost writes that the owner knows of
end
redis.call('PEXPIRE', KEYS[1], ARGV[2])
if known then
  redis.call('ZREMRANGEBYSCORE', KEYS[3], '-inf', '(' .. string.format('%.0f', known))
end
if ARGV[4] ~= '' then
  redis.call('HSET', KEYS[2], 'healed', ARGV[4])
end
redis.call('HSET', KEYS[2], 'generation', string.format('%.0f', sealed + 1))
return {sealed, redis.call('ZCARD', KEYS[3]), ARGV[4] ~= '' and ARGV[4] or marks[2] or ''}
