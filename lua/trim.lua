-- Drop the oldest messages of the dead set that are beyond its bounds, and entries of `ready` and of
-- `delivered` that mean nothing any more, some at a time.
--
-- KEYS[1]  lease        string
-- KEYS[2]  messages     hash
-- KEYS[3]  attempts     hash
-- KEYS[4]  dead         zset
-- KEYS[5]  dead_reason  hash
-- KEYS[6]  marks        hash
-- KEYS[7]  calls        zset
-- KEYS[8]  parked       zset
-- KEYS[9]  ready        zset
-- KEYS[10] gone         zset
-- KEYS[11] delivered    zset
-- KEYS[12] due          zset
-- KEYS[13] mirror       zset
-- ARGV[1]  token
-- ARGV[2]  ttl          ms
-- ARGV[3]  now          ms, empty = the store's clock
-- ARGV[4]  keep         messages at most, empty = any number
-- ARGV[5]  age          ms since they were buried at most, empty = any
-- ARGV[6]  limit        messages dropped by this call
-- returns  false if the lease is lost; else how many were dropped
-- cost     O(log n) per message and id
local CANCELLED = 6
local WITHDRAWN = 2 -- in `gone`
local KEEP_CALLS_MS = 600000
local MOST_FORGOTTEN = 1000 -- ids delivered long ago
if redis.call('GET', KEYS[1]) ~= ARGV[1] then
  return false
end
local now = tonumber(ARGV[3])
if not now then
  local t = redis.call('TIME')
  now = t[1] * 1000 + math.floor(t[2] / 1000)
end
redis.call('PEXPIRE', KEYS[1], ARGV[2])

-- Of messages that were cancelled or moved: some in a row anywhere, so that all go sooner or later.
local first = now % math.max(1, redis.call('ZCARD', KEYS[9]) - ARGV[6] + 1)
for _, entry in ipairs(redis.call('ZRANGE', KEYS[9], first, first + ARGV[6] - 1)) do
  local at = string.find(entry, '\0', 1, true) or #entry
  local score = #entry > at + 8 and struct.unpack('>d', entry, at + 1)
  if tonumber(redis.call('ZSCORE', KEYS[8], string.sub(entry, at + 9)) or '') ~= score then
    redis.call('ZREM', KEYS[9], entry)
  end
end

-- Of a bucket that settles nothing: the settles of others forget enough.
local expired = redis.call('ZRANGEBYSCORE', KEYS[11], '-inf', now, 'LIMIT', 0, MOST_FORGOTTEN)
if #expired > 0 then
  redis.call('ZREM', KEYS[11], unpack(expired))
end

local beyond = 0
if ARGV[4] ~= '' then
  beyond = redis.call('ZCARD', KEYS[4]) - ARGV[4]
end
if ARGV[5] ~= '' then
  local old = redis.call('ZCOUNT', KEYS[4], '-inf', '(' .. string.format('%.0f', now - ARGV[5]))
  beyond = math.max(beyond, old)
end
local count = math.min(beyond, tonumber(ARGV[6]))
if count <= 0 then
  return 0
end
-- One that is in another set, too, may live: `dead` came back as it was long ago. `mend` finds out.
local ids = {}
for _, id in ipairs(redis.call('ZRANGE', KEYS[4], 0, count - 1)) do
  if not (redis.call('ZSCORE', KEYS[12], id) or redis.call('ZSCORE', KEYS[13], id)
    or redis.call('ZSCORE', KEYS[8], id)) then
    ids[#ids + 1] = id
  end
end
local old_calls = redis.call('ZRANGEBYSCORE', KEYS[7], '-inf', now - KEEP_CALLS_MS,
  'LIMIT', 0, 100 + #ids)
if #old_calls > 0 then
  redis.call('ZREM', KEYS[7], unpack(old_calls))
end
local generation = redis.call('HGET', KEYS[6], 'generation') -- if there is a ledger
local bare = 0
for _, id in ipairs(ids) do
  local old = redis.call('HGET', KEYS[2], id)
  if old and #old >= 13 then -- if its schedule is sent again, it must not revive the message
    redis.call('ZADD', KEYS[7],
      string.format('%.17g', now + CANCELLED / 256), string.sub(old, 10, 13) .. id)
    if generation then
      redis.call('ZADD', KEYS[10],
        string.format('%.17g', generation + WITHDRAWN / 256), string.sub(old, 10, 13) .. id)
    end
  end
  bare = bare + (old and 0 or 1)
  redis.call('ZREM', KEYS[4], id)
  redis.call('HDEL', KEYS[5], id)
  redis.call('HDEL', KEYS[2], id)
  redis.call('HDEL', KEYS[3], id, id .. '\0')
end
if bare > 0 then
  bare = (tonumber(redis.call('HGET', KEYS[6], 'bare') or '') or 0) - bare
  redis.call('HSET', KEYS[6], 'bare', math.max(0, bare))
end
if type(redis.pcall('HINCRBY', KEYS[6], 'dropped', #ids)) ~= 'number' then
  redis.call('HSET', KEYS[6], 'dropped', #ids) -- it was not a number: it begins again
end
return #ids
