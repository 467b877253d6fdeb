-- Say why this server takes no writes now, and write nothing: only a member that is there would change.
--
-- KEYS[1]  due     zset
-- ARGV[1]  absent  what is no member
-- returns  the error of a write; empty: it would be done
-- cost     O(1)
local answer = redis.pcall('ZADD', KEYS[1], 'XX', 0, ARGV[1])
return type(answer) == 'table' and answer.err or ''
