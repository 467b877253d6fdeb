-- Release a lease, and tell the fleet.
--
-- KEYS[1]  lease        string
-- ARGV[1]  token
-- ARGV[2]  channel      where the fleet listens
-- returns  1 released, 0 the token no longer held it
-- cost     O(1)
if redis.call('GET', KEYS[1]) ~= ARGV[1] then
  return 0
end
redis.call('DEL', KEYS[1])
redis.call('PUBLISH', ARGV[2], 'fleet')
return 1
