-- Put messages into the dead set: not accepted ones, or from elsewhere; or in place of a dead one.
--
-- KEYS[1]  messages     hash
-- KEYS[2]  dead         zset
-- KEYS[3]  dead_reason  hash
-- KEYS[4]  marks        hash
-- KEYS[5]  attempts     hash
-- KEYS[6]  calls        zset
-- KEYS[7]  gone         zset
-- KEYS[8]  due          zset
-- KEYS[9]  mirror       zset
-- KEYS[10] parked       zset
-- ARGV[1]  now          ms, empty = the store's clock
-- ARGV[2]  birth        the namespace's birth id
-- ARGV[3]  first        1: the caller has just read the birth id; a bucket without one, or without
--                       messages, takes it
-- ARGV[4+] messages     eight each: stamp (4 bytes), id, payload, reason; its score, empty = now; when
--                       it died (ms), empty = now; its attempts as they are stored, or empty; and score
--                       and stamp in the head of a dead message of the same id, which it replaces: that
--                       one's reason, time and attempts stay; empty: none is replaced
-- returns  {-1} if the bucket has another birth id; else an answer per message: 1 kept, 2 it is here
--          already (not for one whose score is empty), 3 another message has the id, 4 replaced, 5 the
--          message to replace is in another set, too, 14 foreign: there is no such one in the dead set;
--          30 elsewhere: the bucket gives its messages to others, and the call is to be made there
-- cost     O(log n) per message
local CREATED, DUPLICATE, CONFLICT, REPLACED, IN_FLIGHT, CANCELLED, FOREIGN = 1, 2, 3, 4, 5, 6, 14
local ELSEWHERE, WITHDRAWN = 30, 2 -- the second in `gone`
local LATER, NEVER = 'moved\0', '9007199254740991' -- in `calls`, as `lift` has it
local FIRST_RANK = 255 / 256
local BACKDATED = 2 -- the head's version if the time of acceptance follows the payload
local KEEP_CALLS_MS = 600000
local marks = redis.call('HMGET', KEYS[4], 'birth', 'generation', 'cut')
local stranger, generation, cut = marks[1] ~= ARGV[2], marks[2], marks[3]
if stranger and (ARGV[3] ~= '1' or marks[1] and redis.call('HLEN', KEYS[1]) > 0) then
  return {-1}
end
local now = tonumber(ARGV[1])
if not now then
  local t = redis.call('TIME')
  now = t[1] * 1000 + math.floor(t[2] / 1000)
end
redis.call('ZCARD', KEYS[2]) -- fails here, before the first write, if it is not a zset
redis.call('ZCARD', KEYS[6])
redis.call('ZCARD', KEYS[7])
redis.call('HLEN', KEYS[3])
if stranger then
  redis.call('HSET', KEYS[4], 'birth', ARGV[2])
end

local in_attempts = redis.pcall('HLEN', KEYS[5])
local any_tried = type(in_attempts) == 'number' and in_attempts > 0
local answers, bare = {}, 0

local function payload_of(record)
  return string.sub(record, 14, string.byte(record) == BACKDATED and -9 or -1)
end

local function replace(stamp, id, payload, head)
  local old = redis.call('HGET', KEYS[1], id) or ''
  if string.sub(old, 10) == stamp .. payload then
    return REPLACED -- it is sent again
  elseif string.sub(old, 2, 13) ~= head or not redis.call('ZSCORE', KEYS[2], id) then
    return FOREIGN
  elseif redis.call('ZSCORE', KEYS[8], id) or redis.call('ZSCORE', KEYS[9], id)
    or redis.call('ZSCORE', KEYS[10], id) then
    return IN_FLIGHT -- it may live, as `dead` came back as it was; `mend` finds out
  end
  redis.call('HSET', KEYS[1], id, '\1' .. string.sub(head, 1, 8) .. stamp .. payload)
  local call = string.sub(head, 9) .. id
  local old_calls = redis.call('ZRANGEBYSCORE', KEYS[6], '-inf', now - KEEP_CALLS_MS,
    'LIMIT', 0, 100)
  if #old_calls > 0 then
    redis.call('ZREM', KEYS[6], unpack(old_calls))
  end
  redis.call('ZADD', KEYS[6], string.format('%.17g', now + CANCELLED / 256), call)
  if generation then -- keep it for the ledger
    redis.call('ZADD', KEYS[7], string.format('%.17g', generation + WITHDRAWN / 256), call)
  end
  return REPLACED
end

local function keep(stamp, id, payload, reason, score, died, tried)
  local record = struct.pack('>Bdc4', 1, tonumber(score) or now + FIRST_RANK, stamp) .. payload
  if redis.call('HSETNX', KEYS[1], id, record) == 0 then
    local old = redis.call('HGET', KEYS[1], id)
    if string.sub(old, 10) == stamp .. payload then
      return CREATED
    end
    return score ~= '' and payload_of(old) == payload and DUPLICATE or CONFLICT
  end
  died = tonumber(died) or now
  if redis.call('ZADD', KEYS[2], string.format('%.0f', died), id) == 0 then -- it had no record
    bare = bare + 1
  end
  redis.call('HSET', KEYS[3], id, reason)
  if any_tried then -- of an earlier message of this id
    redis.call('HDEL', KEYS[5], id, id .. '\0')
  end
  if tried ~= '' then
    redis.call('HSET', KEYS[5], id, tried)
  end
  return CREATED
end

for i = 4, #ARGV, 8 do
  local stamp, id, payload, reason, score, died, tried, head = unpack(ARGV, i, i + 7)
  if cut and redis.call('HEXISTS', KEYS[1], id) == 0 then
    answers[#answers + 1] = ELSEWHERE
    if head == '' then
      redis.call('ZADD', KEYS[6], NEVER, LATER .. id)
    end
  elseif head == '' then
    answers[#answers + 1] = keep(stamp, id, payload, reason, score, died, tried)
  else
    answers[#answers + 1] = replace(stamp, id, payload, head)
  end
end
if bare > 0 then
  bare = (tonumber(redis.call('HGET', KEYS[4], 'bare') or '') or 0) - bare
  redis.call('HSET', KEYS[4], 'bare', math.max(0, bare))
end
return answers
