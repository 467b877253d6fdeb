-- Forget one message of the dead set for good.
--
-- KEYS[1]  messages     hash
-- KEYS[2]  attempts     hash
-- KEYS[3]  dead         zset
-- KEYS[4]  dead_reason  hash
-- KEYS[5]  calls        zset
-- KEYS[6]  marks        hash
-- KEYS[7]  gone         zset
-- KEYS[8]  due          zset
-- KEYS[9]  mirror       zset
-- KEYS[10] parked       zset
-- ARGV[1]  now          ms, empty = the store's clock
-- ARGV[2]  stamp        4 bytes, one for each call; a call sent again keeps its stamp
-- ARGV[3]  id
-- ARGV[4]  row          ?: name the message, too; else empty
-- returns  answer: 0 not in the dead set; 5 in another set, too: the call is to be made again; 12
--          discarded; with ARGV[4], if it was discarded now, a list: the answer, the stamp of the call
--          that scheduled the message, empty if its record is missing
-- cost     O(log n)
local UNKNOWN, IN_FLIGHT, CANCELLED, DISCARDED = 0, 5, 6, 12
local WITHDRAWN = 2 -- in `gone`
local KEEP_CALLS_MS = 600000
local stamp, id = ARGV[2], ARGV[3]

local past = redis.call('ZSCORE', KEYS[5], stamp .. id)
if past then
  return past % 1 * 256
elseif not redis.call('ZSCORE', KEYS[3], id) then
  return UNKNOWN
elseif redis.call('ZSCORE', KEYS[8], id) or redis.call('ZSCORE', KEYS[9], id)
  or redis.call('ZSCORE', KEYS[10], id) then
  return IN_FLIGHT -- it may live, as `dead` came back as it was; `mend` finds out
end
local now = tonumber(ARGV[1])
if not now then
  local t = redis.call('TIME')
  now = t[1] * 1000 + math.floor(t[2] / 1000)
end
local old = redis.call('HGET', KEYS[1], id)
redis.call('HDEL', KEYS[2], id, id .. '\0')
redis.call('HDEL', KEYS[4], id)
redis.call('ZREM', KEYS[3], id)
redis.call('HDEL', KEYS[1], id)
local old_calls = redis.call('ZRANGEBYSCORE', KEYS[5], '-inf', now - KEEP_CALLS_MS,
  'LIMIT', 0, 100)
if #old_calls > 0 then
  redis.call('ZREM', KEYS[5], unpack(old_calls))
end
redis.call('ZADD', KEYS[5], string.format('%.17g', now + DISCARDED / 256), stamp .. id)
if old then
  redis.call('ZADD', KEYS[5],
    string.format('%.17g', now + CANCELLED / 256), string.sub(old, 10, 13) .. id)
  local generation = redis.call('HGET', KEYS[6], 'generation')
  if generation then -- keep it for the ledger
    redis.call('ZADD', KEYS[7],
      string.format('%.17g', generation + WITHDRAWN / 256), string.sub(old, 10, 13) .. id)
  end
else
  local bare = tonumber(redis.call('HGET', KEYS[6], 'bare') or '') or 0
  redis.call('HSET', KEYS[6], 'bare', math.max(0, bare - 1))
end
return ARGV[4] == '' and DISCARDED or {DISCARDED, old and string.sub(old, 10, 13) or ''}
