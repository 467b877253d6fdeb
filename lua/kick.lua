-- Bring one message back from the dead set, and forget its attempts.
--
-- KEYS[1]  messages     hash
-- KEYS[2]  due          zset
-- KEYS[3]  attempts     hash
-- KEYS[4]  dead         zset
-- KEYS[5]  dead_reason  hash
-- KEYS[6]  marks        hash
-- KEYS[7]  calls        zset
-- KEYS[8]  mirror       zset
-- KEYS[9]  parked       zset
-- ARGV[1]  now          ms, empty = the store's clock
-- ARGV[2]  stamp        4 bytes, one for each call; a call sent again keeps its stamp
-- ARGV[3]  id
-- ARGV[4]  delay        ms from now
-- ARGV[5]  channel      where an idle owner is woken; a sharded channel has a + before it
-- ARGV[6]  bucket       number
-- ARGV[7]  row          ?: name the message, too; else empty
-- returns  answer: 0 not in the dead set; 5 in another set, too: the call is to be made again; 11
--          kicked, 13 its record is missing or has no head; with ARGV[7], if it was kicked, a list:
--          the answer, the stamp of the call that scheduled the message, its due time in ms; if this
--          is sent again those of the message that is there now, or nothing more if there is none, or
--          a dead one
-- cost     O(log n) and the size of the message
local UNKNOWN, IN_FLIGHT, KICKED, UNREADABLE = 0, 5, 11, 13
local KEEP_CALLS_MS = 600000
local stamp, id = ARGV[2], ARGV[3]

-- record: of the message, false if there is none.
local function with_row(answer, record)
  if ARGV[7] == '' then
    return answer
  elseif not record or #record < 13 then
    return {answer}
  end
  return {answer, string.sub(record, 10, 13), math.floor(struct.unpack('>d', record, 2))}
end

local past = redis.call('ZSCORE', KEYS[7], stamp .. id)
if past then
  local is_dead = ARGV[7] ~= '' and redis.call('ZSCORE', KEYS[4], id)
  return with_row(past % 1 * 256, not is_dead and redis.call('HGET', KEYS[1], id))
end
if not redis.call('ZSCORE', KEYS[4], id) then
  return UNKNOWN
elseif redis.call('ZSCORE', KEYS[2], id) or redis.call('ZSCORE', KEYS[8], id)
  or redis.call('ZSCORE', KEYS[9], id) then
  return IN_FLIGHT -- it may live, as `dead` came back as it was; `mend` finds out
end
local old = redis.call('HGET', KEYS[1], id)
if not old or #old < 13 or not string.find(old, '^[\1\2]') then
  return UNREADABLE
end
local now = tonumber(ARGV[1])
if not now then
  local t = redis.call('TIME')
  now = t[1] * 1000 + math.ceil(t[2] / 1000)
end
local new = now + ARGV[4] + math.min(255 / 256, struct.unpack('>d', old, 2) % 1)
local head = redis.call('ZRANGE', KEYS[2], 0, 0, 'WITHSCORES')[2]
local tried = redis.call('HGET', KEYS[3], id)

-- The first write cannot grow memory: a full Redis still lets messages be moved.
redis.call('HDEL', KEYS[5], id)
redis.call('ZREM', KEYS[4], id)
local record = struct.pack('>Bd', string.byte(old), new) .. string.sub(old, 10)
redis.call('HSET', KEYS[1], id, record)
redis.call('ZADD', KEYS[2], string.format('%.17g', new), id)
if tried and string.match(tried, ':(%d)') ~= '0' then
  redis.call('HSET', KEYS[3], id, '0:1:')
else
  redis.call('HDEL', KEYS[3], id)
end
local old_calls = redis.call('ZRANGEBYSCORE', KEYS[7], '-inf', now - KEEP_CALLS_MS,
  'LIMIT', 0, 100)
if #old_calls > 0 then
  redis.call('ZREM', KEYS[7], unpack(old_calls))
end
redis.call('ZADD', KEYS[7], string.format('%.17g', now + KICKED / 256), stamp .. id)
if type(redis.pcall('HINCRBY', KEYS[6], 'kicked', '1')) ~= 'number' then
  redis.call('HSET', KEYS[6], 'kicked', '1') -- it was not a number: it begins again
end

if new < tonumber(head or math.huge) and new < (tonumber(redis.call('HGET', KEYS[6], 'look')) or 0) then
  local text = ARGV[6] .. ' ' .. string.format('%.0f', math.floor(new))
  if string.byte(ARGV[5]) == 43 then
    redis.call('SPUBLISH', string.sub(ARGV[5], 2), text)
  else
    redis.call('PUBLISH', ARGV[5], text)
  end
end
return with_row(KICKED, record)
