-- Accept delayed messages of one bucket; a call sent again changes nothing and gives the same answers.
--
-- KEYS[1]  messages     hash
-- KEYS[2]  due          zset
-- KEYS[3]  mirror       zset
-- KEYS[4]  attempts     hash
-- KEYS[5]  parked       zset
-- KEYS[6]  dead         zset
-- KEYS[7]  dead_reason  hash
-- KEYS[8]  marks        hash
-- KEYS[9]  revoked      zset
-- KEYS[10] calls        zset
-- KEYS[11] sources      hash
-- KEYS[12] gone         zset
-- KEYS[13] delivered    zset
-- ARGV[1]  now          ms, empty = the store's clock
-- ARGV[2]  policy       0 fail, 1 keep, 2 replace; 3: as 0, and a copy of each message may have been
--                       delivered already; 4: as 1, but nothing happens unless the source is known to
--                       the bucket, and whatever has the id is the same message; 5: as 2, and each
--                       message that is replaced is named; 6: as 0, and each was tried elsewhere; 8 more:
--                       some are gathered; 16 more: and each that is replaced is named
-- ARGV[3]  birth        the namespace's birth id
-- ARGV[4]  first        1: the caller has just read the birth id; a bucket without one, or without
--                       messages, takes it: a worker of a namespace that was wiped may have left its own
-- ARGV[5]  channel      where an idle owner is woken; a sharded channel has a + before it
-- ARGV[6]  bucket       number
-- ARGV[7]  source       topic and partition that the messages were read from; empty: none
-- ARGV[8]  offsets      8 bytes each, ascending; messages read from the source before are skipped;
--                       without a source 1, if each message has a row in the ledger
-- ARGV[9]  reach        a JSON list of destinations, each a list of Lua patterns that follow each other:
--                       a pending message of the same id is foreign unless bound for one; empty: none is;
--                       = and a stamp: only a pending message that the call with it scheduled, and that
--                       is due at the same time, is replaced. `foreign` is the answer for any other, for
--                       one that is dead or that a consumer has, and if there is no message. With the
--                       policy 6 a JSON list: of each message its attempts and its last error, as they
--                       are stored, or empty
-- ARGV[10] count        of the messages
-- ARGV[11+] messages    their ids; then of each its stamp (4 bytes) and payload, in one word; then two
--                       words for each run of messages due at the same time: its score (epoch ms +
--                       rank / 256; or + and the same with a delay in ms), how many messages. Gathered
--                       ones have in place of a score ~QUIET:LONGEST (debounced) or ^EVERY (throttled; or
--                       ^EVERY:END, until when another bucket knows a span), in ms, and rank / 256;
--                       their payloads end in a double that is written here
-- returns  {-1} if the bucket has another birth id; else three numbers for each run of equal answers:
--          answer, due ms (of the pending message of that id, else as asked for), how many messages;
--          an id delivered within the bucket's window is a duplicate, unless the policy is replace;
--          a fired message is in flight, whatever the policy: the same call is to be made again; so is
--          one whose record has vanished, while its owner has it, and a gathered one that is due;
--          instead of a message that a consumer of a pull topic has, the new one is created;
--          30, elsewhere: the bucket gives its messages to others, and the call is to be made there;
--          with a source they end with the first conflict, foreign or in flight, which does not
--          count as read; nothing if the source had to be known and is not;
--          if they are to be named a list comes last: for each answer replaced the stamp of the call
--          that scheduled the old message, empty if this call replaced it before and is sent again; and
--          of a debounced message also the double at the end of its payload;
--          gathered messages replace one of their own kind whatever the policy; kept (18): it is
--          throttled, and due when the span ends; conflict: the id is that of another kind of message,
--          or its message goes elsewhere
-- cost     O(log n) per message
local CREATED, DUPLICATE, CONFLICT, REPLACED, IN_FLIGHT, CANCELLED = 1, 2, 3, 4, 5, 6
local FOREIGN, KEPT, BEGUN, ELSEWHERE = 14, 18, 19, 30 -- begun: in `calls`, of gathered messages
local LATER, NEVER = 'moved\0', '9007199254740991' -- in `calls`, as `lift` has it
local PUBLISHED, WITHDRAWN = 1, 2 -- in `gone`
local KEEP, REPLACE, MAYBE_DELIVERED, KNOWN_SOURCE, REPLACE_NAMED, CARRIED = 1, 2, 3, 4, 5, 6 -- policies
local GATHERED = 8 -- more
local BACKDATED = 2 -- the head's version if the time of acceptance follows the payload
local KEEP_CALLS_MS = 600000
local LEAVES_MS = 1000 -- after it is due a gathered message is about to leave, and not replaced
-- Redis keeps a short zset as a list, and reads scores along it as text, which takes 0.2 us each. One
-- that held a long id is a tree from then on, until it is empty.
local SHORT = 16
local LONG_ID = string.rep('\0', 65)
local MOST_AT_ONCE = 2000 -- Lua's stack bounds the words of one command
local policy, count, argv = tonumber(ARGV[2]), tonumber(ARGV[10]), ARGV
local only = string.byte(ARGV[9]) == 61 and string.sub(ARGV[9], 2) -- the stamp after a =
local tried_before = policy == CARRIED and cjson.decode(ARGV[9])
local replaced = nil -- stamps, if they are asked for
local is_gathered = policy >= GATHERED
if is_gathered then
  replaced = policy >= 2 * GATHERED and {} or nil
  policy = policy % GATHERED
end
if policy == REPLACE_NAMED then
  policy, replaced = REPLACE, {}
end

local marks = redis.call('HMGET', KEYS[8], 'birth', 'look', 'dedup_ms', 'bare', 'cut')
local stranger = marks[1] ~= ARGV[3]
if stranger and (ARGV[4] ~= '1' or marks[1] and redis.call('HLEN', KEYS[1]) > 0) then
  return {-1}
end

-- A delay is counted from the end of the current millisecond, so that it is never cut short.
local now = tonumber(ARGV[1])
if not now then
  local t = redis.call('TIME')
  now = t[1] * 1000 + math.ceil(t[2] / 1000)
end

local undone = redis.call('ZCARD', KEYS[10]) > 0
local source, read = ARGV[7], nil -- read: the highest offset so far
local has_row = source == '' and ARGV[8] == '1'
if source ~= '' then
  read = tonumber(redis.call('HGET', KEYS[11], source))
  if policy == KNOWN_SOURCE and not read then
    return {}
  end
  read = read or -1
end
local delivered = nil -- ids, each as a key, if there are such
if marks[3] and policy ~= REPLACE then
  for i = 11, 10 + count do
    if tonumber(redis.call('ZSCORE', KEYS[13], argv[i]) or 0) > now then
      delivered = delivered or {}
      delivered[argv[i]] = true
    end
  end
end
if stranger then
  redis.call('ZCARD', KEYS[2]) -- fails here, before the first write, if it is not a zset
  redis.call('HSET', KEYS[8], 'birth', ARGV[3])
end
local look = tonumber(marks[2]) or 0 -- an idle owner's next look
local head -- the earliest score before this call, once it matters to that owner
local first_due = math.huge
local answers = {}

-- Before messages enter `due`.
local function note_head()
  if not head and first_due < look then
    head = tonumber(redis.call('ZRANGE', KEYS[2], 0, 0, 'WITHSCORES')[2] or math.huge)
  end
end

-- After they are stored: this must not fail.
local function count_scheduled(more)
  if type(redis.pcall('HINCRBY', KEYS[8], 'scheduled', more)) ~= 'number' then
    redis.call('HSET', KEYS[8], 'scheduled', more) -- it was not a number: it begins again
  end
end

-- The score of a run, and what its records have before the stamp and after the payload.
local function run_at(at)
  local score = string.byte(argv[at]) == 43 and now + argv[at] or tonumber(argv[at])
  if score < now - 1 then -- overdue when accepted: its lateness counts from now
    return score, struct.pack('>Bd', BACKDATED, score), struct.pack('>d', now)
  end
  return score, struct.pack('>Bd', 1, score), ''
end

local bare = tonumber(marks[4] or '') or 0 -- dead without a record
local cut = tonumber(marks[5]) -- if this bucket gives its messages to others

-- Whether the keys contradict one another: a record may have vanished, and its entries not. These are
-- not those of a message that takes its id. One of a wrong type does not keep messages out.
local in_mirror, in_parked = redis.pcall('ZCARD', KEYS[3]), redis.pcall('ZCARD', KEYS[5])
local in_dead = redis.pcall('ZCARD', KEYS[6])
local in_due = redis.call('ZCARD', KEYS[2])
local is_odd = type(in_mirror) == 'number' and type(in_parked) == 'number' and type(in_dead) == 'number'
  and in_due + in_mirror + in_parked + in_dead - bare ~= redis.call('HLEN', KEYS[1])
-- Attempts can be there without a record, and no size tells. Of a run of KNOWN_SOURCE they are its own.
local in_attempts = policy ~= KNOWN_SOURCE and redis.pcall('HLEN', KEYS[4])
local any_tried = type(in_attempts) == 'number' and in_attempts > 0

-- The usual case: all messages are new. Then three calls store them.
local all_new = count > 0 and count <= MOST_AT_ONCE and policy ~= MAYBE_DELIVERED and not tried_before
  and not delivered
  and not is_odd and not only and not is_gathered and not cut
  and not (read and struct.unpack('>I8', ARGV[8]) <= read)
local checked = 10
if all_new and count == 1 then -- cheaper than the general way
  all_new, checked = redis.call('HEXISTS', KEYS[1], argv[11]) == 0, 11
end
while all_new and checked < 10 + count do -- a few at a time: pending ones may be large
  local last = math.min(checked + 25, 10 + count)
  for _, pending in ipairs(redis.call('HMGET', KEYS[1], unpack(argv, checked + 1, last))) do
    all_new = all_new and not pending
  end
  checked = last
end
for i = 11, all_new and undone and 10 + count or 0 do
  local call = string.sub(argv[i + count], 1, 4) .. argv[i]
  all_new = all_new and not redis.call('ZSCORE', KEYS[10], call)
end
if all_new then
  local fields, scores, n = {}, {}, 0
  for at = 11 + 2 * count, #argv, 2 do
    local score, front, back = run_at(at)
    local many, text = tonumber(argv[at + 1]), argv[at]
    if string.byte(text) == 43 then
      text = string.format('%.17g', score)
    end
    -- From the end: a short zset is searched from its beginning.
    for i = 10 + n / 2 + many, 11 + n / 2, -1 do
      fields[n + 1], fields[n + 2] = argv[i], front .. argv[count + i] .. back
      scores[n + 1], scores[n + 2] = text, argv[i]
      n = n + 2
    end
    first_due = math.min(first_due, score)
    local last = #answers
    answers[last + 1], answers[last + 2], answers[last + 3] = CREATED, math.floor(score), many
  end
  note_head()
  local grows = in_due < SHORT and in_due + count >= SHORT
  if grows then
    redis.call('ZADD', KEYS[2], 0, LONG_ID)
  end
  redis.call('ZADD', KEYS[2], unpack(scores)) -- fails here, before it wrote, if it is not a zset
  if grows then
    redis.call('ZREM', KEYS[2], LONG_ID)
  end
  if redis.call('HSET', KEYS[1], unpack(fields)) < count then -- an id is there twice
    redis.call('HDEL', KEYS[1], unpack(argv, 11, 10 + count))
    redis.call('ZREM', KEYS[2], unpack(argv, 11, 10 + count))
    answers, first_due, head, all_new = {}, math.huge, nil, false
  else
    if any_tried and redis.call('HDEL', KEYS[4], unpack(argv, 11, 10 + count)) > 0 then
      for i = 1, count do -- they were of earlier messages, and so are the errors
        fields[i] = argv[10 + i] .. '\0'
      end
      redis.call('HDEL', KEYS[4], unpack(fields, 1, count))
    end
    count_scheduled(ARGV[10]) -- as text: a number would be formatted
    read = read and struct.unpack('>I8', ARGV[8], count * 8 - 7)
  end
end

-- Else one by one.
if not all_new then
  local reach = (only or tried_before) and '' or ARGV[9]
  redis.call('ZCARD', KEYS[2]) -- fails here, before the first write, if it is not a zset
  local fired = redis.call('HMGET', KEYS[8], 'fired_score', 'fired_claim')
  local any_claimed -- once a message of the same id is met
  local added, accepted = {}, 0
  local elsewhere = false -- once a message goes to another bucket

  local function score_of(record)
    return #record > 9 and struct.unpack('>d', record, 2) or 0
  end

  local function payload_of(record)
    return string.sub(record, 14, string.byte(record) == BACKDATED and -9 or -1)
  end

  local function offset_of(i)
    return (struct.unpack('>I8', ARGV[8], i * 8 - 7))
  end

  local old_stamp -- of the message that was replaced last
  local until_ms = '' -- of the debounced message that was stored last
  local function add_answer(answer, due_ms)
    if replaced and answer == REPLACED then
      replaced[#replaced + 1], old_stamp = (old_stamp or '') .. until_ms, nil
    end
    local last = #answers
    if answers[last - 2] == answer and answers[last - 1] == due_ms then
      answers[last] = answers[last] + 1
    else
      answers[last + 1], answers[last + 2], answers[last + 3] = answer, due_ms, 1
    end
  end

  local function flush()
    note_head()
    for i = 1, #added, 1000 do
      redis.call('ZADD', KEYS[2], unpack(added, i, math.min(i + 999, #added)))
    end
    added = {}
  end

  local function remember(stamp, id, answer)
    redis.call('ZADD', KEYS[10], string.format('%.17g', now + answer / 256), stamp .. id)
  end

  -- Whether the message was handed to the broker, or is about to be.
  local function is_fired(id, score)
    local claim = tonumber(redis.call('ZSCORE', KEYS[3], id) or '')
    return claim and claim <= tonumber(fired[2] or -1) and score <= tonumber(fired[1] or -1)
  end

  -- Whether a message is bound for a destination outside the reach. After a head of 13 bytes a payload
  -- is a MessagePack array; its first item is the destination.
  local function is_foreign(record)
    if reach == '' then
      return false
    end
    local ok, _, destination = pcall(cmsgpack.unpack_limit, record, 1, 14)
    for _, parts in ipairs(cjson.decode(reach)) do
      local at = ok and type(destination) == 'string' and 0
      for _, part in ipairs(parts) do
        at = at and select(2, string.find(destination, part, at + 1))
      end
      if at then
        return false
      end
    end
    return true
  end

  -- Headers of OpenTelemetry's propagators: a call made again has another context, and the same
  -- content. These tables are made here, since the usual call does not need them.
  local CONTEXT = {
    traceparent = true, tracestate = true, baggage = true, b3 = true, ['x-b3-traceid'] = true,
    ['x-b3-spanid'] = true, ['x-b3-parentspanid'] = true, ['x-b3-sampled'] = true,
    ['x-b3-flags'] = true, ['uber-trace-id'] = true, ['X-Amzn-Trace-Id'] = true,
  }
  -- MessagePack, cut by hand: Redis' cmsgpack reads no bytes. How many bytes the size of a text or of
  -- bytes takes, by its first byte.
  local WIDTHS = {[0xc4] = 1, [0xd9] = 1, [0xc5] = 2, [0xda] = 2, [0xc6] = 4, [0xdb] = 4}
  -- AMQP: the bytes of a value, by its type; other types have their size before them.
  local SIZES = {
    t = 1, b = 1, B = 1, s = 2, u = 2, I = 4, i = 4, f = 4, D = 5, l = 8, L = 8, d = 8, T = 8, V = 0,
  }

  -- The entries of an AMQP table, without trace context.
  local function without_context(entries)
    local kept, at = {}, 1
    while at <= #entries do
      local kind_at = at + 1 + string.byte(entries, at)
      local kind = string.sub(entries, kind_at, kind_at)
      local size = SIZES[kind]
      if kind == 'S' or kind == 'x' or kind == 'A' or kind == 'F' then
        size = 4 + struct.unpack('>I4', entries, kind_at + 1)
      end
      local after = kind_at + 1 + size
      if not CONTEXT[string.sub(entries, at + 1, kind_at - 1)] then
        kept[#kept + 1] = string.sub(entries, at, after - 1)
      end
      at = after
    end
    return table.concat(kept)
  end

  -- Where a text, bytes or nil of a payload begins, after its size, and where the next item does.
  local function text_at(payload, at)
    local kind, wide, size = string.byte(payload, at), 0, 0
    if kind >= 0xa0 and kind <= 0xbf then
      size = kind - 0xa0
    elseif kind ~= 0xc0 then
      wide = WIDTHS[kind]
      size = struct.unpack('>I' .. wide, payload, at + 1)
    end
    return at + 1 + wide, at + 1 + wide + size
  end

  -- A payload in three parts: up to its headers, these without trace context, the rest.
  local function parts_of(payload)
    local _, body = text_at(payload, 2)
    local _, headers = text_at(payload, body)
    local before, kind = string.sub(payload, 1, headers - 1), string.byte(payload, headers)
    if WIDTHS[kind] then -- an AMQP table
      local from, after = text_at(payload, headers)
      local entries = without_context(string.sub(payload, from, after - 1))
      return before, entries, string.sub(payload, after)
    end
    local many, at = kind - 0x90, headers + 1
    if kind == 0xdc then
      many, at = struct.unpack('>I2', payload, at), at + 2
    end
    local kept = {}
    for _ = 1, many do -- pairs of name and value
      local name, value = text_at(payload, at + 1)
      local _, after = text_at(payload, value)
      if not CONTEXT[string.sub(payload, name, value - 1)] then
        kept[#kept + 1] = string.sub(payload, at, after - 1)
      end
      at = after
    end
    return before, table.concat(kept), string.sub(payload, at)
  end

  -- Whether two payloads are the same but for their trace context.
  local function is_same(one, other)
    if one == other then
      return true
    end
    local ok, equal = pcall(function()
      local before, headers, after = parts_of(one)
      local its_before, its_headers, its_after = parts_of(other)
      return before == its_before and headers == its_headers and after == its_after
    end)
    return ok and equal
  end

  -- Note that an earlier publish of this message may have arrived.
  local function may_be_delivered(id)
    if redis.call('HEXISTS', KEYS[1], id) == 1 then
      local tried = redis.call('HGET', KEYS[4], id) or '0:0:'
      redis.call('HSET', KEYS[4], id, (string.gsub(tried, ':%d', ':1', 1)))
    end
  end

  -- Of a message that was tried elsewhere.
  local function keep_attempts(id, before)
    for i, field in ipairs({id, id .. '\0'}) do
      if before[i] ~= '' then
        redis.call('HSET', KEYS[4], field, before[i])
      end
    end
  end

  -- Remove the old message from wherever it is; returns whether it may be fired, though unclaimed.
  local function revoke(id, score)
    if redis.call('ZSCORE', KEYS[3], id) then
      redis.call('ZADD', KEYS[9], redis.call('HINCRBY', KEYS[8], 'turn', 1), id)
      redis.call('ZREM', KEYS[3], id)
      redis.call('ZREM', KEYS[5], id) -- that, come back as it was long ago, may have it, too
    elseif redis.call('ZREM', KEYS[5], id) == 0 and not redis.call('ZSCORE', KEYS[2], id) then
      redis.call('HDEL', KEYS[7], id)
      if redis.call('ZREM', KEYS[6], id) == 0 then
        -- It was in no set, as a key has vanished: a copy may be on a wheel, or even be fired.
        redis.call('ZADD', KEYS[9], redis.call('HINCRBY', KEYS[8], 'turn', 1), id)
        return score <= tonumber(fired[1] or -1)
      end
    end
    return false
  end

  -- answer: created if a consumer has the old message: it was delivered, and nothing of it is left.
  local function replace(stamp, id, old, score, record, answer)
    local tried = redis.call('HGET', KEYS[4], id)
    local maybe = revoke(id, score_of(old)) or (tried and string.match(tried, ':(%d)') ~= '0')
    redis.call('HSET', KEYS[1], id, record)
    added = {string.format('%.17g', score), id}
    first_due = math.min(first_due, score)
    flush()
    redis.call('HDEL', KEYS[4], id .. '\0')
    if answer == REPLACED and maybe then
      redis.call('HSET', KEYS[4], id, '0:1:')
    else
      redis.call('HDEL', KEYS[4], id)
    end
    old_stamp = string.sub(old, 10, 13)
    remember(old_stamp, id, CANCELLED)
    local generation = redis.call('HGET', KEYS[8], 'generation')
    if generation then -- keep it for the ledger
      local how = answer == REPLACED and WITHDRAWN or PUBLISHED
      redis.call('ZADD', KEYS[12],
        string.format('%.17g', generation + how / 256), old_stamp .. id)
    end
    if answer == REPLACED then -- else it is like any that was created; `mend` takes that for settled
      remember(stamp, id, answer)
    end
    undone, accepted = true, accepted + 1
    return answer
  end

  -- The row of this call may have been read before it is withdrawn: `restore` and `cancel` are to
  -- know that it was refused. One that is read from a source is made again.
  local function refuse(stamp, id, answer)
    if has_row then
      remember(stamp, id, answer)
      undone = true
    end
    return answer
  end

  -- Nothing is left of the last message of this id, whose record has vanished.
  local function forget_last(id)
    flush() -- if a key is damaged, the messages accepted so far are not lost
    redis.call('ZREM', KEYS[5], id)
    if redis.call('HGET', KEYS[7], id) ~= 'payload_missing' then -- else it is one of `bare`
      redis.call('ZREM', KEYS[6], id)
      redis.call('HDEL', KEYS[7], id)
    end
  end

  -- What is known of a message's attempts, if it was given to a consumer that has not ended that.
  local function given(id)
    return string.match(redis.call('HGET', KEYS[4], id) or '', '^(%d+:%d:%d*):%d+$')
  end

  -- Whoever is told that the message is pending gets it: its last consumer cannot finish it any more.
  local function end_receipt(stamp, id, tried)
    redis.call('HSET', KEYS[4], id, tried)
    remember(stamp, id, DUPLICATE)
    undone = true
    return DUPLICATE
  end

  -- Whether a payload goes where another does, and is gathered as it is. They begin with the number of
  -- their items, which only those of gathered messages have, and the destination.
  local function begins_as(one, other)
    local ok, same = pcall(function()
      local _, after = text_at(other, 2)
      return string.sub(one, 1, after - 1) == string.sub(other, 1, after - 1)
    end)
    return ok and same
  end

  -- The answer to a call whose id has a message already.
  local function meet(stamp, id, old, entry, score, record, gathers)
    flush() -- if a key is damaged, the messages accepted so far are not lost
    if any_claimed == nil then
      any_claimed = redis.call('ZCARD', KEYS[3]) > 0
    end
    local its_score, tried = score_of(old), any_tried and given(id)
    local is_held = tried and math.floor(its_score) > now and policy ~= KNOWN_SOURCE
    if any_claimed and policy ~= KNOWN_SOURCE and not is_held and is_fired(id, its_score) then
      return refuse(stamp, id, IN_FLIGHT), its_score
    elseif is_foreign(old) then
      return FOREIGN, its_score
    elseif only and (string.sub(old, 10, 13) ~= only or its_score ~= score or is_held
      or redis.call('ZSCORE', KEYS[6], id)) then
      return refuse(stamp, id, FOREIGN), its_score
    elseif gathers and not begins_as(payload_of(old), string.sub(entry, 5)) then
      return refuse(stamp, id, CONFLICT), its_score
    elseif gathers then -- a consumer has what was delivered: this begins the next
      return replace(stamp, id, old, score, record, is_held and CREATED or REPLACED)
    elseif policy == REPLACE then
      return replace(stamp, id, old, score, record, REPLACED)
    elseif is_held then
      return replace(stamp, id, old, score, record, CREATED)
    elseif policy ~= KEEP and policy ~= KNOWN_SOURCE
      and not is_same(payload_of(old), string.sub(entry, 5)) then
      return refuse(stamp, id, CONFLICT), its_score
    end
    local ends = tried and policy ~= KNOWN_SOURCE
    return ends and end_receipt(stamp, id, tried) or refuse(stamp, id, DUPLICATE), its_score
  end

  -- Accept one message. entry: its stamp and payload; front, back: what its record has around them.
  local function schedule(id, entry, score, front, back, gathers)
    local stamp = string.sub(entry, 1, 4)
    local past = undone and redis.call('ZSCORE', KEYS[10], stamp .. id)
    if past and past % 1 * 256 ~= IN_FLIGHT then
      local answer, mine = past % 1 * 256, redis.call('HGET', KEYS[1], id) or ''
      local is_known = string.sub(mine, 10, 13) == stamp or answer == DUPLICATE or answer == CONFLICT
      return answer, is_known and mine ~= '' and score_of(mine) or nil
    elseif past then -- what it met then may be gone
      redis.call('ZREM', KEYS[10], stamp .. id)
    end
    if delivered and delivered[id] and not gathers and redis.call('HEXISTS', KEYS[1], id) == 0 then
      return refuse(stamp, id, DUPLICATE)
    end
    local is_lost = is_odd and policy ~= KNOWN_SOURCE and redis.call('HEXISTS', KEYS[1], id) == 0
    if is_lost and redis.call('ZSCORE', KEYS[3], id) then -- its owner would end the new one with it
      return refuse(stamp, id, IN_FLIGHT)
    end
    if only and redis.call('HEXISTS', KEYS[1], id) == 0 then
      if cut then
        return ELSEWHERE
      end
      return refuse(stamp, id, FOREIGN)
    end
    if cut and policy ~= KNOWN_SOURCE and redis.call('HEXISTS', KEYS[1], id) == 0 then
      if score >= cut or redis.call('ZSCORE', KEYS[10], LATER .. id) then
        redis.call('ZADD', KEYS[10], NEVER, LATER .. id)
        return ELSEWHERE
      elseif read and elsewhere then -- its offset does not count as read: it must not be made once more
        remember(stamp, id, CREATED)
        undone = true
      end
    end
    local record = front .. entry .. back
    if redis.call('HSETNX', KEYS[1], id, record) == 1 then
      added[#added + 1] = string.format('%.17g', score)
      added[#added + 1] = id
      first_due, accepted = math.min(first_due, score), accepted + 1
      if any_tried then
        redis.call('HDEL', KEYS[4], id, id .. '\0')
      end
      if is_lost then
        forget_last(id)
      end
      return CREATED
    end
    local old = redis.call('HGET', KEYS[1], id)
    if string.sub(old, 10, 13) == stamp then
      return CREATED, score_of(old)
    end
    return meet(stamp, id, old, entry, score, record, gathers)
  end

  -- Note that a span lasts until then; what has expired is forgotten, more than is noted.
  local function note_span(id, ends_ms)
    local expired = redis.call('ZRANGEBYSCORE', KEYS[13], '-inf', now, 'LIMIT', 0, 10)
    if #expired > 0 then
      redis.call('ZREM', KEYS[13], unpack(expired))
    end
    redis.call('ZADD', KEYS[13], string.format('%.0f', ends_ms), id .. '\0')
  end

  -- Whether a message that is due goes out now: it is claimed, or was not due for long.
  local function is_leaving(id, due_ms)
    return due_ms <= now and not redis.call('ZSCORE', KEYS[5], id)
      and (due_ms > now - LEAVES_MS or redis.call('ZSCORE', KEYS[3], id))
  end

  -- Accept a gathered message. It is due by what waits under its id, and by what was delivered. A dead
  -- message does not wait, nor does one that a consumer has.
  local function gather(id, entry, word)
    flush() -- if a key is damaged, the messages accepted so far are not lost
    local kind, span, longest, rank = string.match(word, '^(.)(%d+):?(%d*)(.*)$')
    local stamp, old = string.sub(entry, 1, 4), redis.call('HGET', KEYS[1], id)
    local past = redis.call('ZSCORE', KEYS[10], stamp .. id)
    local its_score = old and score_of(old)
    local waits = old and begins_as(payload_of(old), string.sub(entry, 5))
      and not redis.call('ZSCORE', KEYS[6], id)
      and not (any_tried and given(id) and math.floor(its_score) > now)
    local is_again = past and past % 1 * 256 ~= IN_FLIGHT or old and string.sub(old, 10, 13) == stamp
    if waits and not is_again and is_leaving(id, math.floor(its_score)) then
      return refuse(stamp, id, IN_FLIGHT), its_score
    end
    local due_ms = now
    if waits and its_score <= now then -- no worker runs, or it is parked: further calls must not wait
      due_ms = math.max(now - LEAVES_MS, math.floor(its_score))
    end
    until_ms = ''
    if kind == '~' then
      local last_ms = waits and struct.unpack('>d', string.sub(payload_of(old), -8)) or 0
      last_ms = last_ms > 0 and last_ms or now + longest
      due_ms = math.max(due_ms, math.min(now + span, last_ms))
      until_ms = struct.pack('>d', last_ms)
      entry = string.sub(entry, 1, -9) .. until_ms
    else
      local ends_ms = tonumber(redis.call('ZSCORE', KEYS[13], id .. '\0') or 0)
      ends_ms = math.max(ends_ms, tonumber(longest) or 0) -- as far as another bucket knows
      if waits then
        due_ms = math.max(due_ms, math.floor(its_score))
      elseif ends_ms > now then -- before its last message was due, that was cancelled
        -- With a ledger `now` is behind by a commit, in which that message may have left.
        local left = math.max(now, tonumber(fired[1] or -1))
        due_ms = ends_ms - span > left and ends_ms - span or ends_ms
      end
    end
    local score = due_ms + rank
    local answer, other = schedule(id, entry, score, struct.pack('>Bd', 1, score), '', true)
    if is_again then
      return answer == BEGUN and CREATED or answer, other or math.floor(past)
    elseif answer ~= CREATED and answer ~= REPLACED or other then
      return answer, other or due_ms
    end
    if kind == '^' then
      note_span(id, due_ms + span)
    end
    if answer == CREATED then -- sent again when it is delivered, it must not be stored once more
      answer = kind == '^' and due_ms > now and KEPT or CREATED
      remember(stamp, id, answer == KEPT and KEPT or BEGUN)
      undone = true
    end
    return answer, due_ms
  end

  -- Whether to go on with the next message: an answer that the caller must act on may never arrive.
  local function accept(i, score, front, back, word)
    local answer, other = DUPLICATE, nil
    if not read or offset_of(i) > read then
      if word then
        answer, other = gather(argv[10 + i], argv[10 + count + i], word)
      else
        answer, other = schedule(argv[10 + i], argv[10 + count + i], score, front, back)
      end
      if tried_before then
        if answer == CREATED and not other then -- not if it is sent again
          keep_attempts(argv[10 + i], tried_before[i])
        end
      elseif policy == MAYBE_DELIVERED and (answer == CREATED or answer == DUPLICATE) then
        may_be_delivered(argv[10 + i])
      end
    end
    add_answer(answer, math.floor(other or score))
    if not read then
      return true
    elseif answer == CONFLICT or answer == IN_FLIGHT or answer == FOREIGN then
      return false
    end
    elsewhere = elsewhere or answer == ELSEWHERE
    if not elsewhere then
      read = math.max(read, offset_of(i))
    end
    return true
  end

  local function accept_all()
    local i = 0
    for at = 11 + 2 * count, #argv, 2 do
      local word = is_gathered and string.find(argv[at], '^[~^]') and argv[at]
      local score, front, back = now, '', ''
      if not word then
        score, front, back = run_at(at)
      end
      for _ = 1, tonumber(argv[at + 1]) do
        i = i + 1
        if not accept(i, score, front, back, word) then
          return
        end
      end
    end
  end

  accept_all()
  flush()
  if accepted > 0 then
    count_scheduled(accepted)
  end
end

if read and read >= 0 then
  redis.call('HSET', KEYS[11], source, string.format('%.0f', read))
end

-- Of these ids some may be dead without a record. Those that have one now are other messages.
for i = 11, bare > 0 and 10 + count or 0 do
  if redis.call('HGET', KEYS[7], argv[i]) == 'payload_missing'
    and redis.call('HEXISTS', KEYS[1], argv[i]) == 1 then
    redis.call('HDEL', KEYS[7], argv[i])
    bare = bare - redis.call('ZREM', KEYS[6], argv[i])
    redis.call('HSET', KEYS[8], 'bare', math.max(0, bare))
  end
end

-- Last: after a write that cannot grow memory, a full Redis would let all other writes pass.
if undone then
  local old_calls = redis.call('ZRANGEBYSCORE', KEYS[10], '-inf', now - KEEP_CALLS_MS,
    'LIMIT', 0, 100 + math.min(2 * count, 3000))
  if #old_calls > 0 then
    redis.call('ZREM', KEYS[10], unpack(old_calls))
  end
end

if head and first_due < head then
  local text = ARGV[6] .. ' ' .. string.format('%.0f', math.floor(first_due))
  if string.byte(ARGV[5]) == 43 then
    redis.call('SPUBLISH', string.sub(ARGV[5], 2), text)
  else
    redis.call('PUBLISH', ARGV[5], text)
  end
end
if replaced then
  answers[#answers + 1] = replaced
end
return answers
