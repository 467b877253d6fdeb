-- Read where parked messages are bound for, by score and then id, after a cursor.
--
-- KEYS[1]  lease        string
-- KEYS[2]  parked       zset
-- KEYS[3]  messages     hash
-- ARGV[1]  token
-- ARGV[2]  ttl          ms
-- ARGV[3]  after_score  the cursor: members after it are returned; empty = from the beginning
-- ARGV[4]  after_id
-- ARGV[5]  limit        messages
-- ARGV[6]  bytes        of records; no further one is read after these
-- returns  false if the lease is lost; else {1 if there is more, then three a message: id, score,
--          destination, empty if the record cannot be read}
-- cost     O(log n) and O(limit), and the size of the records; O(log n * log n) for the cursor
if redis.call('GET', KEYS[1]) ~= ARGV[1] then
  return false
end
redis.call('PEXPIRE', KEYS[1], ARGV[2])
local parked, limit, bytes = KEYS[2], tonumber(ARGV[5]), tonumber(ARGV[6])

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
  local low = redis.call('ZCOUNT', parked, '-inf', '(' .. score)
  local high = low + redis.call('ZCOUNT', parked, score, score)
  while low < high do
    local middle = math.floor((low + high) / 2)
    local member = redis.call('ZRANGE', parked, middle, middle)[1]
    if member == id or comes_before(member, id) then
      low = middle + 1
    else
      high = middle
    end
  end
  return low
end

local start = ARGV[3] ~= '' and rank_behind(ARGV[3], ARGV[4]) or 0
local found = redis.call('ZRANGE', parked, start, start + limit - 1, 'WITHSCORES')
local answer, taken = {0}, 0
while 2 * taken < #found and bytes > 0 do
  local id, score, last = found[2 * taken + 1], found[2 * taken + 2], 3 * taken + 1
  local record = redis.call('HGET', KEYS[3], id) or ''
  bytes, taken = bytes - #record, taken + 1
  -- After a head of 13 bytes a payload is a MessagePack array; its first item is the destination.
  local ok, _, destination = pcall(cmsgpack.unpack_limit, record, 1, 14)
  answer[last + 1], answer[last + 2] = id, score
  answer[last + 3] = ok and type(destination) == 'string' and destination or ''
end
answer[1] = start + taken < redis.call('ZCARD', parked) and 1 or 0
return answer
