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
    local side = tonumber(level) < line and made.plain or made.suspect
    side[#side + 1] = sound(P .. 'ready:' .. level .. ':' .. queue, 'zset')
  end
  sound(P .. 'leased:' .. queue, 'zset')
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

-- The earliest due of these sets, each of which is in due order: {due, member, key}.
local function due(keys, limit, time)
  local found = {}
  for _, key in ipairs(keys) do
    local rows = call('ZRANGEBYSCORE', key, '-inf', time, 'WITHSCORES', 'LIMIT', 0, limit)
    for index = 1, #rows, 2 do
      found[#found + 1] = {tonumber(rows[index + 1]), rows[index], key}
    end
  end
  if #keys > 1 then
    table.sort(found, function(a, b)
      if a[1] ~= b[1] then
        return a[1] < b[1]
      end
      return a[2] < b[2]
    end)
  end
  return found
end

-- The first `limit` of them as {id, record, key}, for as many as have a record that says so. What a set has and its
-- item does not know of would be looked at for ever.
local function known(rows, limit)
  local ids, items = {}, {}
  for index = 1, math.min(limit, #rows) do
    ids[index] = id_at(rows[index][2])
  end
  local records = fetch(P .. 'item', ids)
  for index, id in ipairs(ids) do
    local m, key = unpacked(records[index]), rows[index][3]
    if m and m[STATE] == 'ready' and P .. 'ready:' .. m[CRASHES] .. ':' .. m[QUEUE] == key then
      items[#items + 1] = {id, m}
    else
      remove(key, rows[index][2])
    end
  end
  return items
end

-- Counted before it is given: a crash between here and the handler is already in the books.
local function hand_over(given, items, request, want, time, alone)
  for _, item in ipairs(items) do
    local id, m = item[1], item[2]
    lift(id, m)
    m[STATE] = 'leased'
    m[DELIVERIES] = m[DELIVERIES] + 1
    m[ATTEMPT] = m[ATTEMPT] + 1
    m[WORKER] = request[1]
    m[LEASED_AT] = time
    m[LEASE_UNTIL] = time + want[3]
    m[ALONE] = alone
    given[#given + 1] = {id, m[DELIVERIES], lay(id, m)}
  end
end

local function first_suspect(lanes, time)
  for _, each in ipairs(lanes) do
    if #each.suspect > 0 then
      local items = known(due(each.suspect, 1, time), 1)
      if #items > 0 then
        return items, each.want
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
  for index, item in ipairs(given) do
    numbers[index * 2 - 1], numbers[index * 2] = item[1], item[2]
  end
  if is_new then
    forget_stale(time)
    write()
  end
  set(P .. 'nonce', request[1], cmsgpack.pack({request[2], time, numbers}))
end

local function answer(given, suspects_due)
  local ids, reply = {}, {suspects_due and 1 or 0}
  for index, item in ipairs(given) do
    ids[index] = item[1]
  end
  local bodies = fetch(P .. 'body', ids)
  for index, item in ipairs(given) do
    local at = index * 3
    reply[at - 1], reply[at], reply[at + 1] = item[1], item[3], bodies[index]
  end
  return reply
end

-- As far as still held: the same delivery, and nobody took it over.
local function given_before(numbers)
  local given = {}
  for index = 1, #numbers, 2 do
    local kept = call('HGET', P .. 'item', numbers[index])
    if is_current(unpacked(kept), numbers[index + 1]) then
      given[#given + 1] = {numbers[index], numbers[index + 1], kept}
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
  local given, lanes = {}, open_lanes(request)
  local suspects, wanted = first_suspect(lanes, time)
  if suspects and request[3] <= 0 then
    hand_over(given, suspects, request, wanted, time, true)
    set(P .. 'alone', request[1], cmsgpack.pack({given[1][1], given[1][2]}))
    suspects = nil
  else
    for _, each in ipairs(lanes) do
      local limit = each.want[2]
      hand_over(given, known(due(each.plain, limit, time), limit), request, each.want, time, false)
      -- The next want may be of the same queue.
      write()
    end
  end
  if #given > 0 then
    remember(request, given, time, not before)
  end
  write()
  return answer(given, suspects)
end
