-- Fence sources: messages that must come from a known source are not scheduled from them any more.
--
-- KEYS[1]  sources      hash
-- ARGV[1+] names        one each
-- returns  the highest offset that was read from each before; empty if the source is not known
-- cost     O(1) per source
local FENCED = 4503599627370496 -- 2^52: no offset is as high
redis.pcall('HDEL', KEYS[1], '') -- it cannot grow memory: a full Redis fences, too
local found = {}
for i, name in ipairs(ARGV) do
  local read = tonumber(redis.call('HGET', KEYS[1], name) or '')
  if read and read < FENCED then
    redis.call('HSET', KEYS[1], name, string.format('%.0f', read + FENCED))
  end
  found[i] = read and string.format('%.0f', read % FENCED) or ''
end
return found
