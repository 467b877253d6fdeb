-- Put claimed messages back to due: with a back-off after a failed publish, until a later score, or
-- unchanged.
--
-- KEYS[1]  lease        string
-- KEYS[2]  due          zset
-- KEYS[3]  mirror       zset
-- KEYS[4]  messages     hash
-- KEYS[5]  attempts     hash
-- ARGV[1]  token
-- ARGV[2]  ttl          ms
-- ARGV[3]  now          ms, empty = the store's clock
-- ARGV[4+] messages     six each: id, claim number, score it was claimed with, back-off in ms, or `=`
--                       and another score, or empty (the score stays; without a back-off nothing
--                       is counted), 1 if this attempt may have arrived, destination and error
--                       separated by a newline
-- returns  false if the lease is lost; else how many were put back
-- cost     O(log n) per message, and the size of attempted messages
if redis.call('GET', KEYS[1]) ~= ARGV[1] then
  return false
end
local now = tonumber(ARGV[3])
if not now then
  local t = redis.call('TIME')
  now = t[1] * 1000 + math.ceil(t[2] / 1000)
end
redis.call('PEXPIRE', KEYS[1], ARGV[2])

local function move(id, record, new)
  redis.call('HSET', KEYS[4], id,
    struct.pack('>Bd', string.byte(record), new) .. string.sub(record, 10))
  return new
end

-- The due time first asked for is kept with the attempts, since the score moves.
local function tried_of(id, score)
  local tried = redis.call('HGET', KEYS[5], id) or '0:0:'
  local count, maybe, due_ms = string.match(tried, '(%d+):(%d):(%d*)')
  if not due_ms or due_ms == '' then
    due_ms = string.format('%.0f', math.floor(score))
  end
  return count or 0, maybe or '1', due_ms -- if it cannot be read, it may have arrived
end

local function defer(id, record, score, new)
  redis.call('HSET', KEYS[5], id, table.concat({tried_of(id, score)}, ':'))
  return move(id, record, new)
end

-- The error has a field of its own, which older versions do not read.
local function back_off(id, record, score, delay, maybe, failure)
  local count, before, due_ms = tried_of(id, score)
  if before ~= '0' then
    maybe = '1'
  end
  local failed = redis.call('HGET', KEYS[5], id .. '\0')
  local since = failed and string.match(failed, '^%d+') or string.format('%.0f', now)
  redis.call('HSET', KEYS[5], id, (count + 1) .. ':' .. maybe .. ':' .. due_ms,
    id .. '\0', since .. '\n' .. failure)
  return move(id, record, now + delay + score % 1)
end

local count = 0
for i = 4, #ARGV, 6 do
  local id, score, delay = ARGV[i], tonumber(ARGV[i + 2]), ARGV[i + 3]
  if tonumber(redis.call('ZSCORE', KEYS[3], id) or '') == tonumber(ARGV[i + 1]) then
    local later = tonumber(string.match(delay, '^=(.+)') or '')
    local record = delay ~= '' and redis.call('HGET', KEYS[4], id)
    if record and later then
      score = defer(id, record, score, later)
    elseif record then
      score = back_off(id, record, score, delay, ARGV[i + 4], ARGV[i + 5])
    end -- else it stays, also if its record has vanished: the next claim buries it
    redis.call('ZADD', KEYS[2], string.format('%.17g', score), id)
    redis.call('ZREM', KEYS[3], id)
    count = count + 1
  end
end
return count
