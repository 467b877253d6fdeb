-- Return how many messages there are, and the beginning and size of a few random records.
--
-- KEYS[1]  messages     hash
-- ARGV[1]  limit        messages
-- ARGV[2]  bytes        of each record's beginning, after its head
-- returns  {how many there are, beginning, size of the record, beginning, size, ...}
-- cost     O(limit), and the size of those
local found = {redis.call('HLEN', KEYS[1])}
local ids = redis.call('HRANDFIELD', KEYS[1], ARGV[1]) or {}
for _, id in ipairs(ids) do
  local record = redis.call('HGET', KEYS[1], id)
  found[#found + 1] = string.sub(record, 14, 13 + ARGV[2])
  found[#found + 1] = #record
end
return found
