-- Forget messages that the broker confirmed.
--
-- KEYS[1]  lease        string
-- KEYS[2]  mirror       zset
-- KEYS[3]  messages     hash
-- KEYS[4]  attempts     hash
-- KEYS[5]  calls        zset
-- KEYS[6]  marks        hash
-- KEYS[7]  gone         zset
-- KEYS[8]  delivered    zset
-- ARGV[1]  token
-- ARGV[2]  ttl          ms
-- ARGV[3]  now          ms, empty = the store's clock
-- ARGV[4]  once         1: at most once, not published yet; a schedule sent again must not revive it
-- ARGV[5+] groups       claim number, count, that many ids
-- returns  false if the lease is lost; else how many were settled; with once the ids that these
--          claims settled, now or when this call was first executed
-- cost     O(log n) per id
local CREATED = 1
local PUBLISHED = 1 -- in `gone`
local KEEP_CALLS_MS = 600000
if redis.call('GET', KEYS[1]) ~= ARGV[1] then
  return false
end
redis.call('PEXPIRE', KEYS[1], ARGV[2])
local once = ARGV[4] == '1'
local tried = redis.call('HLEN', KEYS[4]) > 0
local marks = redis.call('HMGET', KEYS[6], 'generation', 'dedup_ms')
local generation = marks[1] -- if there is a ledger
local window = tonumber(marks[2]) -- if delivered ids are kept
local settled, count = {}, 0
local now = tonumber(ARGV[3])
if (once or window) and not now then
  local t = redis.call('TIME')
  now = t[1] * 1000 + math.floor(t[2] / 1000)
end

-- A settled claim leaves a note, so that this call, sent again, returns the same ids. The note ends
-- in NUL, which no id contains, so it is never taken for stamp and id.
local function note(claim, id)
  return claim .. ':' .. id .. '\0'
end

local function remember(claim, ids)
  local old_calls = redis.call('ZRANGEBYSCORE', KEYS[5], '-inf', now - KEEP_CALLS_MS,
    'LIMIT', 0, 100 + 2 * #ids)
  if #old_calls > 0 then
    redis.call('ZREM', KEYS[5], unpack(old_calls))
  end
  local score = string.format('%.17g', now + CREATED / 256)
  for _, id in ipairs(ids) do
    local record = redis.call('HGET', KEYS[3], id)
    if record then
      redis.call('ZADD', KEYS[5], score, string.sub(record, 10, 13) .. id)
    end
    redis.call('ZADD', KEYS[5], score, note(claim, id))
    settled[#settled + 1] = id
  end
end

-- Keep them for the ledger.
local function keep(ids)
  local entries = {}
  for i, record in ipairs(redis.call('HMGET', KEYS[3], unpack(ids))) do
    if record then
      entries[#entries + 1] = string.format('%.17g', generation + PUBLISHED / 256)
      local stamp = string.sub(record, 10, 13)
      entries[#entries + 1] = stamp .. ids[i]
    end
  end
  if #entries > 0 then
    redis.call('ZADD', KEYS[7], unpack(entries))
  end
end

-- Note that they were delivered, and until when that counts.
local function note_delivered(ids)
  local entries, until_ms = {}, string.format('%.0f', now + window)
  for i, id in ipairs(ids) do
    entries[2 * i - 1], entries[2 * i] = until_ms, id
  end
  redis.call('ZADD', KEYS[8], 'GT', unpack(entries)) -- an owner with a longer window may have noted it
end

-- Whether these ids are all that the mirror has under a claim: a score as text costs more than that.
local function are_whole(claim, first, last)
  local some = last - first + 1
  if some < 4 or redis.call('ZCOUNT', KEYS[2], claim, claim) ~= some then
    return false
  end
  local held = redis.call('ZRANGEBYSCORE', KEYS[2], claim, claim)
  local at = 1
  while at <= some and held[at] == ARGV[first + at - 1] do -- in the same order, as a rule
    at = at + 1
  end
  local others = {}
  for i = at, some do
    others[held[i]] = true
  end
  for i = at, some do
    local id = ARGV[first + i - 1]
    if not others[id] then
      return false
    end
    others[id] = nil
  end
  return true
end

local function errors_of(ids)
  local fields = {}
  for i, id in ipairs(ids) do
    fields[i] = id .. '\0'
  end
  return fields
end

local at = 5
while at < #ARGV do
  local claim, size = tonumber(ARGV[at]), tonumber(ARGV[at + 1])
  for i = at + 2, at + 1 + size, 500 do
    local last = math.min(i + 499, at + 1 + size)
    local ids, is_whole = {}, are_whole(ARGV[at], i, last)
    if is_whole then
      ids = {unpack(ARGV, i, last)}
    else
      for j, of in ipairs(redis.call('ZMSCORE', KEYS[2], unpack(ARGV, i, last))) do
        local id = ARGV[i + j - 1]
        if of == ARGV[at] or tonumber(of or '') == claim then -- as text it is compared at once
          ids[#ids + 1] = id
        elseif once and redis.call('ZSCORE', KEYS[5], note(claim, id)) then
          settled[#settled + 1] = id
        end
      end
    end
    if #ids > 0 then
      if once then
        remember(claim, ids)
      end
      if generation then
        keep(ids)
      end
      if window then
        note_delivered(ids)
      end
      redis.call('HDEL', KEYS[3], unpack(ids))
      if is_whole then
        redis.call('ZREMRANGEBYSCORE', KEYS[2], ARGV[at], ARGV[at])
      else
        redis.call('ZREM', KEYS[2], unpack(ids))
      end
      if tried then
        redis.call('HDEL', KEYS[4], unpack(ids))
        redis.call('HDEL', KEYS[4], unpack(errors_of(ids)))
      end
      count = count + #ids
    end
  end
  at = at + 2 + size
end
if window and count > 0 then
  local expired = redis.call('ZRANGEBYSCORE', KEYS[8], '-inf', now,
    'LIMIT', 0, 100 + math.min(2 * count, 3000))
  if #expired > 0 then
    redis.call('ZREM', KEYS[8], unpack(expired))
  end
end
return once and settled or count
