-- After a lease is taken, put the messages that dead sessions left in the mirror back to due.
--
-- KEYS[1]  lease        string
-- KEYS[2]  due          zset
-- KEYS[3]  mirror       zset
-- KEYS[4]  messages     hash
-- KEYS[5]  attempts     hash
-- KEYS[6]  dead         zset
-- KEYS[7]  dead_reason  hash
-- KEYS[8]  marks        hash
-- ARGV[1]  token
-- ARGV[2]  ttl          ms
-- ARGV[3]  now          ms, empty = the store's clock
-- ARGV[4]  limit        messages
-- returns  false if the lease is lost; else {left to reclaim, put back, fired ones among these, then
--          two a destination: its text, empty if the record cannot be read, how many were put back}
-- cost     O(log n) per message, and their size
if redis.call('GET', KEYS[1]) ~= ARGV[1] then
  return false
end
redis.call('PEXPIRE', KEYS[1], ARGV[2])
-- Only claims of dead sessions: a reclaim executed late must not touch those of this session.
local turn = '(' .. string.match(ARGV[1], ':(%d+)$')
local marks = redis.call('HMGET', KEYS[8], 'fired_score', 'fired_claim')
local fired_score, fired_claim = tonumber(marks[1] or -1), tonumber(marks[2] or -1)
local found = redis.call('ZRANGEBYSCORE', KEYS[3], '-inf', turn, 'WITHSCORES', 'LIMIT', 0, ARGV[4])
local fired, bare, counts, order = 0, 0, {}, {}

local function count(record)
  -- After a head of 13 bytes a payload is a MessagePack array; its first item is the destination.
  local ok, _, text = pcall(cmsgpack.unpack_limit, record, 1, 14)
  local destination = ok and type(text) == 'string' and text or ''
  if not counts[destination] then
    order[#order + 1] = destination
  end
  counts[destination] = (counts[destination] or 0) + 1
end

local function put_back(id, claim, score)
  if claim <= fired_claim and score <= fired_score then
    local tried = redis.call('HGET', KEYS[5], id) or '0:0:'
    local failures, _, due_ms = string.match(tried, '(%d+):(%d):(%d*)')
    redis.call('HSET', KEYS[5], id, ((failures or 0) + 1) .. ':1:' .. (due_ms or ''))
    fired = fired + 1
  end
  redis.call('ZADD', KEYS[2], string.format('%.17g', score), id)
end

for i = 1, #found, 2 do
  local id = found[i]
  local record = redis.call('HGET', KEYS[4], id)
  local score = record and #record > 9 and struct.unpack('>d', record, 2)
  if score and score >= 0 and score < math.huge then
    put_back(id, tonumber(found[i + 1]), score)
  else
    local now = ARGV[3] ~= '' and ARGV[3] or redis.call('TIME')[1] * 1000
    local added = redis.call('ZADD', KEYS[6], now, id)
    redis.call('HSET', KEYS[7], id, record and 'undecodable' or 'payload_missing')
    if not record then -- its attempts are not those of the next message of this id
      bare = bare + added
      redis.call('HDEL', KEYS[5], id, id .. '\0')
    end
  end
  redis.call('ZREM', KEYS[3], id)
  count(record or '')
end
if bare > 0 then
  bare = bare + (tonumber(redis.call('HGET', KEYS[8], 'bare') or '') or 0)
  redis.call('HSET', KEYS[8], 'bare', bare)
end
local answer = {redis.call('ZCOUNT', KEYS[3], '-inf', turn), #found / 2, fired}
for _, destination in ipairs(order) do
  answer[#answer + 1] = destination
  answer[#answer + 1] = counts[destination]
end
return answer
