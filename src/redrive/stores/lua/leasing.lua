-- Who gets what: due order, suspects alone, and the same answer to the same nonce. For lease and for settle's `then`.
-- Inputs:    prepared(request) reads and checks all that give needs; the request is {worker, nonce, holding, wants}, a
--            want {queue, limit, ttl, max_crashes}. give(prepared, time) comes after it, and may come after a write.
-- Outputs:   {1 if a suspect waits else 0, id, record, payload, id, record, payload, …}
-- Atomicity: give writes, want by want; nothing in it can fail that prepared has not tried.

local DAY = 24 * 60 * 60 * 1000
local STALE_AT_ONCE = 8

-- The crash counts among its ready items, on both sides of the want's line. Nil for a queue that gives nothing.
local function lane(want)
  local queue, line = want[1], want[4] - 1
  if want[2] <= 0 then
    return nil
  end
  local declared = list_of(call('HGET', sound(P .. 'queues', 'hash'), queue))
  if not declared or declared[1] then
    return nil
  end
  local made = {want = want, plain = {}, suspect = {}}
  local levels = call('SMEMBERS', sound(P .. 'levels:' .. queue, 'set'))
  levels[#levels + 1] = '0'
  for _, level in ipairs(levels) do
    local crashes = tonumber(level)
    local side = crashes < line and made.plain or made.suspect
    side[#side + 1] = crashes
    sound(ready_key(queue, crashes), 'zset')
  end
  sound(leased_key(queue), 'zset')
  return made
end

local function prepared(request)
  sound(P .. 'item', 'hash')
  sound(P .. 'body', 'hash')
  sound(P .. 'nonce', 'hash')
  sound(P .. 'alone', 'hash')
  for _, want in ipairs(request[4]) do
    lane(want)
  end
  return request
end

local function is_current(m, delivery)
  return m and m[STATE] == 'leased' and m[DELIVERIES] == delivery
end

-- Not even a worker's own mistake may put a neighbour beside a suspect.
local function holds_a_suspect(worker)
  local held = list_of(call('HGET', P .. 'alone', worker))
  if not held then
    return false
  end
  if is_current(load(held[1]), held[2]) then
    return true
  end
  unset(P .. 'alone', worker)
  return false
end

-- The members of one set that are due, in order, and how often they crashed.
local function due_at(queue, crashes, limit, time)
  return call('ZRANGEBYSCORE', ready_key(queue, crashes), '-inf', time, 'LIMIT', 0, limit), {}, crashes
end

-- The same of several, each of which is in due order. Nearly always there is one.
local function due_among(queue, levels, limit, time)
  local found = {}
  for _, crashes in ipairs(levels) do
    local rows = call('ZRANGEBYSCORE', ready_key(queue, crashes), '-inf', time, 'WITHSCORES', 'LIMIT', 0, limit)
    for index = 1, #rows, 2 do
      local member = rows[index]
      found[#found + 1] = {tonumber(rows[index + 1]), tonumber(string.sub(member, 1, 16)), member, crashes}
    end
  end
  table.sort(found, function(a, b)
    if a[1] ~= b[1] then
      return a[1] < b[1]
    end
    return a[2] < b[2]
  end)
  local members, crashes_of = {}, {}
  for index = 1, math.min(limit, #found) do
    members[index], crashes_of[index] = found[index][3], found[index][4]
  end
  return members, crashes_of, 0
end

-- A ready item's record with one delivery more, and its number. Counted before it is given: a crash between here and the
-- handler is already in the books. Nil if the record does not say that it is ready there.
local function leased(kept, queue, crashes, grant)
  local read, left, seq, its_queue, state, put_at, due_at, renewed_at, deliveries, attempt, errors, its_crashes,
    replays, last_chance, _, _, _, _, ended_at, omitted, letter = pcall(values_of, kept or '', FIELDS, HEAD_SIZE)
  if not read or left ~= -1 or state ~= 'ready' or its_queue ~= queue or its_crashes ~= crashes then
    return nil
  end
  deliveries = deliveries + 1
  local made = packed(
    seq, queue, 'leased', put_at, due_at, renewed_at, deliveries, attempt + 1, errors, crashes, replays, last_chance,
    grant.alone, grant.worker, grant.time, grant.until_then, ended_at, omitted, letter
  )
  return HEAD .. made, deliveries
end

-- Nearly every item makes this move, so it is written out: the same as lift, change and lay.
local function hand_over(given, queue, levels, limit, grant)
  if #levels == 0 then
    return
  end
  local look = #levels == 1 and due_at or due_among
  local members, crashes_of, crashes_of_all = look(queue, #levels == 1 and levels[1] or levels, limit, grant.time)
  local ids, size = {}, #given.ids
  for index = 1, #members do
    ids[index] = id_at(members[index])
  end
  local records, to = fetch(ITEM, ids), leased_key(queue)
  for index = 1, #members do
    local id, member, crashes = ids[index], members[index], crashes_of[index] or crashes_of_all
    local made, delivery = leased(records[index], queue, crashes, grant)
    -- What a set has and its item does not know of would be looked at for ever.
    remove(ready_key(queue, crashes), member)
    if made then
      add(to, grant.until_then, member)
      set(ITEM, id, made)
      size = size + 1
      given.ids[size], given.records[size], given.deliveries[size] = id, made, delivery
    end
  end
end

local function first_suspect(lanes, time)
  for _, each in ipairs(lanes) do
    local queue = each.want[1]
    for _, crashes in ipairs(each.suspect) do
      if #due_at(queue, crashes, 1, time) > 0 then
        return each
      end
    end
  end
  return nil
end

-- Of workers that have not asked for a day: their names never come again.
local function forget_stale(time)
  local some = call('HRANDFIELD', P .. 'nonce', STALE_AT_ONCE, 'WITHVALUES')
  for index = 1, #some, 2 do
    local last = list_of(some[index + 1])
    if not last or last[2] < time - DAY then
      unset(P .. 'nonce', some[index])
      unset(P .. 'alone', some[index])
    end
  end
end

local function remember(request, given, time, is_new)
  local numbers = {}
  for index = 1, #given.ids do
    numbers[index * 2 - 1], numbers[index * 2] = given.ids[index], given.deliveries[index]
  end
  if is_new then
    forget_stale(time)
    write()
  end
  set(P .. 'nonce', request[1], cmsgpack.pack({request[2], time, numbers}))
end

local function nothing_yet()
  return {ids = {}, records = {}, deliveries = {}}
end

local function answer(given, suspects_due)
  local reply = {suspects_due and 1 or 0}
  local ids, records = given.ids, given.records
  local bodies = fetch(P .. 'body', ids)
  for index = 1, #ids do
    local at = index * 3
    reply[at - 1], reply[at], reply[at + 1] = ids[index], records[index], bodies[index]
  end
  return reply
end

-- As far as still held: the same delivery, and nobody took it over.
local function given_before(numbers)
  local given = nothing_yet()
  for index = 1, #numbers, 2 do
    local id = numbers[index]
    local kept = call('HGET', ITEM, id)
    if is_current(unpacked(kept), numbers[index + 1]) then
      local size = #given.ids + 1
      given.ids[size], given.records[size] = id, kept
    end
  end
  return answer(given, false)
end

local function open_lanes(request)
  local lanes = {}
  for _, want in ipairs(request[4]) do
    lanes[#lanes + 1] = lane(want)
  end
  return lanes
end

local function give(request, time)
  local before = list_of(call('HGET', P .. 'nonce', request[1]))
  if before and before[1] == request[2] then
    return given_before(before[3])
  end
  if holds_a_suspect(request[1]) then
    return {0}
  end
  local given, lanes = nothing_yet(), open_lanes(request)
  local function grant_of(want, alone)
    return {worker = request[1], time = time, until_then = time + want[3], alone = alone}
  end
  local suspect = first_suspect(lanes, time)
  local suspects_due = suspect and request[3] > 0
  if suspect and not suspects_due then
    hand_over(given, suspect.want[1], suspect.suspect, 1, grant_of(suspect.want, true))
    if #given.ids > 0 then
      set(P .. 'alone', request[1], cmsgpack.pack({given.ids[1], given.deliveries[1]}))
    end
  else
    for _, each in ipairs(lanes) do
      local want = each.want
      hand_over(given, want[1], each.plain, want[2], grant_of(want, false))
      -- The next want may be of the same queue.
      write()
    end
  end
  if #given.ids > 0 then
    remember(request, given, time, not before)
  end
  write()
  return answer(given, suspects_due)
end
