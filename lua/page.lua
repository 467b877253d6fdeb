-- One page of a bucket's due, mirror, parked or dead set, by score and then id, after a cursor.
--
-- KEYS[1]  listed       zset: due, mirror, parked or dead
-- KEYS[2]  messages     hash
-- KEYS[3]  attempts     hash
-- KEYS[4]  dead_reason  hash
-- KEYS[5]  marks        hash
-- ARGV[1]  from         lowest score, or -inf
-- ARGV[2]  to           highest score, or +inf
-- ARGV[3]  after_score  the cursor: members after it are returned; empty = from the beginning
-- ARGV[4]  after_id
-- ARGV[5]  limit        messages
-- ARGV[6]  bytes        of records; one message is always returned
-- ARGV[7]  brief        1: only where the messages are bound for; 2: only which calls they are of
-- ARGV[8..] needles      in pairs: of each, a record that is returned has one or the other; besides,
--                        the last message that was looked at is returned
-- returns  {1 if there is more, then six a message: id, score, record or empty, attempts or empty,
--          reason of its death or last failure or empty, 1 if fired}; brief: three a message: id,
--          score, and the destination, empty if the record cannot be read; or the stamp and the
--          attempts in one word
-- cost     O(log n) per message, and their size; O(log n * log n) for the cursor
local limit, bytes, brief = tonumber(ARGV[5]), tonumber(ARGV[6]), ARGV[7] ~= '0'

-- A demoted server still answers reads and refuses writes: so try a write that changes nothing.
local nothing = redis.pcall('HDEL', KEYS[2], '')
if type(nothing) == 'table' and string.find(nothing.err, 'READONLY', 1, true) then
  return redis.error_reply('READONLY this server was demoted')
end

-- Redis orders equal scores by the bytes of the members; Lua's own < goes by the server's locale.
local function comes_before(a, b)
  for i = 1, math.min(#a, #b) do
    local x, y = string.byte(a, i), string.byte(b, i)
    if x ~= y then
      return x < y
    end
  end
  return #a < #b
end

-- The rank of the first member after the cursor; the cursor's own member may be gone.
local function rank_behind(score, id)
  local low = redis.call('ZCOUNT', KEYS[1], '-inf', '(' .. score)
  local high = low + redis.call('ZCOUNT', KEYS[1], score, score)
  while low < high do
    local middle = math.floor((low + high) / 2)
    local member = redis.call('ZRANGE', KEYS[1], middle, middle)[1]
    if member == id or comes_before(member, id) then
      low = middle + 1
    else
      high = middle
    end
  end
  return low
end

-- After a head of 13 bytes a payload is a MessagePack array; its first item is the destination.
local function destination_of(record)
  local ok, _, destination = pcall(cmsgpack.unpack_limit, record, 1, 14)
  return ok and type(destination) == 'string' and destination or ''
end

local start = ARGV[1] == '-inf' and 0 or redis.call('ZCOUNT', KEYS[1], '-inf', '(' .. ARGV[1])
if ARGV[3] ~= '' then
  start = math.max(start, rank_behind(ARGV[3], ARGV[4]))
end
local stop = ARGV[2] == '+inf' and redis.call('ZCARD', KEYS[1])
  or redis.call('ZCOUNT', KEYS[1], '-inf', ARGV[2])
local found = redis.call('ZRANGE', KEYS[1], start, math.min(start + limit, stop) - 1, 'WITHSCORES')
if math.min(start + limit, stop) <= start then
  found = {}
end
local marks = redis.call('HMGET', KEYS[5], 'fired_score', 'fired_claim')
local fired_score, fired_claim = tonumber(marks[1] or -1), tonumber(marks[2] or -1)

local function fits(record)
  for n = 8, #ARGV, 2 do
    if not string.find(record, ARGV[n], 1, true)
      and not string.find(record, ARGV[n + 1], 1, true) then
      return false
    end
  end
  return true
end

local page, size, taken = {0}, 0, 0
local function add(id, score, record)
  page[#page + 1] = id
  page[#page + 1] = score
  if ARGV[7] == '2' then
    page[#page + 1] = string.sub(record, 10, 13) .. (redis.call('HGET', KEYS[3], id) or '')
  else
    page[#page + 1] = brief and destination_of(record) or record
  end
  if not brief then
    page[#page + 1] = redis.call('HGET', KEYS[3], id) or ''
    page[#page + 1] = redis.call('HGET', KEYS[4], id)
      or redis.call('HGET', KEYS[3], id .. '\0') or ''
    local fired = #record > 9 and tonumber(score) <= fired_claim
      and struct.unpack('>d', record, 2) <= fired_score
    page[#page + 1] = fired and 1 or 0
  end
end

for i = 1, #found, 2 do
  local record = redis.call('HGET', KEYS[2], found[i]) or ''
  size = size + #record
  if taken > 0 and size > bytes then
    break
  end
  if i == #found - 1 or size > bytes or fits(record) then
    add(found[i], found[i + 1], record)
    taken = (i + 1) / 2
  end
end
page[1] = start + taken < stop and 1 or 0
return page
