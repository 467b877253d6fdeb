-- Put messages that were not accepted into the dead set, each with its reason.
--
-- KEYS[1]  messages     hash
-- KEYS[2]  dead         zset
-- KEYS[3]  dead_reason  hash
-- KEYS[4]  marks        hash
-- KEYS[5]  attempts     hash
-- ARGV[1]  now          ms, empty = the store's clock
-- ARGV[2]  birth        the namespace's birth id
-- ARGV[3]  first        1: the caller has just read the birth id; a bucket without one, or without
--                       messages, takes it
-- ARGV[4+] messages     four each: stamp (4 bytes), id, payload, reason
-- returns  {-1} if the bucket has another birth id; else an answer per message: 1 kept, 3
--          another message has the id
-- cost     O(log n) per message
local CREATED, CONFLICT, FIRST_RANK = 1, 3, 255 / 256
local birth = redis.call('HGET', KEYS[4], 'birth')
local stranger = birth ~= ARGV[2]
if stranger and (ARGV[3] ~= '1' or birth and redis.call('HLEN', KEYS[1]) > 0) then
  return {-1}
end
local now = tonumber(ARGV[1])
if not now then
  local t = redis.call('TIME')
  now = t[1] * 1000 + math.floor(t[2] / 1000)
end
redis.call('ZCARD', KEYS[2]) -- fails here, before the first write, if it is not a zset
redis.call('HLEN', KEYS[3])
if stranger then
  redis.call('HSET', KEYS[4], 'birth', ARGV[2])
end

local in_attempts = redis.pcall('HLEN', KEYS[5])
local any_tried = type(in_attempts) == 'number' and in_attempts > 0
local answers, bare = {}, 0
for i = 4, #ARGV, 4 do
  local stamp, id = ARGV[i], ARGV[i + 1]
  local record = struct.pack('>Bdc4', 1, now + FIRST_RANK, stamp) .. ARGV[i + 2]
  if redis.call('HSETNX', KEYS[1], id, record) == 1 then
    if redis.call('ZADD', KEYS[2], string.format('%.0f', now), id) == 0 then -- it had no record
      bare = bare + 1
    end
    redis.call('HSET', KEYS[3], id, ARGV[i + 3])
    if any_tried then -- of an earlier message of this id
      redis.call('HDEL', KEYS[5], id, id .. '\0')
    end
    answers[#answers + 1] = CREATED
  else
    local mine = string.sub(redis.call('HGET', KEYS[1], id), 10) == stamp .. ARGV[i + 2]
    answers[#answers + 1] = mine and CREATED or CONFLICT
  end
end
if bare > 0 then
  bare = (tonumber(redis.call('HGET', KEYS[4], 'bare') or '') or 0) - bare
  redis.call('HSET', KEYS[4], 'bare', math.max(0, bare))
end
return answers
