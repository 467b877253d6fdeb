-- Accept one delayed message that is new, as `schedule` would, or write nothing.
--
-- KEYS[1]  messages     hash
-- KEYS[2]  due          zset
-- KEYS[3]  marks        hash
-- KEYS[4]  calls        zset
-- KEYS[5]  mirror       zset; this one and those that follow are given if ARGV[7] is
-- KEYS[6]  parked       zset
-- KEYS[7]  dead         zset
-- KEYS[8]  attempts     hash
-- KEYS[9]  delivered    zset
-- ARGV[1]  now          ms, empty = the store's clock
-- ARGV[2]  birth        the namespace's birth id
-- ARGV[3]  id
-- ARGV[4]  message      its stamp (4 bytes) and payload
-- ARGV[5]  score        epoch ms + rank / 256; or + and the same with a delay in ms
-- ARGV[6]  wake         the bucket's number, a space, the channel where an idle owner is woken; a sharded
--                       channel has a + before it
-- ARGV[7]  chosen       1: the id may have been used before; absent: it was drawn for this message
-- returns  due ms; 0: nothing was written, and `schedule` is to be asked, with the same stamp: either may
--          be sent again as the other
-- cost     O(log n)
local SHORT, LONG = 16, 129 -- entries of `due`, as a list
local id, text = ARGV[3], ARGV[5]
-- No look at `cut`: a bucket that gives its messages to others has other keys.
local marks = redis.call('HMGET', KEYS[3], 'birth', 'look')
if marks[1] ~= ARGV[2] then
  return 0
end
-- What may be left of an earlier message of the id, whose record has vanished or which was delivered.
if ARGV[7] and (redis.call('ZSCORE', KEYS[5], id) or redis.call('ZSCORE', KEYS[6], id)
  or redis.call('ZSCORE', KEYS[7], id) or redis.call('HEXISTS', KEYS[8], id) == 1
  or redis.call('ZSCORE', KEYS[9], id)) then
  return 0
end
-- This call may have been sent again, and its message cancelled since.
if redis.call('ZSCORE', KEYS[4], string.sub(ARGV[4], 1, 4) .. id) then
  return 0
end
-- A delay is counted from the end of the current millisecond, so that it is never cut short.
local now = tonumber(ARGV[1])
if not now then
  local t = redis.call('TIME')
  now = t[1] * 1000 + math.ceil(t[2] / 1000)
end
local score = string.byte(text) == 43 and now + text or tonumber(text)
if score < now - 1 then
  return 0
end
local head -- the earliest score before this call, if it matters to the owner
if score < (tonumber(marks[2]) or 0) then
  head = tonumber(redis.call('ZRANGE', KEYS[2], 0, 0, 'WITHSCORES')[2] or math.huge)
end
local enters = redis.call('ZADD', KEYS[2], 'NX', score, id) == 1
if not enters or redis.pcall('HSETNX', KEYS[1], id, struct.pack('>Bd', 1, score) .. ARGV[4]) ~= 1 then
  if enters then -- it has a record, or the key is damaged
    redis.call('ZREM', KEYS[2], id)
  end
  local old = redis.call('HGET', KEYS[1], id)
  local is_again = old and string.sub(old, 10, 13) == string.sub(ARGV[4], 1, 4)
  return is_again and math.floor(struct.unpack('>d', old, 2)) or 0
end
local scheduled = redis.pcall('HINCRBY', KEYS[3], 'scheduled', '1')
if type(scheduled) ~= 'number' then
  redis.call('HSET', KEYS[3], 'scheduled', '1') -- it was not a number: it begins again
elseif scheduled % SHORT == 0 then -- seldom, and soon enough; see `schedule`
  local size = redis.call('ZCARD', KEYS[2])
  if size >= SHORT and size < LONG then
    local long_id = string.rep('\0', 65)
    redis.call('ZADD', KEYS[2], 0, long_id)
    redis.call('ZREM', KEYS[2], long_id)
  end
end
if head and score < head then
  local bucket, sharded, channel = string.match(ARGV[6], '^(%d+ )(+?)(.*)$')
  local text_of_wake = bucket .. string.format('%.0f', math.floor(score))
  if sharded == '' then
    redis.call('PUBLISH', channel, text_of_wake)
  else
    redis.call('SPUBLISH', channel, text_of_wake)
  end
end
return math.floor(score)
