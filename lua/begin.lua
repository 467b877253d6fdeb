-- Give the keys of a bucket other names, under which it gives its messages to other buckets.
--
-- KEYS[1]  due          zset
-- KEYS[2]  messages     hash
-- KEYS[3]  mirror       zset
-- KEYS[4]  attempts     hash
-- KEYS[5]  parked       zset
-- KEYS[6]  dead         zset
-- KEYS[7]  dead_reason  hash
-- KEYS[8]  lease        string
-- KEYS[9]  marks        hash
-- KEYS[10] revoked      zset
-- KEYS[11] calls        zset
-- KEYS[12] sources      hash
-- KEYS[13] ready        zset
-- KEYS[14] gone         zset
-- KEYS[15] delivered    zset
-- KEYS[16] due          zset, under its other name
-- KEYS[17] messages     hash
-- KEYS[18] mirror       zset
-- KEYS[19] attempts     hash
-- KEYS[20] parked       zset
-- KEYS[21] dead         zset
-- KEYS[22] dead_reason  hash
-- KEYS[23] marks        hash
-- KEYS[24] revoked      zset
-- KEYS[25] calls        zset
-- KEYS[26] sources      hash
-- KEYS[27] ready        zset
-- KEYS[28] gone         zset
-- KEYS[29] delivered    zset
-- ARGV[1]  birth        the namespace's birth id
-- returns  1 it has its other names, now or since another call; 0 a worker still holds its lease, or its
--          messages are those of another birth id
-- cost     O(1)

-- What is left under the old names is of a wrong type: whoever does not know of the move is refused,
-- and is told to read the namespace's record again.
local MOVED = 'moved: delaybridge reads the record of the namespace again'
if redis.call('EXISTS', KEYS[23]) == 1 then
  return 1
elseif redis.call('EXISTS', KEYS[8]) == 1
  or (redis.call('HGET', KEYS[9], 'birth') or ARGV[1]) ~= ARGV[1] and redis.call('HLEN', KEYS[2]) > 0 then
  return 0
end

if redis.call('EXISTS', KEYS[1]) == 1 then redis.call('RENAME', KEYS[1], KEYS[16]) end
if redis.call('EXISTS', KEYS[2]) == 1 then redis.call('RENAME', KEYS[2], KEYS[17]) end
if redis.call('EXISTS', KEYS[3]) == 1 then redis.call('RENAME', KEYS[3], KEYS[18]) end
if redis.call('EXISTS', KEYS[4]) == 1 then redis.call('RENAME', KEYS[4], KEYS[19]) end
if redis.call('EXISTS', KEYS[5]) == 1 then redis.call('RENAME', KEYS[5], KEYS[20]) end
if redis.call('EXISTS', KEYS[6]) == 1 then redis.call('RENAME', KEYS[6], KEYS[21]) end
if redis.call('EXISTS', KEYS[7]) == 1 then redis.call('RENAME', KEYS[7], KEYS[22]) end
if redis.call('EXISTS', KEYS[9]) == 1 then redis.call('RENAME', KEYS[9], KEYS[23]) end
if redis.call('EXISTS', KEYS[10]) == 1 then redis.call('RENAME', KEYS[10], KEYS[24]) end
if redis.call('EXISTS', KEYS[11]) == 1 then redis.call('RENAME', KEYS[11], KEYS[25]) end
if redis.call('EXISTS', KEYS[12]) == 1 then redis.call('RENAME', KEYS[12], KEYS[26]) end
if redis.call('EXISTS', KEYS[13]) == 1 then redis.call('RENAME', KEYS[13], KEYS[27]) end
if redis.call('EXISTS', KEYS[14]) == 1 then redis.call('RENAME', KEYS[14], KEYS[28]) end
if redis.call('EXISTS', KEYS[15]) == 1 then redis.call('RENAME', KEYS[15], KEYS[29]) end
redis.call('SET', KEYS[1], MOVED)
redis.call('SET', KEYS[2], MOVED)
redis.call('SET', KEYS[3], MOVED)
redis.call('SET', KEYS[5], MOVED)
redis.call('SET', KEYS[6], MOVED)
redis.call('SET', KEYS[9], MOVED)
redis.call('SET', KEYS[12], MOVED)
redis.call('SET', KEYS[13], MOVED)
redis.call('HSET', KEYS[23], 'birth', ARGV[1])
return 1
