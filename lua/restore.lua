-- Bring messages of the ledger back that this bucket lacks; those that left it are not brought back.
--
-- KEYS[1]  messages     hash
-- KEYS[2]  due          zset
-- KEYS[3]  dead         zset
-- KEYS[4]  dead_reason  hash
-- KEYS[5]  marks        hash
-- KEYS[6]  calls        zset
-- KEYS[7]  gone         zset
-- KEYS[8]  attempts     hash
-- ARGV[1]  birth        the namespace's birth id
-- ARGV[2]  generation   as read before the ledger; empty: there was none
-- ARGV[3]  healed       the same
-- ARGV[4]  channel      where an idle owner is woken; a sharded channel has a + before it
-- ARGV[5]  bucket       number
-- ARGV[6]  now          ms, empty = the store's clock
-- ARGV[7+] messages     five each: id, stamp (4 bytes), score, payload or empty (it is only looked for),
--                       why it is dead, empty if it is not
-- returns  {-1} another birth id; {-2} the ledger has to be read again; else a number for each message:
--          0 it is not here, and was brought back if its payload was given; 1 it is here; 2 another
--          message has its id; 3 it has left; 4 elsewhere: the bucket gives its messages to others
-- cost     O(log n) per message, and their size

-- The ledger was read after generation and healed were. A message that left since is in `gone`, and so
-- is one that left before but that the ledger did not know then, unless it was sealed twice since
-- (`seal`): then nothing is done, and the ledger has to be read again.
local ABSENT, HERE, OTHER, LEFT, ELSEWHERE = 0, 1, 2, 3, 4
local LATER, NEVER = 'moved\0', '9007199254740991' -- in `calls`, as `lift` has it
local REPLACED, KEPT, BEGUN = 4, 18, 19 -- in `calls`
local marks = redis.call('HMGET', KEYS[5], 'birth', 'generation', 'healed', 'look', 'cut')
if marks[1] and marks[1] ~= ARGV[1] then
  return {-1}
end
local passed = tonumber(marks[2] or 0) - tonumber(ARGV[2] ~= '' and ARGV[2] or 0)
if (marks[3] or '') ~= ARGV[3] or passed < 0 or passed > 1 then
  return {-2}
end
local now = tonumber(ARGV[6])
if not now then
  local t = redis.call('TIME')
  now = t[1] * 1000 + math.ceil(t[2] / 1000)
end
local cut = tonumber(marks[5] or '') -- of one that gives its messages away
local look = tonumber(marks[4]) or 0 -- an idle owner's next look
local answers, first_due, bare = {}, math.huge, 0 -- bare: of those brought back, dead without a record
redis.call('ZCARD', KEYS[2]) -- fails here, before the first write, if it is not a zset
redis.call('ZCARD', KEYS[3])
local any_tried = redis.call('HLEN', KEYS[8]) > 0

-- They may be of an earlier message of this id. As in `kick`, what may have arrived stays so.
local function forget_attempts(id)
  local tried = redis.call('HGET', KEYS[8], id)
  redis.call('HDEL', KEYS[8], id, id .. '\0')
  if tried and string.match(tried, ':(%d)') ~= '0' then
    redis.call('HSET', KEYS[8], id, '0:1:')
  end
end

-- Whether its call was undone, refused, or settled at most once. One that has replaced another was stored,
-- and so was a gathered one.
local function has_ended(call)
  local known = redis.call('ZSCORE', KEYS[6], call)
  local answer = known and known % 1 * 256
  return answer and answer ~= REPLACED and answer ~= KEPT and answer ~= BEGUN
end

local function bring(id, stamp, score, payload, reason)
  if not marks[1] then
    redis.call('HSET', KEYS[5], 'birth', ARGV[1])
    marks[1] = ARGV[1]
  end
  redis.call('HSET', KEYS[1], id, struct.pack('>Bd', 1, score) .. stamp .. payload)
  if any_tried then
    forget_attempts(id)
  end
  if reason == '' then
    redis.call('ZADD', KEYS[2], string.format('%.17g', score), id)
    first_due = math.min(first_due, score)
    if redis.call('HGET', KEYS[4], id) == 'payload_missing' then -- it is not that one any more
      redis.call('HDEL', KEYS[4], id)
      redis.call('ZREM', KEYS[3], id)
      bare = bare + 1
    end
  else
    bare = bare + 1 - redis.call('ZADD', KEYS[3], string.format('%.0f', now), id)
    redis.call('HSET', KEYS[4], id, reason)
  end
end

for i = 7, #ARGV, 5 do
  local id, stamp, payload = ARGV[i], ARGV[i + 1], ARGV[i + 3]
  local record = redis.call('HGET', KEYS[1], id)
  local answer = ABSENT
  if record then
    answer = string.sub(record, 10, 13) == stamp and HERE or OTHER
  elseif redis.call('ZSCORE', KEYS[7], stamp .. id) or has_ended(stamp .. id) then
    answer = LEFT
  elseif cut and (tonumber(ARGV[i + 2]) >= cut or redis.call('ZSCORE', KEYS[6], LATER .. id)) then
    answer = ELSEWHERE
    if payload ~= '' then -- from now on it is
      redis.call('ZADD', KEYS[6], NEVER, LATER .. id)
    end
  elseif payload ~= '' then
    bring(id, stamp, tonumber(ARGV[i + 2]), payload, ARGV[i + 4])
  end
  answers[#answers + 1] = answer
end

if bare > 0 then
  bare = (tonumber(redis.call('HGET', KEYS[5], 'bare') or '') or 0) - bare
  redis.call('HSET', KEYS[5], 'bare', math.max(0, bare))
end
if first_due < look then
  local text = ARGV[5] .. ' ' .. string.format('%.0f', math.floor(first_due))
  if string.byte(ARGV[4]) == 43 then
    redis.call('SPUBLISH', string.sub(ARGV[4], 2), text)
  else
    redis.call('PUBLISH', ARGV[4], text)
  end
end
return answers
