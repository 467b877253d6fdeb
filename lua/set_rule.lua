-- Set or remove the rule of one place, if it is still the one that the caller has read.
--
-- KEYS[1]  destinations hash
-- KEYS[2]  controls     hash
-- KEYS[3]  unrecorded   zset
-- ARGV[1]  place
-- ARGV[2]  before       JSON as it was read; empty: there was none
-- ARGV[3]  after        JSON; empty: remove it
-- ARGV[4]  limit        rules
-- ARGV[5]  channel      where the fleet listens
-- ARGV[6]  kept         the fields that are set, each followed by a space but the last
-- ARGV[7]  gone         the fields that are removed, likewise
-- ARGV[8]  now          ms, empty = the store's clock
-- ARGV[9]  recorded     1: the caller has a ledger
-- returns  1 the rule is set, 0 another call was faster: read it again, -1 there are `limit` rules;
--          then the time of the first field, each of the others is 1 later; 0 if the ledger need not know
-- cost     O(log n)
local now = redis.call('HGET', KEYS[1], ARGV[1]) or ''
local clock = redis.call('HGET', KEYS[2], 'clock')
redis.call('ZCARD', KEYS[3]) -- fails here, before the first write, if it is not a zset
-- With a ledger, what is as it was is a change, too: the ledger may have a later one that Redis lost.
if now == ARGV[3] and ARGV[9] ~= '1' then
  return {1, 0}
elseif now ~= ARGV[2] and now ~= ARGV[3] then
  return {0, 0}
elseif now == '' and ARGV[3] ~= '' and redis.call('HLEN', KEYS[1]) >= tonumber(ARGV[4]) then
  return {-1, 0}
end
-- The first write cannot grow memory: a destination can also be paused while Redis is full.
redis.call('HDEL', KEYS[1], ARGV[1])
if ARGV[3] ~= '' then
  redis.call('HSET', KEYS[1], ARGV[1], ARGV[3])
end
local at = 0
if clock or ARGV[9] == '1' then
  -- Later than every other change, also after the clock was set back.
  at = tonumber(ARGV[8])
  if not at then
    local t = redis.call('TIME')
    at = t[1] * 1000 + math.floor(t[2] / 1000)
  end
  at = math.max(at, (tonumber(clock) or 0) + 1)
  local last = at - 1
  for place, fields in ipairs({ARGV[6], ARGV[7]}) do
    for field in string.gmatch(fields, '%S+') do
      last = last + 1
      local name, text = 'rule:' .. field .. ':' .. ARGV[1], string.format('%.0f', last)
      redis.call('HDEL', KEYS[2], name)
      if place == 1 then
        redis.call('HSET', KEYS[2], name, text)
      end
      redis.call('ZADD', KEYS[3], text, name)
    end
  end
  last = string.format('%.0f', last)
  redis.call('HSET', KEYS[2], 'clock', last, 'rules', redis.call('HLEN', KEYS[1]))
end
redis.call('PUBLISH', ARGV[5], 'destinations')
return {1, at}
