-- Count the messages of a bucket's due, mirror, parked or dead set by destination, or a random part.
--
-- KEYS[1]  listed       zset: due, mirror, parked or dead
-- KEYS[2]  messages     hash
-- ARGV[1]  limit        messages; if there are more, this many are drawn
-- ARGV[2]  bytes        of records; no further one is read after these
-- ARGV[3]  seed         of the draw
-- returns  {how many are listed, how many were read, then three a destination: its text, empty if the
--          record cannot be read, how many, their lowest score}
-- cost     O(limit * log n), and the size of the records
local size, limit, bytes = redis.call('ZCARD', KEYS[1]), tonumber(ARGV[1]), tonumber(ARGV[2])
math.randomseed(tonumber(ARGV[3]))
local moved = {}

-- A member that was not drawn before, with its score: the next step of a shuffle of all ranks.
local function draw(number)
  local other = math.random(number, size)
  local rank = (moved[other] or other) - 1
  moved[other] = moved[number] or number
  return unpack(redis.call('ZRANGE', KEYS[1], rank, rank, 'WITHSCORES'))
end

local counts, firsts, order, read = {}, {}, {}, 0
while read < math.min(size, limit) and bytes > 0 do
  read = read + 1
  local member, score = draw(read) -- in random order: the bytes may end it early
  local record = redis.call('HGET', KEYS[2], member) or ''
  bytes = bytes - #record
  -- After a head of 13 bytes a payload is a MessagePack array; its first item is the destination.
  local ok, _, found = pcall(cmsgpack.unpack_limit, record, 1, 14)
  local destination = ok and type(found) == 'string' and found or ''
  if not counts[destination] then
    order[#order + 1] = destination
  end
  if not firsts[destination] or tonumber(score) < tonumber(firsts[destination]) then
    firsts[destination] = score
  end
  counts[destination] = (counts[destination] or 0) + 1
end
local answer = {size, read}
for _, destination in ipairs(order) do
  answer[#answer + 1] = destination
  answer[#answer + 1] = counts[destination]
  answer[#answer + 1] = firsts[destination]
end
return answer
