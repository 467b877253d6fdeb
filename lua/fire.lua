-- Before the due time, count all messages up to the watermark as handed to the broker, unless the
-- lease is lost, and return those that were revoked since their claim.
--
-- KEYS[1]  lease        string
-- KEYS[2]  marks        hash
-- KEYS[3]  revoked      zset
-- ARGV[1]  token
-- ARGV[2]  ttl              ms
-- ARGV[3]  watermark        highest score about to be published; never lower than before in a session
-- ARGV[4]  last_claim       number of the last claim that the owner received
-- ARGV[5]  last_revocation  turn of the last revocation that the owner acted upon
-- ARGV[6]  now              ms, empty = the store's clock
-- returns  false if the lease is lost; else {last claim number, now (us), id, turn, id, turn, ...}
-- cost     O(revoked)
if redis.call('GET', KEYS[1]) ~= ARGV[1] then
  return false
end
local marks = redis.call('HMGET', KEYS[2], 'claimed', 'fired_score', 'fired_claim')
local claimed, last_claim = tonumber(marks[1]), tonumber(ARGV[4])
if last_claim > claimed then
  return false
end
redis.call('PEXPIRE', KEYS[1], ARGV[2])

-- The first fire of a session replaces the pair; within a session neither part ever falls.
local turn = tonumber(string.match(ARGV[1], ':(%d+)$'))
local watermark, claim = ARGV[3], last_claim
if tonumber(marks[3] or -1) >= turn then
  if tonumber(marks[2]) > tonumber(watermark) then
    watermark = marks[2]
  end
  claim = math.max(claim, tonumber(marks[3]))
end
redis.call('HSET', KEYS[2], 'fired_score', watermark, 'fired_claim', claim)
redis.call('ZREMRANGEBYSCORE', KEYS[3], '-inf', ARGV[5])

local revoked = redis.call('ZRANGE', KEYS[3], 0, -1, 'WITHSCORES')
local us = ARGV[6] ~= '' and ARGV[6] * 1000
if not us then
  local t = redis.call('TIME')
  us = t[1] * 1000000 + t[2]
end
local answer = {claimed, us}
for i, each in ipairs(revoked) do
  answer[i + 2] = each
end
return answer
