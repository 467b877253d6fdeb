-- Announce that a worker is alive (with a ttl of 0: it leaves), keep those whose announcement ran out
-- for ten minutes, with their expiry below 0, and return the workers that are alive.
--
-- KEYS[1]  workers      zset
-- KEYS[2]  worker_info  hash
-- ARGV[1]  now          ms, empty = the store's clock
-- ARGV[2]  name
-- ARGV[3]  instance     random: tells this process from others of the same name
-- ARGV[4]  ttl          ms; 0: withdraw
-- ARGV[5]  info         JSON
-- ARGV[6]  channel      where the fleet listens
-- ARGV[7]  clock        ms: what the caller's own clock takes for the store's, never ahead of it
--                       unless that was set back; empty: unknown
-- ARGV[8]  knows        that it was ousted; empty: it is told
-- returns  {1 announced, 2 announced after a fellow had ended it (`oust`) or 0 the name is taken by
--          another instance, seconds, microseconds of the store's clock, name, expiry ms, name,
--          expiry ms, ...}
-- cost     O(workers)
local LONGEST_MS = 600000 -- the longest ttl; assumed if an entry has none (older versions)
local KEPT_MS, MOST = 600000, 100 -- of those that are gone
local OUSTED = '"ousted":true,' -- as `oust` marks an announcement
local t = ARGV[1] == '' and redis.call('TIME') or {math.floor(ARGV[1] / 1000), ARGV[1] % 1000 * 1000}
local now = t[1] * 1000 + math.floor(t[2] / 1000)
local name, instance, ttl = ARGV[2], ARGV[3], tonumber(ARGV[4])

-- The first write cannot grow memory: on a full Redis workers still come and go.
local kept_since = string.format('(%.0f', KEPT_MS - now)
local forgotten = redis.call('ZRANGEBYSCORE', KEYS[1], kept_since, 0)
redis.call('ZREMRANGEBYSCORE', KEYS[1], kept_since, 0)
for _, worker in ipairs(forgotten) do
  redis.call('HDEL', KEYS[2], worker)
end
local over = redis.call('ZRANGEBYSCORE', KEYS[1], '(0', string.format('%.0f', now), 'WITHSCORES')
for i = 1, #over, 2 do
  redis.call('ZADD', KEYS[1], '-' .. over[i + 1], over[i])
end
if #over > 0 then -- the latest come first
  local gone = redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', 0, 'LIMIT', MOST, -1)
  for _, worker in ipairs(gone) do
    redis.call('ZREM', KEYS[1], worker)
    redis.call('HDEL', KEYS[2], worker)
  end
end
-- An entry that no process wrote keeps neither its name nor a share of the buckets.
local function read(info)
  return info and (string.match(info, '^%w+ %d+') or string.match(info, '^%x+{')) and info
end

local is_known = tonumber(redis.call('ZSCORE', KEYS[1], name) or 0) > 0
local other = read(redis.call('HGET', KEYS[2], name))
local is_own = other and string.sub(other, 1, #instance) == instance
local mine = not (is_known and other) or is_own
local was_ousted = is_own and string.find(other, OUSTED, 1, true)
if mine and ttl > 0 then
  local expires, info = string.format('%.0f', now + ttl), ARGV[5]
  if was_ousted and ARGV[8] == '' then
    info = '{' .. OUSTED .. string.sub(info, 2)
  end
  redis.call('HSET', KEYS[2], name, instance .. ' ' .. ttl .. info)
  redis.call('ZADD', KEYS[1], expires, name)
  if not is_known then
    redis.call('PUBLISH', ARGV[6], 'fleet')
  end
elseif mine and redis.call('ZREM', KEYS[1], name) == 1 then
  redis.call('HDEL', KEYS[2], name)
  redis.call('PUBLISH', ARGV[6], 'fleet')
end

local living = redis.call('ZRANGEBYSCORE', KEYS[1], '(0', 'inf', 'WITHSCORES')
local answer = {mine and (was_ousted and 2 or 1) or 0, tonumber(t[1]), tonumber(t[2])}
for i = 1, #living, 2 do
  local worker, expires = living[i], tonumber(living[i + 1])
  -- After a clock step back it would outlast its own ttl: a dead worker would seem alive. It ends
  -- when it would have ended by the caller's clock; else it gets its ttl once more.
  local info = expires <= now + ttl or read(redis.call('HGET', KEYS[2], worker))
  if not info then
    redis.call('ZREM', KEYS[1], worker)
  elseif expires > now + ttl then
    local own = tonumber(string.match(info, '^[^{ ]+ (%d+)')) or LONGEST_MS
    if expires > now + own then
      local left = expires - (tonumber(ARGV[7]) or now)
      expires = now + ((left < -own or left > own) and own or math.max(1, left))
      redis.call('ZADD', KEYS[1], string.format('%.0f', expires), worker)
    end
  end
  if info then
    answer[#answer + 1] = worker
    answer[#answer + 1] = expires
  end
end
return answer
