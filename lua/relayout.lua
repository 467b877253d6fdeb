-- Change the record of a namespace, if it is still the one that the caller has read.
--
-- KEYS[1]  birth        string
-- ARGV[1]  before       the record as it was read
-- ARGV[2]  after        the record as it is to be
-- ARGV[3]  channel      where all processes of the namespace are told
-- returns  1 it was changed, now or by an earlier try; 0 another call was faster
-- cost     O(1)
local record = redis.call('GET', KEYS[1])
if record == ARGV[2] then
  return 1
elseif record ~= ARGV[1] then
  return 0
end
redis.call('SET', KEYS[1], ARGV[2])
redis.call('PUBLISH', ARGV[3], 'fleet')
return 1
