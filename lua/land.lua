-- Put a page that was lifted from another bucket into this one, once.
--
-- KEYS[1]  due          zset
-- KEYS[2]  messages     hash
-- KEYS[3]  attempts     hash
-- KEYS[4]  parked       zset
-- KEYS[5]  dead         zset
-- KEYS[6]  dead_reason  hash
-- KEYS[7]  marks        hash
-- KEYS[8]  calls        zset
-- KEYS[9]  sources      hash
-- KEYS[10] delivered    zset
-- ARGV[1]  now          ms, empty = the store's clock
-- ARGV[2]  birth        the namespace's birth id
-- ARGV[3]  stamp        8 bytes, of the page
-- ARGV[4]  from         number of the bucket that it was lifted from
-- ARGV[5]  gate         what this bucket may claim of what is due later than that: empty: all of it
-- ARGV[6]  sources      numbers of all buckets that give messages to this one, each after a space
-- ARGV[7]  channel      where an idle owner is woken; a sharded channel has a + before it
-- ARGV[8]  bucket       number
-- ARGV[9+] entries      two each: id, and what `lift` gave with it
-- returns  {-1} if the bucket has messages and another birth id; else the ids that another message has
--          here: these messages are to be put back
-- cost     O(log n) per message, and their size
local AS_DUE, AS_PARKED, AS_DEAD, AS_CALL, AS_DELIVERED, AS_SOURCE = 1, 2, 3, 4, 5, 6
local KNOWN = 1 -- the answer noted in `calls`, beside the time
local from = ARGV[4]
local marks = redis.call('HMGET', KEYS[7], 'birth', 'look', 'landed:' .. from, 'refused:' .. from)
if marks[1] and marks[1] ~= ARGV[2] and redis.call('HLEN', KEYS[2]) > 0 then
  return {-1}
elseif marks[3] == ARGV[3] then
  return marks[4] and cmsgpack.unpack(marks[4]) or {}
elseif redis.call('ZSCORE', KEYS[8], 'land' .. ARGV[3]) then
  return {}
end
local now = tonumber(ARGV[1])
if not now then
  local t = redis.call('TIME')
  now = t[1] * 1000 + math.ceil(t[2] / 1000)
end
-- What is of a wrong type fails here, before the first write.
redis.call('ZCARD', KEYS[1])
redis.call('HLEN', KEYS[2])
redis.call('HLEN', KEYS[3])
redis.call('ZCARD', KEYS[4])
redis.call('ZCARD', KEYS[5])
redis.call('HLEN', KEYS[6])
redis.call('HLEN', KEYS[9])
redis.call('ZCARD', KEYS[10])

-- First: after a write that cannot grow memory, a full Redis lets all others pass. So a page lands.
redis.call('HDEL', KEYS[7], 'refused:' .. from)
redis.call('HSET', KEYS[7], 'birth', ARGV[2], 'landed:' .. from, ARGV[3])
redis.call('ZADD', KEYS[8], string.format('%.17g', now + KNOWN / 256), 'land' .. ARGV[3])

local refused, first_due, bare = {}, math.huge, 0

local function text_at(entry, at)
  local size = struct.unpack('>I4', entry, at)
  return string.sub(entry, at + 4, at + 3 + size), at + 4 + size
end

local function message(id, kind, score, entry)
  local record, tried, failing, at
  record, at = text_at(entry, 10)
  tried, at = text_at(entry, at)
  failing, at = text_at(entry, at)
  local mine = redis.call('HGET', KEYS[2], id)
  if mine and mine ~= record then
    refused[#refused + 1] = id
    return
  elseif mine then
    return -- the other bucket came back with an older past
  end
  if record ~= '' then
    redis.call('HSET', KEYS[2], id, record)
  end
  local number = string.format('%.17g', score)
  if kind == AS_DUE then
    redis.call('ZADD', KEYS[1], number, id)
    first_due = math.min(first_due, score)
  elseif kind == AS_PARKED then
    redis.call('ZADD', KEYS[4], number, id)
  else
    bare = bare + (record == '' and redis.call('ZADD', KEYS[5], number, id) or 0)
    redis.call('ZADD', KEYS[5], number, id)
    redis.call('HSET', KEYS[6], id, string.sub(entry, at))
  end
  if tried ~= '' then
    redis.call('HSET', KEYS[3], id, tried)
  end
  if failing ~= '' then
    redis.call('HSET', KEYS[3], id .. '\0', failing)
  end
end

for i = 9, #ARGV, 2 do
  local id, entry = ARGV[i], ARGV[i + 1]
  local kind, score = struct.unpack('>Bd', entry)
  if kind <= AS_DEAD then
    message(id, kind, score, entry)
  elseif kind == AS_CALL then
    redis.call('ZADD', KEYS[8], string.format('%.17g', score), id)
  elseif kind == AS_DELIVERED then
    redis.call('ZADD', KEYS[10], 'GT', string.format('%.17g', score), id)
  elseif kind == AS_SOURCE then
    local mine = tonumber(redis.call('HGET', KEYS[9], id) or '')
    redis.call('HSET', KEYS[9], id, string.format('%.0f', math.max(mine or score, score)))
  else
    redis.call('HINCRBY', KEYS[7], id, string.format('%.0f', score))
  end
end
if bare > 0 then
  redis.call('HINCRBY', KEYS[7], 'bare', bare)
end
if #refused > 0 then
  redis.call('HSET', KEYS[7], 'refused:' .. from, cmsgpack.pack(refused))
end

-- The owner claims what is due before all gates.
if ARGV[5] == '' then
  redis.call('HDEL', KEYS[7], 'gate:' .. from)
else
  redis.call('HSET', KEYS[7], 'gate:' .. from, ARGV[5])
end
local gate = math.huge
for number in string.gmatch(ARGV[6], '%d+') do
  gate = math.min(gate, tonumber(redis.call('HGET', KEYS[7], 'gate:' .. number) or math.huge))
end
if gate == math.huge then
  redis.call('HDEL', KEYS[7], 'gate')
  first_due = math.min(first_due, now) -- it may have waited for that
else
  redis.call('HSET', KEYS[7], 'gate', string.format('%.17g', gate))
end
if first_due < (tonumber(marks[2]) or 0) then
  local text = ARGV[8] .. ' ' .. string.format('%.0f', math.floor(first_due))
  if string.byte(ARGV[7]) == 43 then
    redis.call('SPUBLISH', string.sub(ARGV[7], 2), text)
  else
    redis.call('PUBLISH', ARGV[7], text)
  end
end
return refused
