-- Add what a worker counted since its last sample to the rings of seconds, minutes and half hours.
--
-- KEYS[1]  series       hash
-- ARGV[1]  now          ms, empty = the store's clock
-- ARGV[2]  worker       its name
-- ARGV[3]  instance     random: tells this process from others of the same name
-- ARGV[4]  number       of the sample; one that was added before changes nothing; 0: none is added
-- ARGV[5]  sample       MessagePack: name -> count; destination -> {count, ...}; highest lateness in ms;
--                       {bucket, scheduled, cancelled, rescheduled, delayed, in flight, parked, dead,
--                       bucket, ...}: totals of buckets, and how many messages are in each state
-- returns  1 if it was added, 0 if it had been
-- cost     O(names and destinations in a slot)
local RINGS = {{'s', 1, 61}, {'m', 60, 61}, {'h', 1800, 49}} -- the slot's field, seconds, slots
local MOST_DESTINATIONS = 50 -- of a slot; all others are counted as `other`
local KEEP_S = 600 -- how long the number of a worker's last sample is known
local WATCHED_S = 60 -- a bucket's totals that are older say nothing about now
local OF_BUCKETS = {'scheduled', 'cancelled', 'rescheduled'}
local STATES = {'state_delayed', 'state_in_flight', 'state_parked', 'state_dead'} -- counted: changes
local STRIDE = 1 + #OF_BUCKETS + #STATES
local FORM = '%.0f' .. string.rep(' %.0f', STRIDE - 1)
local worker, instance, number = ARGV[2], ARGV[3], tonumber(ARGV[4])
if number == 0 then -- doctor tries whether the script runs
  return #redis.call('HMGET', KEYS[1], 'workers') - 1
end
local counts, destinations, late_ms, totals = unpack(cmsgpack.unpack(ARGV[5]))
local now = tonumber(ARGV[1])
if not now then
  local t = redis.call('TIME')
  now = t[1] * 1000 + math.floor(t[2] / 1000)
end
local second = math.floor(now / 1000)

local fields = {'workers'}
for _, ring in ipairs(RINGS) do
  fields[#fields + 1] = ring[1] .. math.floor(second / ring[2]) % ring[3]
end
for i = 1, #totals, STRIDE do
  fields[#fields + 1] = 'b' .. totals[i]
end
local found = redis.call('HMGET', KEYS[1], unpack(fields))

-- A field that cannot be read begins again.
local function decoded(text)
  local ok, value = pcall(cmsgpack.unpack, text or '')
  return ok and type(value) == 'table' and value or {}
end

local workers = {}
for key, seen in pairs(decoded(found[1])) do
  if type(seen) == 'table' and math.abs(second - (tonumber(seen[3]) or 0)) < KEEP_S then
    workers[key] = seen
  end
end
if workers[instance] and number <= workers[instance][2] then
  return 0
end
local is_first = not workers[instance] or workers[instance][3] ~= second -- in this second
workers[instance] = {worker, number, second}
local written = {'workers', cmsgpack.pack(workers)}

-- What was done in a bucket since it was last read: {second, total, ...}, as text.
for i = 1, #totals, STRIDE do
  local at = 2 + #RINGS + (i - 1) / STRIDE
  local before, is_older = {}, false
  for word in string.gmatch(found[at] or '', '%d+') do
    before[#before + 1] = tonumber(word)
  end
  local is_known = #before == STRIDE
  if is_known and math.abs(second - before[1]) <= WATCHED_S then
    for j = 1, #OF_BUCKETS do -- another worker has told more: this sample was under way for long
      is_older = is_older or totals[i + j] < before[j + 1]
    end
    for j, name in ipairs(OF_BUCKETS) do
      if not is_older and totals[i + j] > before[j + 1] then
        counts[name] = (counts[name] or 0) + totals[i + j] - before[j + 1]
      end
    end
  end
  if not is_older then
    for j, name in ipairs(is_known and STATES or {}) do
      local change = totals[i + #OF_BUCKETS + j] - before[1 + #OF_BUCKETS + j]
      counts[name] = (counts[name] or 0) + change
    end
    written[#written + 1] = fields[at]
    written[#written + 1] = string.format(FORM, second, unpack(totals, i + 1, i + STRIDE - 1))
  end
end

local function add(into, more)
  for name, count in pairs(more) do
    into[name] = (tonumber(into[name]) or 0) + count
  end
end

-- Slot: period, samples (of each worker one a second), first and last second, highest lateness,
-- counts, destinations.
for n, ring in ipairs(RINGS) do
  local slot = decoded(found[1 + n])
  local period = math.floor(second / ring[2])
  local kinds = {}
  for i, value in ipairs(slot) do
    kinds[i] = string.sub(type(value), 1, 1)
  end
  if slot[1] ~= period or table.concat(kinds) ~= 'nnnnntt' then
    slot = {period, 0, second, second, 0, {}, {}}
  end
  slot[2], slot[4] = slot[2] + (is_first and 1 or 0), second
  slot[5] = math.max(slot[5], late_ms)
  add(slot[6], counts)
  local room = MOST_DESTINATIONS
  for _ in pairs(slot[7]) do
    room = room - 1
  end
  for destination, more in pairs(destinations) do
    if not slot[7][destination] and room <= 0 then
      destination = 'other'
    elseif not slot[7][destination] then
      room = room - 1
    end
    if type(slot[7][destination]) ~= 'table' then
      slot[7][destination] = {}
    end
    add(slot[7][destination], more)
  end
  written[#written + 1] = fields[1 + n]
  written[#written + 1] = cmsgpack.pack(slot)
end
redis.call('HSET', KEYS[1], unpack(written))
return 1
