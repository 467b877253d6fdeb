-- Say why this server takes no writes now, and write nothing: only a member that is there would change.
--
-- KEYS[1]  due     zset
-- ARGV[1]  absent  what is no member
-- returns  the error of a write; empty: it would be done. Or ENGINE and what Lua lacks on this server
-- cost     O(1)
local answer = redis.pcall('ZADD', KEYS[1], 'XX', 0, ARGV[1])
if type(answer) == 'table' then
  return answer.err
elseif not cmsgpack.unpack_limit then
  return 'ENGINE has no cmsgpack.unpack_limit'
elseif redis.pcall('ZMSCORE', KEYS[1], ARGV[1])[1] then
  return 'ENGINE has no ZMSCORE that works'
end
return ''
