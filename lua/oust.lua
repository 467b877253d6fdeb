-- End the announcement of a worker whose connection is gone, unless it was renewed meanwhile.
--
-- KEYS[1]  workers      zset
-- KEYS[2]  worker_info  hash
-- ARGV[1]  name
-- ARGV[2]  instance
-- ARGV[3]  expires      ms: when the announcement that the caller has read ends
-- ARGV[4]  by           JSON: who ends it
-- ARGV[5]  channel      where the fleet listens
-- returns  1 it is over, by this mark; 2 it ran out, or is over by another mark; 0 it was renewed, or
--          another process has the name
-- cost     O(log workers)
local expires = tonumber(redis.call('ZSCORE', KEYS[1], ARGV[1]) or 0)
local info = redis.call('HGET', KEYS[2], ARGV[1]) or ''
if math.abs(expires) ~= tonumber(ARGV[3]) or string.sub(info, 1, #ARGV[2] + 1) ~= ARGV[2] .. ' ' then
  return 0
end
local mark = '"ousted":true,"ousted_by":' .. ARGV[4] .. ','
local begin = string.find(info, '{', 1, true) or #info
if expires > 0 then
  -- As `announce` keeps one that ran out. The first write cannot grow memory.
  redis.call('ZADD', KEYS[1], '-' .. ARGV[3], ARGV[1])
  info = string.sub(info, 1, begin) .. mark .. string.sub(info, begin + 1)
  redis.call('HSET', KEYS[2], ARGV[1], info)
  redis.call('PUBLISH', ARGV[5], 'fleet')
end
return string.sub(info, begin + 1, begin + #mark) == mark and 1 or 2
