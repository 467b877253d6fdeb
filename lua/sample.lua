-- Return how many messages there are, and of a few random ones the record's two ends and its size.
--
-- KEYS[1]  messages     hash
-- KEYS[2]  due          zset
-- ARGV[1]  limit        messages
-- ARGV[2]  bytes        of each record's beginning, after its head
-- ARGV[3]  bytes        of its end
-- returns  {how many there are, then four a message: beginning, size of the record, its score in
--          `due` or empty, end}
-- cost     O(limit), and the size of those
local found = {redis.call('HLEN', KEYS[1])}
local ids = redis.call('HRANDFIELD', KEYS[1], ARGV[1]) or {}
for _, id in ipairs(ids) do
  local record = redis.call('HGET', KEYS[1], id)
  found[#found + 1] = string.sub(record, 14, 13 + ARGV[2])
  found[#found + 1] = #record
  found[#found + 1] = redis.call('ZSCORE', KEYS[2], id) or ''
  found[#found + 1] = string.sub(record, -ARGV[3])
end
return found
