-- Take a page of a bucket that gives its messages to others; it is kept until it has landed there.
--
-- KEYS[1]  due          zset
-- KEYS[2]  messages     hash
-- KEYS[3]  mirror       zset
-- KEYS[4]  attempts     hash
-- KEYS[5]  parked       zset
-- KEYS[6]  dead         zset
-- KEYS[7]  dead_reason  hash
-- KEYS[8]  marks        hash
-- KEYS[9]  calls        zset
-- KEYS[10] sources      hash
-- KEYS[11] delivered    zset
-- KEYS[12] leaving      string
-- KEYS[13] gone         zset
-- ARGV[1]  now          ms, empty = the store's clock
-- ARGV[2]  landed       stamp of the page that has landed and is forgotten; empty: none
-- ARGV[3]  stamp        8 bytes, of the page that is lifted now
-- ARGV[4]  limit        messages
-- ARGV[5]  bytes        of records; one message is always taken
-- ARGV[6]  near         ms: what is due so soon is delivered from here
-- ARGV[7]  birth        the namespace's birth id
-- ARGV[8]  rest         of what goes to each target, not to one: entries of a page
-- ARGV[9+] ids          of the page that has landed: they were put back, and stay for a while
-- returns  {-1} if the bucket does not give its messages away, or has another birth id; else {phase, page,
--          ms to wait}: phase 1 messages go; 2 nothing of it can be published any more; 3 all of it has
--          gone; the page, empty if there is nothing to lift now; when it is worth to ask again
-- cost     O(log n) per message, and their size

-- A page is its stamp (8 bytes); then, each after its size (4 bytes), the gate of the buckets that it
-- goes to, and of each entry its id and what `land` takes. The gate is empty: open; 0: closed; or a
-- score: what is due before is claimed. Until the page is forgotten it is given again, whoever asks.
local LATER, STAY_MS, UNTOLD_MS, NEVER = 'moved\0', 10000, 500, '9007199254740991'
local KEEP_CALLS_MS, MOST_PAGES = 600000, 16 -- of calls, if some of them are soon too old to matter
local ORPHANED = 4503599627370496 -- 2^52: from there on orphans, parked for the operator
local AS_DUE, AS_PARKED, AS_DEAD, AS_CALL, AS_DELIVERED, AS_SOURCE, AS_COUNT = 1, 2, 3, 4, 5, 6, 7
local COUNTS = {'scheduled', 'cancelled', 'rescheduled', 'kicked', 'dropped', 'orphans_due',
  'orphans_dead', 'orphans_parked', 'orphans_bare', 'orphans_other'}
local marks = redis.call('HMGET', KEYS[8], 'birth', 'phase', 'cut', 'bare')
if marks[1] ~= ARGV[7] then
  return {-1}
end
local now = tonumber(ARGV[1])
if not now then
  local t = redis.call('TIME')
  now = t[1] * 1000 + math.floor(t[2] / 1000)
end
-- What is of a wrong type fails here, before anything is taken out.
redis.call('ZCARD', KEYS[1])
redis.call('HLEN', KEYS[2])
redis.call('ZCARD', KEYS[3])
redis.call('HLEN', KEYS[4])
redis.call('ZCARD', KEYS[5])
redis.call('ZCARD', KEYS[6])
redis.call('HLEN', KEYS[7])
redis.call('ZCARD', KEYS[9])
redis.call('HLEN', KEYS[10])
redis.call('ZCARD', KEYS[11])
-- First: after a write that cannot grow memory, a full Redis lets all others pass. So pages go.
redis.call('HDEL', KEYS[8], '')
local phase, limit, bytes = tonumber(marks[2] or 1), tonumber(ARGV[4]), tonumber(ARGV[5])
local rest = tonumber(ARGV[8])

local page = redis.call('GET', KEYS[12])
if page and string.sub(page, 1, 8) == ARGV[2] then
  for i = 9, #ARGV do -- another message has its id there
    redis.call('ZREM', KEYS[9], LATER .. ARGV[i])
    redis.call('ZADD', KEYS[9], now + STAY_MS, 'stays\0' .. ARGV[i])
  end
  redis.call('DEL', KEYS[12])
elseif page then
  return {phase, page, 0}
end

local parts = {}
local function put(text)
  parts[#parts + 1] = struct.pack('>I4', #text) .. text
end

local function lifted(gate, next_phase)
  redis.call('HSET', KEYS[8], 'phase', next_phase)
  local text = ARGV[3] .. struct.pack('>I4', #gate) .. gate .. table.concat(parts)
  redis.call('SET', KEYS[12], text)
  return {next_phase, text, 0}
end

local function entry(id, kind, score, record, tried, failing, reason)
  put(id)
  put(struct.pack('>Bd', kind, score) .. struct.pack('>I4', #record) .. record
    .. struct.pack('>I4', #tried) .. tried .. struct.pack('>I4', #failing) .. failing .. reason)
end

-- Those of (id, score) pairs that may go, up to the limits.
local function chosen(found)
  local ids, scores, size = {}, {}, 0
  for i = 1, #found, 2 do
    local stays = redis.call('ZSCORE', KEYS[9], 'stays\0' .. found[i])
    if #ids < limit and size < bytes and not (stays and tonumber(stays) > now) then
      ids[#ids + 1], scores[#scores + 1] = found[i], tonumber(found[i + 1])
      size = size + redis.call('HSTRLEN', KEYS[2], found[i])
    end
  end
  return ids, scores
end

-- Take these out of the bucket, and remember that they are elsewhere.
local function take(ids, scores, kind)
  local gone, bare = {}, 0
  for i, id in ipairs(ids) do
    local record = redis.call('HGET', KEYS[2], id)
    local reason = kind == AS_DEAD and redis.call('HGET', KEYS[7], id) or ''
    local of = kind ~= AS_PARKED and kind or scores[i] >= ORPHANED and AS_PARKED or AS_DUE
    bare = bare + (kind == AS_DEAD and not record and 1 or 0)
    if not record and kind ~= AS_DEAD then
      of, scores[i], reason = AS_DEAD, now, 'payload_missing'
    end
    local tried = redis.call('HMGET', KEYS[4], id, id .. '\0')
    entry(id, of, scores[i], record or '', tried[1] or '', tried[2] or '', reason)
    gone[#gone + 1], gone[#gone + 2] = NEVER, LATER .. id
    redis.call('HDEL', KEYS[2], id)
    redis.call('HDEL', KEYS[4], id, id .. '\0')
    redis.call('HDEL', KEYS[7], id)
    redis.call('ZREM', KEYS[1], id)
    redis.call('ZREM', KEYS[5], id)
    redis.call('ZREM', KEYS[6], id)
  end
  redis.call('ZADD', KEYS[9], unpack(gone))
  if bare > 0 then
    redis.call('HINCRBY', KEYS[8], 'bare', -bare)
  end
end

-- From the last one on: the cut falls, and what is due after it is not created here any more; nor is
-- it claimed at the others, whose gate falls with the cut.
local cut = tonumber(marks[3] or '') or math.huge
local before = cut
local later = redis.call('ZREVRANGEBYSCORE', KEYS[1], '+inf',
  '(' .. string.format('%.0f', now + ARGV[6]), 'WITHSCORES', 'LIMIT', 0, limit + 100)
local ids, scores = chosen(later)
if #ids > 0 then
  cut = math.min(cut, scores[#scores])
elseif phase == 1 and cut > now + ARGV[6] then
  cut = now + ARGV[6]
elseif phase == 1 and now >= cut then
  cut = 0 -- it is over: nothing is created here, nor claimed, before what is overdue goes in any order
  redis.call('HSET', KEYS[8], 'gate', 0)
end
local text = string.format('%.17g', cut)
redis.call('HSET', KEYS[8], 'cut', text)
if #ids > 0 then
  take(ids, scores, AS_DUE)
end
if #ids > 0 or cut < before then -- if no message goes, too
  return lifted(phase == 1 and text or '', phase)
elseif now < cut then
  return {1, '', math.ceil(cut - now)}
end

-- The cut is over. What is left is overdue; earlier ones may be in flight. (What is put back here opens
-- this bucket's own gate again: it is delivered from here.)
for _, kind in ipairs({AS_DUE, AS_PARKED}) do
  local found = kind == AS_DUE
    and redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', '+inf', 'WITHSCORES', 'LIMIT', 0, limit + 100)
    or redis.call('ZRANGEBYSCORE', KEYS[5], '-inf', '+inf', 'WITHSCORES', 'LIMIT', 0, limit + 100)
  ids, scores = chosen(found)
  if #ids > 0 then
    take(ids, scores, kind)
    return lifted(phase == 1 and text or '', phase)
  end
end
if redis.call('ZCARD', KEYS[3]) > 0 then
  return {phase, '', 5}
elseif phase == 1 then
  return lifted('', 2)
end

-- Nothing of it can be published any more: what else it has.
ids, scores = chosen(redis.call('ZRANGEBYSCORE', KEYS[6], '-inf', '+inf', 'WITHSCORES',
  'LIMIT', 0, limit + 100))
if #ids > 0 then
  take(ids, scores, AS_DEAD)
  return lifted('', phase)
elseif redis.call('HLEN', KEYS[2]) > 0 then
  return {2, '', STAY_MS}
elseif phase == 3 then -- until the ledger knows what has left
  return {redis.call('EXISTS', KEYS[13]) == 0 and 3 or 2, '', UNTOLD_MS}
end
local found = redis.call('ZRANGEBYSCORE', KEYS[11], '-inf', '+inf', 'WITHSCORES', 'LIMIT', 0, rest)
for i = 1, #found, 2 do
  entry(found[i], AS_DELIVERED, tonumber(found[i + 1]), '', '', '', '')
  redis.call('ZREM', KEYS[11], found[i])
end
if #found > 0 then
  return lifted('', 2)
end
-- Which target a call was for is not known. Copies for many of them would fill Redis: these grow old here.
local old = string.format('%.0f', now - KEEP_CALLS_MS)
if redis.call('ZCOUNT', KEYS[9], old, '(' .. NEVER) > rest * MOST_PAGES then
  return {2, '', STAY_MS}
end
found = redis.call('ZRANGEBYSCORE', KEYS[9], old, '(' .. NEVER, 'WITHSCORES', 'LIMIT', 0, rest)
for i = 1, #found, 2 do
  if string.sub(found[i], 1, 6) ~= 'stays\0' then
    entry(found[i], AS_CALL, tonumber(found[i + 1]), '', '', '', '')
  end
  redis.call('ZREM', KEYS[9], found[i])
end
if #found > 0 then
  return lifted('', 2)
end
found = redis.call('HSCAN', KEYS[10], '0', 'COUNT', rest)[2]
for i = 1, math.min(#found, 2 * rest), 2 do
  entry(found[i], AS_SOURCE, tonumber(found[i + 1]) or 0, '', '', '', '')
  redis.call('HDEL', KEYS[10], found[i])
end
if #found > 0 then
  return lifted('', 2)
end
for i, value in ipairs(redis.call('HMGET', KEYS[8], unpack(COUNTS))) do
  if value then
    entry(COUNTS[i], AS_COUNT, tonumber(value), '', '', '', '')
  end
end
return lifted('', 3)
