-- Delete what is left of a bucket that has given everything away.
--
-- KEYS[1]  messages     hash
-- KEYS[2]  lease        string
-- KEYS[3]  marks        hash
-- KEYS[4]  due          zset
-- KEYS[5]  mirror       zset
-- KEYS[6]  attempts     hash
-- KEYS[7]  revoked      zset
-- KEYS[8]  calls        zset
-- KEYS[9]  ready        zset
-- KEYS[10] leaving      string
-- KEYS[11] gone         zset
-- ARGV[1]  birth        the namespace's birth id
-- returns  1 it is done, now or since another call; 0 it has something left, or a worker holds it
-- cost     O(n) of `calls`, in the background
local MOVED = 'moved: delaybridge reads the record of the namespace again'
if redis.call('TYPE', KEYS[1]).ok == 'string' then
  return 1
end
local marks = redis.call('HMGET', KEYS[3], 'birth', 'phase')
if marks[1] ~= ARGV[1] or marks[2] ~= '3' or redis.call('EXISTS', KEYS[2]) == 1
  or redis.call('HLEN', KEYS[1]) > 0 or redis.call('EXISTS', KEYS[10]) == 1
  or redis.call('EXISTS', KEYS[11]) == 1 then -- the ledger does not know yet what has left
  return 0
end
redis.call('UNLINK', KEYS[3], KEYS[4], KEYS[5], KEYS[6], KEYS[7], KEYS[8], KEYS[9])
redis.call('SET', KEYS[1], MOVED)
redis.call('SET', KEYS[3], MOVED)
return 1
