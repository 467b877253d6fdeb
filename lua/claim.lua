-- Move messages due soon into the mirror and return them, with the next due time.
--
-- KEYS[1]  lease        string
-- KEYS[2]  due          zset
-- KEYS[3]  mirror       zset
-- KEYS[4]  messages     hash
-- KEYS[5]  attempts     hash
-- KEYS[6]  dead         zset
-- KEYS[7]  dead_reason  hash
-- KEYS[8]  marks        hash
-- KEYS[9]  calls        zset
-- ARGV[1]  token
-- ARGV[2]  ttl          ms
-- ARGV[3]  now          ms, empty = the store's clock
-- ARGV[4]  last_claim   number of the last claim that the owner received (at first its turn)
-- ARGV[5]  ahead        ms: due <= now + ahead is claimed
-- ARGV[6]  limit        messages
-- ARGV[7]  bytes        of records; one message is always taken
-- ARGV[8]  pace         ms: the owner looks again no sooner, unless woken or more is waiting
-- ARGV[9]  margin       ms: a message due up to this long after the owner's next look wakes it, too
-- returns  false if the lease is lost; else {claim number, {ids}, {records}, {attempts, empty if
--          none}, score of the next due message or empty, 1 if more was due than was taken, now (us)}
-- cost     O(log n) per message, and their size
local KEEP_CALLS_MS = 600000
local SHORT = 16 -- as `schedule` has them
local LONG_ID = string.rep('\0', 65)
local GATED_MS = 20 -- until a closed gate is looked at again
if redis.call('GET', KEYS[1]) ~= ARGV[1] then
  return false
end
local marks = redis.call('HMGET', KEYS[8], 'claimed', 'gate')
local claimed = tonumber(marks[1])
local last_claim, limit, bytes = tonumber(ARGV[4]), tonumber(ARGV[6]), tonumber(ARGV[7])
if last_claim > claimed then
  return false -- the store lost writes that the owner knows of
end
local again = last_claim < claimed -- an answer was lost: give the same batch again, move nothing
local lowest = again and redis.call('ZRANGEBYSCORE', KEYS[3], '(' .. ARGV[4], '+inf', 'WITHSCORES',
  'LIMIT', 0, 1)[2]
if lowest and tonumber(lowest) < claimed then
  return false -- claimed by a session that lost marks have forgotten: the next one takes it back
end
local us = ARGV[3] ~= '' and ARGV[3] * 1000
if not us then
  local t = redis.call('TIME')
  us = t[1] * 1000000 + t[2]
end
local now = math.floor(us / 1000)
redis.call('PEXPIRE', KEYS[1], ARGV[2])

if redis.call('EXISTS', KEYS[9]) == 1 then
  local old_calls = redis.call('ZRANGEBYSCORE', KEYS[9], '-inf', now - KEEP_CALLS_MS,
    'LIMIT', 0, 500)
  if #old_calls > 0 then
    redis.call('ZREM', KEYS[9], unpack(old_calls))
  end
end

-- While other buckets give their messages to this one, what is due after its gate waits for theirs.
local bound = math.min(now + ARGV[5] + 1, tonumber(marks[2] or math.huge))
local was_tried = redis.call('HLEN', KEYS[5]) > 0
local found
if again then
  found = redis.call('ZRANGEBYSCORE', KEYS[3], '(' .. ARGV[4], '+inf')
  bytes = math.huge
else
  found = redis.call('ZRANGEBYSCORE', KEYS[2], '-inf',
    '(' .. string.format('%.17g', bound), 'LIMIT', 0, limit)
end

-- Read as many records at a time as probably fit, judged by the size of those before.
local records, taken, size, lost = {}, 0, 0, {}
local at, some = 1, 1
while at <= #found and size < bytes do
  local last = math.min(at + some - 1, #found)
  for j, record in ipairs(redis.call('HMGET', KEYS[4], unpack(found, at, last))) do
    if not record then
      lost[#lost + 1] = found[at + j - 1]
      found[at + j - 1] = false
    elseif size < bytes then
      taken = taken + 1
      records[taken] = record
      size = size + #record
    end
  end
  at = last + 1
  some = math.max(1, math.min(100, math.floor((bytes - size) / (size + 1) * taken)))
end
local ids = found -- those whose records were taken
if #lost > 0 then
  ids = {}
  for _, id in ipairs(found) do
    ids[#ids + 1] = id or nil
  end
end
for i = #ids, taken + 1, -1 do
  ids[i] = nil
end

-- A record without payload does not stop the claim: it is buried, and the others go on.
local bare = 0
for _, id in ipairs(lost) do
  if again then
    redis.call('ZREM', KEYS[3], id)
  else
    redis.call('ZREM', KEYS[2], id)
  end
  bare = bare + redis.call('ZADD', KEYS[6], now, id)
  redis.call('HSET', KEYS[7], id, 'payload_missing')
  redis.call('HDEL', KEYS[5], id, id .. '\0') -- they are not those of the next message of this id
end
if bare > 0 then
  bare = bare + (tonumber(redis.call('HGET', KEYS[8], 'bare') or '') or 0)
  redis.call('HSET', KEYS[8], 'bare', bare)
end
local number = claimed
if #ids > 0 and not again then
  number = redis.call('HINCRBY', KEYS[8], 'turn', 1)
  local score = string.format('%.0f', number)
  local grows = #ids >= SHORT and redis.call('ZCARD', KEYS[3]) < SHORT
  if grows then
    redis.call('ZADD', KEYS[3], score, LONG_ID)
  end
  for i = 1, #ids, 500 do
    local last = math.min(i + 499, #ids)
    local pairs_, n = {}, 0
    for j = last, i, -1 do -- from the end: a short zset is searched from its beginning
      pairs_[n + 1], pairs_[n + 2] = score, ids[j]
      n = n + 2
    end
    redis.call('ZADD', KEYS[3], unpack(pairs_))
    redis.call('ZREM', KEYS[2], unpack(ids, i, last))
  end
  if grows then
    redis.call('ZREM', KEYS[3], LONG_ID)
  end
end

local tried = {}
if was_tried then
  for i = 1, #ids, 500 do
    local got = redis.call('HMGET', KEYS[5], unpack(ids, i, math.min(i + 499, #ids)))
    for _, value in ipairs(got) do
      tried[#tried + 1] = value or ''
    end
  end
end

local next_due = redis.call('ZRANGE', KEYS[2], 0, 0, 'WITHSCORES')[2] or ''
local more = next_due ~= '' and tonumber(next_due) < bound
if marks[2] and next_due ~= '' and not more then
  next_due = string.format('%.17g', math.max(tonumber(next_due), now + ARGV[5] + GATED_MS))
end
local look = now
if not more then
  look = math.max((tonumber(next_due) or math.huge) - ARGV[5], now + ARGV[8])
end
redis.call('HSET', KEYS[8], 'claimed', number,
  'look', string.format('%.0f', math.min(look + ARGV[9], 9e15)))
return {number, ids, records, tried, next_due, more and 1 or 0, us}
