-- Bring rules and recurring definitions back as the ledger has them, where Redis has no later ones.
--
-- KEYS[1]  destinations    hash
-- KEYS[2]  recurring       hash
-- KEYS[3]  recurring_due   zset
-- KEYS[4]  recurring_state hash
-- KEYS[5]  controls        hash
-- KEYS[6]  unrecorded      zset
-- ARGV[1]  comparison   its name, which `controls.healed` has unless another has begun; empty: one begins,
--          or a worker brings back what it remembers, the ledger may lack it, and no comparison has seen it
-- ARGV[2]  clock        `controls.clock` when it began; empty: there was none
-- ARGV[3]  healed       `controls.healed` from now on, if this is the first or the last call; else empty
-- ARGV[4]  last         `controls.clock` from then on; without a comparison from now on
-- ARGV[5]  look         epoch ms: when workers look at definitions that are brought back
-- ARGV[6+] controls     four each: kind, name, time, value; no value: it was removed. Of a rule its fields
--          with their times, then `place`, its name, and the rule as a whole
-- returns  how many are others now; -1 something was changed meanwhile: compare again
-- cost     O(log n) per control
local at = redis.call('HMGET', KEYS[5], 'healed', 'clock')
-- These fail here, before the first write, if their keys are damaged.
redis.call('HLEN', KEYS[1])
redis.call('HLEN', KEYS[2])
redis.call('ZCARD', KEYS[3])
redis.call('HLEN', KEYS[4])
redis.call('ZCARD', KEYS[6])
if ARGV[1] ~= '' and at[1] ~= ARGV[1] or (at[2] or '') ~= ARGV[2] then
  return -1
end
local changed = 0
for i = 6, #ARGV, 4 do
  local kind, name, time, value = ARGV[i], ARGV[i + 1], ARGV[i + 2], ARGV[i + 3]
  -- What cannot grow memory comes first: a full Redis takes them, too.
  if kind ~= 'place' then
    redis.call('HDEL', KEYS[5], kind .. ':' .. name)
    redis.call('ZREM', KEYS[6], kind .. ':' .. name)
    if value ~= '' then
      redis.call('HSET', KEYS[5], kind .. ':' .. name, time)
    end
    if ARGV[1] == '' then
      redis.call('ZADD', KEYS[6], time, kind .. ':' .. name)
    end
  end
  if kind ~= 'rule' then
    local here
    if kind == 'place' then
      here = redis.call('HGET', KEYS[1], name)
      redis.call('HDEL', KEYS[1], name)
      if value ~= '' then
        redis.call('HSET', KEYS[1], name, value)
      end
    else
      here = redis.call('HGET', KEYS[2], name)
      redis.call('HDEL', KEYS[2], name)
      if value ~= '' then
        redis.call('HSET', KEYS[2], name, value)
      end
    end
    if (here or '') ~= value then
      changed = changed + 1
      if kind == 'definition' then
        redis.call('HDEL', KEYS[4], name)
        redis.call('ZREM', KEYS[3], name)
        if value ~= '' then
          redis.call('ZADD', KEYS[3], ARGV[5], name)
        end
      end
    end
  end
end
if ARGV[3] ~= '' then
  redis.call('HDEL', KEYS[5], 'healed') -- a full Redis takes this, too
end
if ARGV[1] == '' then
  redis.call('HSET', KEYS[5], 'clock', ARGV[4])
end
if ARGV[3] ~= '' then
  local rules, definitions = redis.call('HLEN', KEYS[1]), redis.call('HLEN', KEYS[2])
  redis.call('HSET', KEYS[5], 'healed', ARGV[3], 'clock', ARGV[4], 'rules', rules,
    'definitions', definitions)
end
return changed
