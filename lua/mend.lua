-- Look at a page of one key of a bucket for what contradicts the others, and mend it if asked.
--
-- KEYS[1]  lease        string
-- KEYS[2]  messages     hash
-- KEYS[3]  due          zset
-- KEYS[4]  mirror       zset
-- KEYS[5]  parked       zset
-- KEYS[6]  dead         zset
-- KEYS[7]  dead_reason  hash
-- KEYS[8]  attempts     hash
-- KEYS[9]  marks        hash
-- KEYS[10] ready        zset
-- KEYS[11] calls        zset
-- ARGV[1]  token
-- ARGV[2]  ttl          ms
-- ARGV[3]  now          ms, empty = the store's clock
-- ARGV[4]  of           messages, due, parked, dead or dead_reason
-- ARGV[5]  cursor       0 = from the beginning
-- ARGV[6]  limit        entries, about
-- ARGV[7]  how          look; mend: orphans go back to due; or hold: those long overdue are parked
-- returns  false if the lease is lost, or if something is to be mended though this session has claimed;
--          else {next cursor or 0, contradictions found, orphans long overdue among these, mended:
--          orphans to due, to the dead set, parked, entries without a record buried, others; bytes
--          read; then the destinations of pull topics that have a parked message which is not in
--          `ready`, each with the lowest score of these}
-- cost     O(log n) per entry, and the size of the records
local CREATED, CANCELLED = 1, 6
local LONG_MS = 3600000 -- overdue by this much
local LEAD_MS = 1000 -- fire_lead_ms at most: what is used up or expired is buried before it is due again
local ORPHANED = 4503599627370496 -- 2^52, added to the score of one that is parked for the operator
local BACKDATED = 2 -- the head's version if the time of acceptance follows the payload
if redis.call('GET', KEYS[1]) ~= ARGV[1] then
  return false
end
local marks = redis.call('HMGET', KEYS[9], 'claimed', 'fired_score', 'bare', 'orphans_due', 'orphans_dead',
  'orphans_parked', 'orphans_bare', 'orphans_other')
local is_look = ARGV[7] == 'look'
-- Copies on the owner's wheel may be of messages that are in no set: these would be there twice.
if not is_look and marks[1] ~= string.match(ARGV[1], ':(%d+)$') then
  return false
end
local now = tonumber(ARGV[3])
if not now then
  local t = redis.call('TIME')
  now = t[1] * 1000 + math.floor(t[2] / 1000)
end
redis.call('PEXPIRE', KEYS[1], ARGV[2])
local now_text, fired_score = string.format('%.0f', now), tonumber(marks[2] or -1)
local bare = tonumber(marks[3] or '') or 0
local found, overdue, due, dead, parked, unrecorded, others, size = 0, 0, 0, 0, 0, 0, 0, 0

local function score_of(record)
  local score = #record >= 13 and string.find(record, '^[\1\2]') and struct.unpack('>d', record, 2)
  return score and score >= 0 and score < ORPHANED and score or nil
end

local function late_from(record, score)
  if string.byte(record) == BACKDATED then
    return math.max(score, (struct.unpack('>d', record, #record - 7)))
  end
  return score
end

-- MessagePack, cut by hand: Redis' cmsgpack reads no bytes. First byte -> bytes of a value, or of its size.
local FIXED = {
  [0xc0] = 0, [0xc2] = 0, [0xc3] = 0, [0xca] = 4, [0xcb] = 8, [0xcc] = 1, [0xcd] = 2, [0xce] = 4,
  [0xcf] = 8, [0xd0] = 1, [0xd1] = 2, [0xd2] = 4, [0xd3] = 8,
}
local SIZED = {[0xc4] = 1, [0xd9] = 1, [0xc5] = 2, [0xda] = 2, [0xc6] = 4, [0xdb] = 4}

-- Where the item after the one at `at` begins.
local function behind(text, at)
  local left = 1
  while left > 0 do
    local kind, items = string.byte(text, at), 0
    local wide = SIZED[kind]
    if wide then
      at = at + 1 + wide + struct.unpack('>I' .. wide, text, at + 1)
    elseif kind >= 0xa0 and kind <= 0xbf then
      at = at + 1 + kind - 0xa0
    elseif kind >= 0x90 and kind <= 0x9f then
      at, items = at + 1, kind - 0x90
    elseif kind == 0xdc then
      at, items = at + 3, struct.unpack('>I2', text, at + 1)
    else -- a small number, or one of fixed size
      at = at + 1 + (kind < 0x80 and 0 or kind >= 0xe0 and 0 or FIXED[kind])
    end
    left = left - 1 + items
  end
  return at
end

-- An item of the record that is a number or a boolean; nil if it is nil, or cannot be read.
local function item(record, number)
  local ok, value = pcall(function()
    local payload, at = string.sub(record, 14), 2
    for _ = 2, number do
      at = behind(payload, at)
    end
    return string.byte(payload, at) ~= 0xc0 and select(2, cmsgpack.unpack_one(payload, at - 1)) or nil
  end)
  return ok and value or nil
end

-- Whether the time to live is over; it counts from the due time first asked for.
local function is_expired(record, score, tried)
  local ttl = item(record, 7)
  local first = tonumber(string.match(tried, '^%d+:%d:(%d+)') or '') or math.floor(score)
  return type(ttl) == 'number' and now > first + ttl
end

local function bury(id, reason)
  redis.call('ZADD', KEYS[6], now_text, id)
  redis.call('HSET', KEYS[7], id, reason)
end

-- It may have been in the mirror, and fired; the error has a field of its own, as `retry` writes it.
local function note(id, record, score, tried, is_parked)
  local count, maybe, rest = string.match(tried, '^(%d+):(%d)(:.*)$')
  if score <= fired_score or (tried ~= '' and not maybe) then -- also if it cannot be read
    maybe = '1'
  end
  if is_parked or maybe == '1' then
    redis.call('HSET', KEYS[8], id, (count or 0) .. ':' .. (maybe or '0') .. (rest or ':'))
  end
  if is_parked then
    -- After a head of 13 bytes a payload is a MessagePack array; its first item is the destination.
    local ok, _, text = pcall(cmsgpack.unpack_limit, record, 1, 14)
    local destination = ok and type(text) == 'string' and text or '?'
    redis.call('HSET', KEYS[8], id .. '\0', now_text .. '\n' .. destination
      .. '\norphaned: it was in no set, and long overdue: publish or cancel it')
  end
end

-- Whether a call has ended this message: then the record came back. One that is delivered at most once
-- is settled before it is published.
local function has_ended(id, record)
  local past = redis.call('ZSCORE', KEYS[11], string.sub(record, 10, 13) .. id)
  local answer = past and past % 1 * 256
  return answer == CANCELLED or answer == CREATED and item(record, 8) == true
end

-- Failed attempts are of the message that is gone, not of the next one of this id.
local function forget_attempts(id)
  redis.call('HDEL', KEYS[8], id, id .. '\0')
end

-- It goes. Entries of this id are of a later message, whose record is gone: they are buried further on.
local function ended(id)
  found = found + 1
  if not is_look then
    redis.call('HDEL', KEYS[2], id)
    forget_attempts(id)
    others = others + 1
  end
end

-- A record that is in no set.
local function orphan(id, record)
  local reason, score = redis.call('HGET', KEYS[7], id), score_of(record)
  local is_dead = reason and reason ~= 'payload_missing' or not score
  local tried = redis.call('HGET', KEYS[8], id) or ''
  local is_long = not is_dead and late_from(record, score) <= now - LONG_MS
    and not is_expired(record, score, tried)
  overdue = overdue + (is_long and 1 or 0)
  if is_look then
    return
  elseif is_dead then
    note(id, record, score or 0, tried, false)
    bury(id, reason and reason ~= 'payload_missing' and reason or 'undecodable')
    dead = dead + 1
  elseif is_long and ARGV[7] == 'hold' then
    note(id, record, score, tried, true)
    redis.call('ZADD', KEYS[5], string.format('%.0f', math.floor(score) + ORPHANED), id)
    parked = parked + 1
  else -- one whose time to live is over is buried when it is claimed
    note(id, record, score, tried, false)
    redis.call('ZADD', KEYS[3], string.format('%.17g', score), id)
    due = due + 1
  end
end

-- It was kicked, or the id was scheduled again. As in `kick`, what may have arrived stays so.
local function forget_dead(id)
  local tried = redis.call('HGET', KEYS[8], id)
  redis.call('ZREM', KEYS[6], id)
  redis.call('HDEL', KEYS[7], id)
  forget_attempts(id)
  if tried and string.match(tried, ':(%d)') ~= '0' then
    redis.call('HSET', KEYS[8], id, '0:1:')
  end
end

-- Two times of one message: which is the old one cannot be known, and it must not come early.
local function delay(id, record, score, listed)
  local later = listed < ORPHANED and math.max(score, listed) or score
  redis.call('HSET', KEYS[2], id, struct.pack('>Bd', string.byte(record), later) .. string.sub(record, 10))
  redis.call('ZADD', KEYS[3], string.format('%.17g', later), id)
end

-- A record that is in several sets, or at another score than its own. of: its score in due, parked, dead.
local function place(id, record, of)
  local reason, score = of[3] and redis.call('HGET', KEYS[7], id), score_of(record)
  local is_stale = reason == 'payload_missing' -- there was another message of this id
  local is_double = (of[1] and of[2]) or (of[3] and (of[1] or of[2]))
  local is_moved = of[1] and score and tonumber(of[1]) ~= score
  -- What is scheduled or kicked after a death is due later than that.
  local is_dead = of[3] and not is_stale
    and (not score or of[3] + LEAD_MS >= math.floor(late_from(record, score)))
  if not (is_double or is_moved or is_stale) then
    return
  end
  found = found + 1
  if is_look then
    return
  end
  others = others + 1
  if is_stale then
    forget_dead(id)
    bare = math.max(0, bare - 1)
    if not (of[1] or of[2]) then
      others = others - 1
      orphan(id, record)
    end
  elseif is_dead then
    redis.call('ZREM', KEYS[3], id)
    redis.call('ZREM', KEYS[5], id)
    return
  elseif of[3] then
    forget_dead(id)
  end
  if of[1] then
    redis.call('ZREM', KEYS[5], id)
  end
  if is_moved then
    delay(id, record, score, tonumber(of[1]) or 0)
  end
end

local function messages(page)
  local ids = {}
  for i = 1, #page, 2 do
    ids[#ids + 1] = page[i]
  end
  local in_due = redis.call('ZMSCORE', KEYS[3], unpack(ids))
  local in_mirror = redis.call('ZMSCORE', KEYS[4], unpack(ids))
  local in_parked = redis.call('ZMSCORE', KEYS[5], unpack(ids))
  local in_dead = redis.call('ZMSCORE', KEYS[6], unpack(ids))
  for i, id in ipairs(ids) do
    local is_listed = in_due[i] or in_parked[i] or in_dead[i]
    if (is_listed or not in_mirror[i]) and has_ended(id, page[2 * i]) then
      ended(id)
    elseif is_listed then
      place(id, page[2 * i], {in_due[i], in_parked[i], in_dead[i]})
    elseif not in_mirror[i] then
      found = found + 1
      orphan(id, page[2 * i])
    end
  end
end

-- A message of a pull topic is parked until it is received, in the order of `ready`; or by a rule.
local unoffered = {} -- destination -> the lowest score of such a message
local function offered(id, score)
  local record = redis.call('HGET', KEYS[2], id) or ''
  size = size + #record
  local ok, _, text = pcall(cmsgpack.unpack_limit, record, 1, 14)
  if ok and type(text) == 'string' and string.find(text, '^pull:')
    and tonumber(score) < (unoffered[text] or ORPHANED)
    and not redis.call('ZSCORE', KEYS[10], text .. '\0' .. struct.pack('>d', tonumber(score)) .. id) then
    unoffered[text] = tonumber(score)
  end
end

-- Entries of `due` or `parked` whose record is gone.
local function entries(page)
  for i = 1, #page, 2 do
    local id = page[i]
    if is_look and ARGV[4] == 'parked' then
      offered(id, page[i + 1])
    end
    if redis.call('HEXISTS', KEYS[2], id) == 0 then
      found = found + 1
      if not is_look then
        redis.call('ZREM', KEYS[3], id)
        redis.call('ZREM', KEYS[5], id)
        if not redis.call('ZSCORE', KEYS[6], id) then
          bare = bare + 1
        end
        bury(id, 'payload_missing')
        forget_attempts(id)
        unrecorded = unrecorded + 1
      end
    end
  end
end

-- Dead ones without a record are counted again, and a lost reason is replaced.
local function dead_ones(page)
  if ARGV[5] == '0' and not is_look then
    bare = 0
  end
  for i = 1, #page, 2 do
    local id = page[i]
    local is_bare = redis.call('HEXISTS', KEYS[2], id) == 0
    if is_bare and not is_look then
      bare = bare + 1
      redis.call('HSET', KEYS[7], id, 'payload_missing') -- so that `schedule` knows it
      forget_attempts(id)
    end
    if redis.call('HEXISTS', KEYS[7], id) == 0 then
      found = found + 1
      if not is_look then
        redis.call('HSET', KEYS[7], id, is_bare and 'payload_missing' or 'unknown: its reason was lost')
        others = others + 1
      end
    end
  end
end

-- Reasons of messages that are not dead; orphans are left out.
local function reasons(page)
  for i = 1, #page, 2 do
    local id = page[i]
    if not redis.call('ZSCORE', KEYS[6], id) and (redis.call('HEXISTS', KEYS[2], id) == 0
      or redis.call('ZSCORE', KEYS[3], id) or redis.call('ZSCORE', KEYS[4], id)
      or redis.call('ZSCORE', KEYS[5], id)) then
      found = found + 1
      if not is_look then
        redis.call('HDEL', KEYS[7], id)
        others = others + 1
      end
    end
  end
end

local page
if ARGV[4] == 'messages' then
  page = redis.call('HSCAN', KEYS[2], ARGV[5], 'COUNT', ARGV[6])
elseif ARGV[4] == 'due' then
  page = redis.call('ZSCAN', KEYS[3], ARGV[5], 'COUNT', ARGV[6])
elseif ARGV[4] == 'parked' then
  page = redis.call('ZSCAN', KEYS[5], ARGV[5], 'COUNT', ARGV[6])
elseif ARGV[4] == 'dead' then
  page = redis.call('ZSCAN', KEYS[6], ARGV[5], 'COUNT', ARGV[6])
else
  page = redis.call('HSCAN', KEYS[7], ARGV[5], 'COUNT', ARGV[6])
end
if ARGV[4] == 'messages' then
  if #page[2] > 0 then
    messages(page[2])
  end
elseif ARGV[4] == 'dead' then
  dead_ones(page[2])
elseif ARGV[4] == 'dead_reason' then
  reasons(page[2])
else
  entries(page[2])
end

if is_look and found > 0 then
  redis.call('HSET', KEYS[9], 'suspect', '1')
elseif not is_look and ARGV[4] == 'dead_reason' and tonumber(page[1]) == 0 then -- the last page
  redis.call('HDEL', KEYS[9], 'suspect')
end
local mended = {due, dead, parked, unrecorded, others}
if not is_look then
  redis.call('HSET', KEYS[9], 'bare', string.format('%.0f', bare))
  if due + dead + parked + unrecorded + others > 0 then
    local totals = {}
    for i, more in ipairs(mended) do
      totals[i] = string.format('%.0f', (tonumber(marks[3 + i] or '') or 0) + more)
    end
    redis.call('HSET', KEYS[9], 'orphans_ms', now_text, 'orphans_due', totals[1], 'orphans_dead', totals[2],
      'orphans_parked', totals[3], 'orphans_bare', totals[4], 'orphans_other', totals[5])
  end
end
for _, text in ipairs(page[2]) do
  size = size + #text
end
mended[#mended + 1] = size
local answer = {tonumber(page[1]) == 0 and '0' or page[1], found, overdue, unpack(mended)}
for destination, score in pairs(unoffered) do
  answer[#answer + 1] = destination
  answer[#answer + 1] = string.format('%.17g', score)
end
return answer
