#!lua flags=allow-oom
-- Ends leases: each settlement is judged by its fence first, then all that goes with it is written in one go.
-- Inputs:    ARGV[2] msgpack list of settlements [id, delivery, kind, attempt, follow_ups, …]; where a body or an
--            evidence is meant, its number among ARGV[4…] stands, 0 for none; follow_ups false or [[id, queue, delay, body]]
--            Where all are done and nothing goes with them: [id, delivery, id, delivery, …]
--            kind 1, done: result.  2, ready: delay, charge.  3, dead: reason, charge, failure, cause, error, category,
--            route, delay for want of room there.  4, cancelled
--            charge: the place in the record that moves, negative for one that is given back
--            ARGV[3] msgpack lease request for the next leases, or empty
-- Outputs:   time; [place, verdict, current delivery, …] of those not plainly applied: 1 ended already, 2 given away, 3 no
--            such item, 4 kept for want of room under its route, 5 cancelled instead of ready; the next leases as
--            leasing.lua says
-- Atomicity: judged and checked as a whole before the first write. Ending work is let through when memory is full.
-- Uses: bonds(ledger lines ties binding) limits(limits) choosing(choosing) putting leasing

local DONE, READY, DEAD, CANCELLED = 1, 2, 3, 4
local ALREADY, GIVEN_AWAY, NO_SUCH_ITEM, KEPT, CANCELLED_INSTEAD = 1, 2, 3, 4, 5
local FIRST_ATTEMPTS, MOST_ATTEMPTS = 20, 200

local time = now()
local settlements = cmsgpack.unpack(ARGV[2])
local trimmed, others, follow_ups = {}, {}, {}

local function body(number)
  return ARGV[number + 3]
end

local function charge(m, at)
  if at < 0 then
    m[-at] = m[-at] - 1
  else
    m[at] = m[at] + 1
  end
end

local function note_attempt(id, m, number)
  local key = P .. 'attempts:' .. id
  push(key, body(number))
  -- An item has at most as many attempts as deliveries.
  if m[DELIVERIES] > MOST_ATTEMPTS and call('LLEN', key) >= MOST_ATTEMPTS then
    m[OMITTED] = m[OMITTED] + 1
    trimmed[#trimmed + 1] = key
  end
end

local function follow(entries)
  for _, entry in ipairs(entries) do
    entry[4] = body(entry[4])
    follow_ups[#follow_ups + 1] = entry
  end
end

local function otherwise(index, verdict, current)
  local size = #others
  others[size + 1], others[size + 2], others[size + 3] = index, verdict, current
end

-- Whether a route has room for one more, counting those that it got just now.
local rooms = {}
local function has_room(route)
  if route == '' then
    return true
  end
  if not rooms[route] then
    local capacity = tonumber(call('HGET', sound(P .. 'rooms', 'hash'), route) or '')
    rooms[route] = capacity and capacity - call('ZCARD', sound(P .. 'letters:r:open:' .. route, 'zset')) or math.huge
  end
  rooms[route] = rooms[route] - 1
  return rooms[route] >= 0
end

-- Whoever was asked to cancel never becomes ready again.
local function ready_again(m, delay)
  if tied(m, CANCEL) then
    m[STATE], m[ENDED_AT] = 'cancelled', time
    return CANCELLED_INSTEAD
  end
  m[STATE], m[DUE_AT] = 'ready', time + delay
  return nil
end

local ends = {
  [DONE] = function(id, m, one)
    m[STATE], m[ENDED_AT] = 'done', time
    if one[6] > 0 then
      set(P .. 'result', id, body(one[6]))
    end
  end,
  [READY] = function(_, m, one)
    charge(m, one[7])
    return ready_again(m, one[6])
  end,
  [DEAD] = function(id, m, one)
    charge(m, one[7])
    if not has_room(one[12]) then
      return ready_again(m, one[13]) or KEPT
    end
    m[STATE], m[ENDED_AT] = 'dead', time
    m[LETTER] = {one[6], time, 'open', one[9], one[10], one[11], one[12]}
    set(P .. 'failure', id, body(one[8]))
    return nil
  end,
  [CANCELLED] = function(_, m)
    m[STATE], m[ENDED_AT] = 'cancelled', time
  end,
}

-- Of an item that is bound to others: its place under its limit key, and all that waits for its end.
local function untie(id, m)
  if m[TIES] == 0 then
    return
  end
  local bonds = bonds()
  if tied(m, LIMITED) then
    bonds.delist(bonds.slot_key(m), id)
    bonds.vacate(m)
  end
  if m[STATE] ~= 'ready' then
    bonds.ended(id, m)
    if tied(m, DEDUPED) then
      -- A follow-up may take it.
      bonds.release_key(id, m, time)
    end
  end
  if tied(m, CANCEL) and m[STATE] ~= 'cancelled' then
    m[TIES], m[TERMS][CANCELLED_BY] = band(m[TIES], bit.bnot(CANCEL)), ''
  end
end

-- A queue that is limited has room again: whoever waits for it cannot know.
local limited = {}
local function tell_limited(queue)
  if limited[queue] == nil then
    local declared = list_of(call('HGET', sound(P .. 'queues', 'hash'), queue))
    limited[queue] = declared and declared[4] and declared[4][1] and true or false
  end
  if limited[queue] then
    wake(queue)
  end
end

local function settle(m, one, index)
  local id = one[1]
  local wide = m[TIES] ~= nil
  if not wide then
    lift(id, m)
  elseif not touched[id] then
    adopt(id, m)
  end
  m[LEASE_UNTIL], m[ALONE] = false, false
  local verdict = ends[one[3]](id, m, one)
  if verdict then
    otherwise(index, verdict, 0)
  end
  if one[4] > 0 then
    note_attempt(id, m, one[4])
  end
  if wide then
    untie(id, m)
  else
    lay(id, m)
  end
  tell_limited(m[QUEUE])
  if one[5] then
    follow(one[5])
  end
end

local judged = {}
local function judge(index, one, kept)
  local id = one[1]
  -- The same record for a second settlement of the item.
  local m = judged[id] or touched[id] or unpacked(kept)
  if not m then
    otherwise(index, NO_SUCH_ITEM, 0)
  elseif m[DELIVERIES] ~= one[2] then
    otherwise(index, GIVEN_AWAY, m[DELIVERIES])
  elseif m[STATE] ~= 'leased' then
    otherwise(index, ALREADY, 0)
  else
    judged[id] = m
    settle(m, one, index)
  end
end

local function settle_all()
  local ids = {}
  for index, one in ipairs(settlements) do
    ids[index] = one[1]
  end
  local records = fetch(sound(ITEM, 'hash'), ids)
  for index, one in ipairs(settlements) do
    judge(index, one, records[index])
  end
end

-- Nearly every item makes this move, so it is written out: the same as lift, change and lay. Nil for one that cannot be
-- read, and for one that somebody wants cancelled.
local function done(index, id, kept, delivery, again)
  local read, left, seq, queue, state, put_at, due_at, renewed_at, deliveries, attempt, errors, crashes, replays,
    last_chance, _, worker, leased_at, _, _, omitted, _, priority, hold, ties, terms = pcall(
    values_of, kept or '', MORE_FIELDS, HEAD_SIZE
  )
  if not read or left ~= -1 or (ties and band(ties, CANCEL) ~= 0) then
    return nil
  end
  if deliveries ~= delivery then
    otherwise(index, GIVEN_AWAY, deliveries)
    return false
  end
  if state ~= 'leased' or again then
    otherwise(index, ALREADY, 0)
    return false
  end
  local stamp = string.format('%016d', seq)
  remove(leased_key(queue), stamp .. id)
  add_as(ended_key(queue, 'done'), stamp, id)
  if ties then
    set(ITEM, id, WIDE_HEAD .. packed(
      seq, queue, 'done', put_at, due_at, renewed_at, deliveries, attempt, errors, crashes, replays, last_chance, false,
      worker, leased_at, false, time, omitted, false, priority, hold, ties, terms
    ))
    untie(id, {[SEQ] = seq, [QUEUE] = queue, [STATE] = 'done', [ENQUEUED_AT] = put_at, [TIES] = ties, [TERMS] = terms})
  else
    set(ITEM, id, HEAD .. packed(
      seq, queue, 'done', put_at, due_at, renewed_at, deliveries, attempt, errors, crashes, replays, last_chance, false,
      worker, leased_at, false, time, omitted, false
    ))
  end
  tell_limited(queue)
  return true
end

local function all_done()
  local ids, seen = {}, {}
  for at = 1, #settlements, 2 do
    ids[#ids + 1] = settlements[at]
  end
  local records = fetch(sound(ITEM, 'hash'), ids)
  for index = 1, #ids do
    local id, delivery = ids[index], settlements[index * 2]
    local applied = done(index, id, records[index], delivery, seen[id])
    if applied == nil then
      judge(index, {id, delivery, DONE, 0, false, 0}, records[index])
    end
    seen[id] = applied or seen[id]
  end
end

if type(settlements[1]) == 'string' then
  all_done()
else
  settle_all()
end
put(follow_ups, time, false)
if bonds_made then
  bonds_made.conclude(time)
end

local request = ARGV[3] ~= '' and prepared(cmsgpack.unpack(ARGV[3]))
write()
for _, key in ipairs(trimmed) do
  -- No record is empty: this one is marked and taken out of the middle.
  call('LSET', key, FIRST_ATTEMPTS, '')
  call('LREM', key, 1, '')
end
return {time, others, request and give(request, time) or {}}
