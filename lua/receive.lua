-- Give the earliest messages of a pull topic to a consumer; what it does not finish is due again.
--
-- KEYS[1]  messages     hash
-- KEYS[2]  due          zset
-- KEYS[3]  parked       zset
-- KEYS[4]  attempts     hash
-- KEYS[5]  marks        hash
-- KEYS[6]  ready        zset
-- ARGV[1]  now          ms, empty = the store's clock
-- ARGV[2]  destination  of the topic
-- ARGV[3]  limit        messages
-- ARGV[4]  bytes        of records; one message is always given
-- ARGV[5]  ttr          ms that the consumer has
-- ARGV[6]  channel      where an idle owner is woken; a sharded channel has a + before it
-- ARGV[7]  bucket       number
-- ARGV[8]  receipt      of this call, drawn at random; a turn would come again after a fail-over
-- returns  four for each message: id, record, how often it was received, until when (ms)
-- cost     O(log n) per message, and their size
local destination, limit, bytes = ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4])
local now = tonumber(ARGV[1])
if not now then
  local t = redis.call('TIME')
  now = t[1] * 1000 + math.floor(t[2] / 1000)
end
local until_ms = now + ARGV[5] + (ARGV[1] == '' and 1 or 0) -- never cut short
local topic = destination .. '\0'
local marks = redis.call('HMGET', KEYS[5], 'look')
local head = redis.call('ZRANGE', KEYS[2], 0, 0, 'WITHSCORES')[2]
local first = math.huge
local answer, size = {}, 0

-- The record, if this entry still means its message.
local function offered(id, score)
  local record = redis.call('HGET', KEYS[1], id)
  if not record or tonumber(redis.call('ZSCORE', KEYS[3], id) or '') ~= score then
    return nil
  end
  -- After a head of 13 bytes a payload is a MessagePack array; its first item is the destination.
  local ok, _, text = pcall(cmsgpack.unpack_limit, record, 1, 14)
  return ok and text == destination and struct.unpack('>d', record, 2) == score and record or nil
end

local function give(id, score, record)
  local new = until_ms + score % 1
  first = math.min(first, new)
  redis.call('ZREM', KEYS[3], id) -- first: it cannot grow memory, so a full Redis gives messages
  redis.call('ZADD', KEYS[2], string.format('%.17g', new), id)
  redis.call('HSET', KEYS[1], id,
    struct.pack('>Bd', string.byte(record), new) .. string.sub(record, 10))
  local tried = redis.call('HGET', KEYS[4], id) or '0:0:'
  local count, _, due_ms = string.match(tried, '^(%d+):(%d):(%d*)')
  if not due_ms or due_ms == '' then
    due_ms = string.format('%.0f', math.floor(score))
  end
  count = (tonumber(count) or 0) + 1
  redis.call('HSET', KEYS[4], id, count .. ':1:' .. due_ms .. ':' .. ARGV[8])
  size = size + #record
  for _, word in ipairs({id, record, count, until_ms}) do
    answer[#answer + 1] = word
  end
end

-- Whether to go on with the next.
local function take(member)
  if #member < #topic + 9 then
    redis.call('ZREM', KEYS[6], member) -- delaybridge did not write it
    return true
  end
  local score, id = struct.unpack('>d', member, #topic + 1), string.sub(member, #topic + 9)
  local record = offered(id, score)
  if record and size > 0 and size + #record > bytes then
    return false
  elseif record then
    give(id, score, record)
  end
  redis.call('ZREM', KEYS[6], member)
  return #answer < 4 * limit
end

local goes_on = limit > 0
while goes_on do
  local found = redis.call('ZRANGEBYLEX', KEYS[6], '[' .. topic,
    '(' .. topic .. struct.pack('>d', now + 1), 'LIMIT', 0, limit)
  goes_on = #found > 0
  for _, member in ipairs(found) do
    goes_on = goes_on and take(member)
  end
end

if first < tonumber(head or math.huge) and first < (tonumber(marks[1]) or 0) then
  local text = ARGV[7] .. ' ' .. string.format('%.0f', math.floor(first))
  if string.byte(ARGV[6]) == 43 then
    redis.call('SPUBLISH', string.sub(ARGV[6], 2), text)
  else
    redis.call('PUBLISH', ARGV[6], text)
  end
end
return answer
