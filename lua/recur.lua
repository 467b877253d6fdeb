-- Take the recurring definitions to be looked at now; another worker gets them if this one is silent.
--
-- KEYS[1]  recurring       hash
-- KEYS[2]  recurring_due   zset
-- KEYS[3]  recurring_state hash
-- ARGV[1]  now          ms, empty = the store's clock
-- ARGV[2]  pause        ms, until another worker gets them
-- ARGV[3]  limit        definitions
-- returns  the store's time in ms, then of each: name, definition, progress (empty: none yet)
-- cost     O(log n) per definition
local now = tonumber(ARGV[1])
if not now then
  local t = redis.call('TIME')
  now = t[1] * 1000 + math.floor(t[2] / 1000)
end
local found = {now}
local names = redis.call('ZRANGEBYSCORE', KEYS[2], '-inf', now, 'LIMIT', 0, tonumber(ARGV[3]))
for _, name in ipairs(names) do
  local definition = redis.call('HGET', KEYS[1], name)
  if definition then
    local last = #found
    found[last + 1], found[last + 2] = name, definition
    found[last + 3] = redis.call('HGET', KEYS[3], name) or ''
    redis.call('ZADD', KEYS[2], string.format('%.0f', now + ARGV[2]), name)
  else
    redis.call('ZREM', KEYS[2], name)
  end
end
return found
