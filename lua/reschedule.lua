-- Change the due time of one message that was not handed to the broker; older copies become void.
--
-- KEYS[1]  messages     hash
-- KEYS[2]  due          zset
-- KEYS[3]  mirror       zset
-- KEYS[4]  attempts     hash
-- KEYS[5]  parked       zset
-- KEYS[6]  dead         zset
-- KEYS[7]  marks        hash
-- KEYS[8]  revoked      zset
-- KEYS[9]  calls        zset
-- KEYS[10] sources      hash
-- KEYS[11] dead_reason  hash
-- ARGV[1]  now          ms, empty = the store's clock
-- ARGV[2]  stamp        4 bytes, one for each call; a call sent again keeps its stamp
-- ARGV[3]  id
-- ARGV[4]  when         epoch ms, or + and a delay in ms
-- ARGV[5]  channel      where an idle owner is woken; a sharded channel has a + before it
-- ARGV[6]  bucket       number
-- ARGV[7]  source       topic and partition that the call was read from; empty: none
-- ARGV[8]  offset       in the source; a call read before is answered unknown and does nothing
-- ARGV[9]  reach        a JSON list of destinations, each a list of Lua patterns that follow each other:
--                       only a message bound for one of them is rescheduled; empty: any
-- ARGV[10] receipt      of a pull topic: the message is rescheduled only if it was given out last with
--                       this one, and wherever it is; empty: any
-- ARGV[11] keep         1: the receipt stays the last one; else none is
-- ARGV[12] row          ?: name the message, too; else empty
-- returns  answer: 0 unknown, 5 in flight, 8 rescheduled, 9 rescheduled, an earlier copy may have
--          been delivered, 10 dead, 14 foreign: bound for a destination outside the reach; with
--          ARGV[12], if it was rescheduled, a list: the answer, the stamp of the call that scheduled
--          the message, its due time in ms; if this is sent again those of the message that is there
--          now, or nothing more if there is none, or a dead one
-- cost     O(log n) and the size of the message
local UNKNOWN, IN_FLIGHT, RESCHEDULED, RESCHEDULED_MAYBE, DEAD, FOREIGN = 0, 5, 8, 9, 10, 14
local KEEP_CALLS_MS = 600000
local BACKDATED = 2 -- the head's version if the time of acceptance follows the payload
local stamp, id, when, source, reach = ARGV[2], ARGV[3], ARGV[4], ARGV[7], ARGV[9]
local receipt = ARGV[10]

-- After a head of 13 bytes a payload is a MessagePack array; its first item is the destination.
local function is_foreign(record)
  if reach == '' then
    return false
  end
  local ok, _, destination = pcall(cmsgpack.unpack_limit, record, 1, 14)
  for _, parts in ipairs(cjson.decode(reach)) do
    local at = ok and type(destination) == 'string' and 0
    for _, part in ipairs(parts) do
      at = at and select(2, string.find(destination, part, at + 1))
    end
    if at then
      return false
    end
  end
  return true
end

-- record: of the message, false if there is none.
local function with_row(answer, record)
  if ARGV[12] == '' then
    return answer
  elseif not record or #record < 13 then
    return {answer}
  end
  return {answer, string.sub(record, 10, 13), math.floor(struct.unpack('>d', record, 2))}
end

local past = redis.call('ZSCORE', KEYS[9], stamp .. id)
if past then
  local is_dead = ARGV[12] ~= '' and redis.call('ZSCORE', KEYS[6], id)
  return with_row(past % 1 * 256, not is_dead and redis.call('HGET', KEYS[1], id))
end
if source ~= '' then
  if tonumber(redis.call('HGET', KEYS[10], source) or -1) >= tonumber(ARGV[8]) then
    return UNKNOWN
  end
  redis.call('HSET', KEYS[10], source, ARGV[8])
end
local old = redis.call('HGET', KEYS[1], id)
if not old then
  return UNKNOWN
elseif is_foreign(old) then
  return FOREIGN
end
local marks = redis.call('HMGET', KEYS[7], 'fired_score', 'fired_claim', 'look')
local score = struct.unpack('>d', old, 2)
local claim = tonumber(redis.call('ZSCORE', KEYS[3], id) or '')
local tried = redis.call('HGET', KEYS[4], id)
if receipt ~= '' and string.match(tried or '', '^%d+:%d:%d*:(%d+)$') ~= receipt then
  return UNKNOWN
elseif receipt == '' and claim
  and claim <= tonumber(marks[2] or -1) and score <= tonumber(marks[1] or -1) then
  return IN_FLIGHT
elseif redis.call('ZSCORE', KEYS[6], id) then
  return DEAD
end
local now = tonumber(ARGV[1])
if not now then
  local t = redis.call('TIME')
  now = t[1] * 1000 + math.ceil(t[2] / 1000)
end
local due_ms = string.byte(when) == 43 and now + string.sub(when, 2) or tonumber(when)
local new = due_ms + math.min(255 / 256, score % 1)
local head = redis.call('ZRANGE', KEYS[2], 0, 0, 'WITHSCORES')[2]
local count, maybe, asked = string.match(tried or '0:0:', '(%d+):(%d):?(%d*)')

-- The first write cannot grow memory: a full Redis still lets messages be moved.
local was_parked = redis.call('ZREM', KEYS[5], id) == 1
if claim then
  redis.call('ZADD', KEYS[8], redis.call('HINCRBY', KEYS[7], 'turn', 1), id)
  redis.call('ZREM', KEYS[3], id)
end
local version, rest = string.byte(old), string.sub(old, 10)
if new < now - 1 and version <= BACKDATED then -- already overdue: its lateness counts from now
  rest = string.sub(rest, 1, version == BACKDATED and -9 or -1) .. struct.pack('>d', now)
  version = BACKDATED
end
local record = struct.pack('>Bd', version, new) .. rest
redis.call('HSET', KEYS[1], id, record)
if redis.call('ZADD', KEYS[2], string.format('%.17g', new), id) == 1 and not (claim or was_parked) then
  -- It was in no set, as a key has vanished: a copy may be on a wheel, or even be fired.
  redis.call('ZADD', KEYS[8], redis.call('HINCRBY', KEYS[7], 'turn', 1), id)
  redis.call('HDEL', KEYS[11], id)
  if score <= tonumber(marks[1] or -1) then
    tried, maybe = tried or '', '1'
  end
end
if receipt == ''
  and type(redis.pcall('HINCRBY', KEYS[7], 'rescheduled', '1')) ~= 'number' then
  redis.call('HSET', KEYS[7], 'rescheduled', '1') -- it was not a number: it begins again
end
if tried then
  local last = receipt ~= '' and asked or ''
  if ARGV[11] == '1' then
    last = last .. ':' .. receipt
  end
  redis.call('HSET', KEYS[4], id, (count or 0) .. ':' .. (maybe or '1') .. ':' .. last)
  redis.call('HDEL', KEYS[4], id .. '\0')
end
local answer = maybe == '0' and RESCHEDULED or RESCHEDULED_MAYBE
local old_calls = redis.call('ZRANGEBYSCORE', KEYS[9], '-inf', now - KEEP_CALLS_MS,
  'LIMIT', 0, 100)
if #old_calls > 0 then
  redis.call('ZREM', KEYS[9], unpack(old_calls))
end
redis.call('ZADD', KEYS[9], string.format('%.17g', now + answer / 256), stamp .. id)

if new < tonumber(head or math.huge) and new < (tonumber(marks[3]) or 0) then
  local text = ARGV[6] .. ' ' .. string.format('%.0f', due_ms)
  if string.byte(ARGV[5]) == 43 then
    redis.call('SPUBLISH', string.sub(ARGV[5], 2), text)
  else
    redis.call('PUBLISH', ARGV[5], text)
  end
end
return with_row(answer, record)
