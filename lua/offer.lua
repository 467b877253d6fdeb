-- Set due messages of pull topics aside until a consumer receives them.
--
-- KEYS[1]  lease        string
-- KEYS[2]  mirror       zset
-- KEYS[3]  parked       zset
-- KEYS[4]  ready        zset
-- ARGV[1]  token
-- ARGV[2]  ttl          ms
-- ARGV[3]  channel      where consumers that wait are told each destination
-- ARGV[4+] messages     four each: id, claim number, score it was claimed with, destination
-- returns  false if the lease is lost; else how many were offered
-- cost     O(log n) per message
if redis.call('GET', KEYS[1]) ~= ARGV[1] then
  return false
end
redis.call('PEXPIRE', KEYS[1], ARGV[2])
-- They are parked, so that whatever changes or lists a parked message does so with them; `ready` only
-- says in which order a topic's are received. An entry whose message left `parked` means nothing.
local count, told = 0, {}
for i = 4, #ARGV, 4 do
  local id, score, destination = ARGV[i], ARGV[i + 2], ARGV[i + 3]
  if tonumber(redis.call('ZSCORE', KEYS[2], id) or '') == tonumber(ARGV[i + 1]) then
    redis.call('ZADD', KEYS[4], 0, destination .. '\0' .. struct.pack('>d', tonumber(score)) .. id)
    redis.call('ZADD', KEYS[3], score, id)
    redis.call('ZREM', KEYS[2], id)
    count = count + 1
    if not told[destination] then
      told[destination] = true
      redis.call('PUBLISH', ARGV[3], destination)
    end
  end
end
return count
