-- Take the lease of a bucket that no worker holds, which begins a new turn and a new session.
--
-- KEYS[1]  lease        string
-- KEYS[2]  marks        hash
-- KEYS[3]  revoked      zset
-- KEYS[4]  messages     hash
-- ARGV[1]  owner        worker name, colon, a random part that is new for each taking; empty: only
--                       look at the lease
-- ARGV[2]  ttl          ms
-- ARGV[3]  birth        the namespace's birth id
-- ARGV[4]  dedup        ms: how long an id that this owner settles is not scheduled again; 0: it may be
-- ARGV[5]  back         ms by which the caller saw the store's clock set back lately; 0: not
-- returns  {1, turn} taken, now or when this call was first executed; the token is owner:turn, and
--          turn 1 is the bucket's first. {0, ms left, holder} held by another, or only looked at.
--          {-1} if the bucket has another birth id and messages
-- cost     O(revoked)
local held = redis.call('GET', KEYS[1])
if held then
  local turn = string.match(held, ':(%d+)$')
  if turn and held == ARGV[1] .. ':' .. turn then
    return {1, tonumber(turn)}
  end
  -- After a clock step back a PTTL is longer than any lease: a dead owner would keep its bucket. It
  -- was renewed before, so the rest of it is known by the step; else it gets its ttl once more:
  -- its own, not the caller's: settings may differ.
  local left = redis.call('PTTL', KEYS[1])
  local ttl = tonumber(redis.call('HGET', KEYS[2], 'ttl') or ARGV[2])
  if left < 0 or left > ttl then
    local rest = left - ARGV[5]
    left = (left < 0 or rest < -ttl or rest > ttl) and ttl or math.max(1, rest)
    redis.call('PEXPIRE', KEYS[1], left)
  end
  return {0, left, held}
elseif ARGV[1] == '' then
  return {0, 0, ''}
end
-- An empty bucket may have the id of a namespace since wiped, whose worker took it late.
local birth = redis.call('HGET', KEYS[2], 'birth')
if birth and birth ~= ARGV[3] and redis.call('HLEN', KEYS[4]) > 0 then
  return {-1}
end

-- The first write cannot grow memory: a full Redis still drains. Nothing claimed before this turn
-- is on the new owner's wheel, so nothing needs to be revoked there.
redis.call('DEL', KEYS[3])
local turn = redis.call('HINCRBY', KEYS[2], 'turn', 1)
redis.call('HSET', KEYS[2], 'claimed', turn, 'birth', ARGV[3], 'ttl', ARGV[2])
if ARGV[4] == '0' then
  redis.call('HDEL', KEYS[2], 'dedup_ms')
else
  redis.call('HSET', KEYS[2], 'dedup_ms', ARGV[4])
end
redis.call('SET', KEYS[1], ARGV[1] .. ':' .. turn, 'PX', ARGV[2])
return {1, turn}
