-- Take the lease of a bucket that nobody holds: a new turn, and with it a new session.
--
-- KEYS[1]  lease        string
-- KEYS[2]  marks        hash
-- KEYS[3]  revoked      zset
-- ARGV[1]  owner        worker name, colon, a random part that is new for each taking
-- ARGV[2]  ttl          ms
-- ARGV[3]  birth        the namespace's birth id
-- returns  {1, turn} taken, or taken by this very call before; the token is owner:turn, and turn 1
--          is the first that the bucket ever had. {0, ms left, holder} held by another.
--          {-1} where the birth id is not the bucket's
-- cost     O(revoked)
local held = redis.call('GET', KEYS[1])
if held then
  local turn = string.match(held, ':(%d+)$')
  if turn and held == ARGV[1] .. ':' .. turn then
    return {1, tonumber(turn)}
  end
  -- A clock that stepped back makes a PTTL longer than any lease: a dead owner would keep its bucket.
  -- By its own ttl, not ours: the setting may just be changed, one worker after the other.
  local left = redis.call('PTTL', KEYS[1])
  local ttl = tonumber(redis.call('HGET', KEYS[2], 'ttl') or ARGV[2])
  if left < 0 or left > ttl then
    redis.call('PEXPIRE', KEYS[1], ttl)
    left = ttl
  end
  return {0, left, held}
end
local birth = redis.call('HGET', KEYS[2], 'birth')
if birth and birth ~= ARGV[3] then
  return {-1}
end

-- The first write cannot grow memory: a full Redis still drains. Nothing claimed before this turn
-- is on the new owner's wheel, so that nothing needs to be revoked there.
redis.call('DEL', KEYS[3])
local turn = redis.call('HINCRBY', KEYS[2], 'turn', 1)
redis.call('HSET', KEYS[2], 'claimed', turn, 'birth', ARGV[3], 'ttl', ARGV[2])
redis.call('SET', KEYS[1], ARGV[1] .. ':' .. turn, 'PX', ARGV[2])
return {1, turn}
