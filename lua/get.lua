-- Return where one message is and everything known about it, read atomically.
--
-- KEYS[1]  messages     hash
-- KEYS[2]  mirror       zset
-- KEYS[3]  attempts     hash
-- KEYS[4]  parked       zset
-- KEYS[5]  dead         zset
-- KEYS[6]  dead_reason  hash
-- KEYS[7]  marks        hash
-- ARGV[1]  id
-- ARGV[2]  bytes        the most of the record that are wanted; empty: all
-- returns  false if it is unknown; else {0 delayed, 1 in flight, 2 parked or 3 dead, record
--          (empty if a dead message has none), attempts or empty, why it is dead or how it
--          failed last or empty, buried at (ms or empty), 1 if fired}
-- cost     O(log n)
local id = ARGV[1]

-- A demoted server still answers reads and refuses writes: so try a write that changes nothing.
local nothing = redis.pcall('HDEL', KEYS[1], '')
if type(nothing) == 'table' and string.find(nothing.err, 'READONLY', 1, true) then
  return redis.error_reply('READONLY this server was demoted')
end

local record = redis.call('HGET', KEYS[1], id)
local buried = redis.call('ZSCORE', KEYS[5], id)
if not record and not buried then
  return false
end
record = record and string.sub(record, 1, tonumber(ARGV[2]) or -1)
local tried = redis.call('HGET', KEYS[3], id) or ''
if buried then
  return {3, record or '', tried, redis.call('HGET', KEYS[6], id) or '', buried, 0}
end
local failed = redis.call('HGET', KEYS[3], id .. '\0') or ''
if redis.call('ZSCORE', KEYS[4], id) then
  return {2, record, tried, failed, '', 0}
end
local claim = tonumber(redis.call('ZSCORE', KEYS[2], id) or '')
if not claim then
  return {0, record, tried, failed, '', 0}
end
local marks = redis.call('HMGET', KEYS[7], 'fired_score', 'fired_claim')
local fired = #record > 9 and claim <= tonumber(marks[2] or -1)
  and struct.unpack('>d', record, 2) <= tonumber(marks[1] or -1)
return {1, record, tried, failed, '', fired and 1 or 0}
