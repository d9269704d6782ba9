#!lua flags=allow-oom
-- Ends leases: each settlement is judged by its fence first, then all that goes with it is written in one go.
-- Inputs:    ARGV[2] msgpack list of settlements [id, delivery, kind, attempt, follow_ups, …]; where a body or an
--            evidence is meant, its number among ARGV[4…] stands, 0 for none; follow_ups false or [[id, queue, delay, body]]
--            Where all are done and nothing goes with them: [id, delivery, id, delivery, …]
--            kind 1, done: result.  2, ready: delay, charge.  3, dead: reason, charge, failure, cause, error, category
--            charge: the place in the record that moves, negative for one that is given back
--            ARGV[3] msgpack lease request for the next leases, or empty
-- Outputs:   time; [place, verdict, current delivery, …] of those not applied: 1 ended already, 2 given away, 3 no such
--            item; the next leases as leasing.lua says
-- Atomicity: judged and checked as a whole before the first write. Ending work is let through when memory is full.
-- Uses: putting leasing

local DONE, READY, DEAD = 1, 2, 3
local ALREADY, GIVEN_AWAY, NO_SUCH_ITEM = 1, 2, 3
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

local ends = {
  [DONE] = function(id, m, one)
    m[STATE], m[ENDED_AT] = 'done', time
    if one[6] > 0 then
      set(P .. 'result', id, body(one[6]))
    end
  end,
  [READY] = function(_, m, one)
    m[STATE], m[DUE_AT] = 'ready', time + one[6]
    charge(m, one[7])
  end,
  [DEAD] = function(id, m, one)
    m[STATE], m[ENDED_AT] = 'dead', time
    m[LETTER] = {one[6], time, 'open', one[9], one[10], one[11]}
    charge(m, one[7])
    set(P .. 'failure', id, body(one[8]))
  end,
}

local function settle(m, one)
  local id = one[1]
  lift(id, m)
  m[LEASE_UNTIL], m[ALONE] = false, false
  ends[one[3]](id, m, one)
  if one[4] > 0 then
    note_attempt(id, m, one[4])
  end
  lay(id, m)
  if one[5] then
    follow(one[5])
  end
end

local function otherwise(index, verdict, current)
  local size = #others
  others[size + 1], others[size + 2], others[size + 3] = index, verdict, current
end

local function settle_all()
  local ids, items = {}, {}
  for index, one in ipairs(settlements) do
    ids[index] = one[1]
  end
  local records = fetch(sound(ITEM, 'hash'), ids)
  for index, one in ipairs(settlements) do
    local id = one[1]
    -- The same record for a second settlement of the item.
    local m = items[id] or unpacked(records[index])
    if not m then
      otherwise(index, NO_SUCH_ITEM, 0)
    elseif m[DELIVERIES] ~= one[2] then
      otherwise(index, GIVEN_AWAY, m[DELIVERIES])
    elseif m[STATE] ~= 'leased' then
      otherwise(index, ALREADY, 0)
    else
      items[id] = m
      settle(m, one)
    end
  end
end

-- Nearly every item makes this move, so it is written out: the same as lift, change and lay.
local function done(index, id, kept, delivery, again)
  local read, left, seq, queue, state, put_at, due_at, renewed_at, deliveries, attempt, errors, crashes, replays,
    last_chance, _, worker, leased_at, _, _, omitted = pcall(values_of, kept or '', FIELDS, HEAD_SIZE)
  if not read or left ~= -1 then
    return otherwise(index, NO_SUCH_ITEM, 0)
  end
  if deliveries ~= delivery then
    return otherwise(index, GIVEN_AWAY, deliveries)
  end
  if state ~= 'leased' or again then
    return otherwise(index, ALREADY, 0)
  end
  local stamp = string.format('%016d', seq)
  remove(leased_key(queue), stamp .. id)
  add_as(ended_key(queue, 'done'), stamp, id)
  local made = packed(
    seq, queue, 'done', put_at, due_at, renewed_at, deliveries, attempt, errors, crashes, replays, last_chance, false,
    worker, leased_at, false, time, omitted, false
  )
  set(ITEM, id, HEAD .. made)
  return true
end

local function all_done()
  local ids, seen = {}, {}
  for at = 1, #settlements, 2 do
    ids[#ids + 1] = settlements[at]
  end
  local records = fetch(sound(ITEM, 'hash'), ids)
  for index = 1, #ids do
    local id = ids[index]
    seen[id] = done(index, id, records[index], settlements[index * 2], seen[id]) or seen[id]
  end
end

if type(settlements[1]) == 'string' then
  all_done()
else
  settle_all()
end
put(follow_ups, time)

local request = ARGV[3] ~= '' and prepared(cmsgpack.unpack(ARGV[3]))
write()
for _, key in ipairs(trimmed) do
  -- No record is empty: this one is marked and taken out of the middle.
  call('LSET', key, FIRST_ATTEMPTS, '')
  call('LREM', key, 1, '')
end
return {time, others, request and give(request, time) or {}}
