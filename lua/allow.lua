-- Grant messages to destinations that have a rate, out of what each place has saved up.
--
-- KEYS[1]  allowances   hash
-- ARGV[1]  now          ms, empty = the store's clock
-- ARGV[2+] places       three each: want (messages; empty: the destination before must keep to this
--          place, too), place, rate (messages/s)
-- returns  {granted, ms until one more can be granted, granted, ms, ...}, two for each destination
-- cost     O(places)
local BURST_US = 200000 -- a place saves up one message, and those of this time
local KEEP_MS = 2592000000
-- The first write cannot grow memory: a full Redis still grants.
redis.call('PEXPIRE', KEYS[1], KEEP_MS)
local now = ARGV[1] ~= '' and ARGV[1] * 1000
if not now then
  local t = redis.call('TIME')
  now = t[1] * 1000000 + t[2]
end

local answer, i = {}, 2
while i <= #ARGV do
  local granted, places = tonumber(ARGV[i]), {}
  repeat
    local name, each_us = ARGV[i + 1], 1000000 / ARGV[i + 2]
    -- All that was saved up until then is spent. A new place has one message; one whose time is in
    -- the future (the clock was set back) has none.
    local spent = tonumber(redis.call('HGET', KEYS[1], name) or '')
    if not spent or spent ~= spent then
      spent = now - each_us
    end
    spent = math.max(math.min(spent, now), now - each_us - BURST_US)
    -- A millionth more: a division may end just below a whole number.
    granted = math.min(granted, math.floor((now - spent) / each_us + 1e-6))
    places[#places + 1] = {name, spent, each_us}
    i = i + 3
  until ARGV[i] ~= ''
  local pause_us = 0
  for _, place in ipairs(places) do
    local name, spent, each_us = unpack(place)
    spent = math.ceil(spent + granted * each_us) -- rounded down, it would grant too much
    redis.call('HSET', KEYS[1], name, string.format('%.0f', spent))
    pause_us = math.max(pause_us, spent + each_us - now)
  end
  answer[#answer + 1] = granted
  answer[#answer + 1] = math.min(math.ceil(pause_us / 1000), KEEP_MS)
end
return answer
