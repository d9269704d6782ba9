#!lua flags=no-writes
-- check_items: whether the next records are whole and in the indexes in which they belong.
-- Inputs:    where to go on (0 to begin); about how many; "1" to have what was kept with them, too
-- Outputs:   where to go on (0 at the end); names of flaws and ids in turn; then per item, if asked for: id, record,
--            payload, evidence, result, attempts, deeds, revisions; nil for what is not there
-- Atomicity: one read, so that what is written between two calls cannot be taken for a flaw
-- Uses: tags ledger lines truth

local STATES = {ready = true, leased = true, done = true, dead = true, cancelled = true}
local flaws = {}

local function tell(flaw, id)
  flaws[#flaws + 1] = flaw
  flaws[#flaws + 1] = id
end

local function has(key, id)
  return call('HEXISTS', P .. key, id) == 1
end

local function look_at_state(id, m)
  local state = m[STATE]
  if not STATES[state] then
    tell('state_unknown', id)
  elseif state ~= 'dead' and (state == 'leased') ~= (m[LEASE_UNTIL] and true or false) then
    tell('lease_misfits', id)
  elseif (state ~= 'ready' and state ~= 'leased') ~= (m[ENDED_AT] and true or false) then
    tell('end_misfits', id)
  elseif (state == 'dead') ~= (m[LETTER] and true or false) then
    tell('letter_misfits', id)
  end
end

local function look_at_places(id, m, place)
  if place == IMPOSSIBLE then
    tell('record_damaged', id)
  elseif place == MISPLACED then
    tell('not_in_index', id)
  elseif place then
    tell('not_in_' .. place, id)
  elseif m[STATE] == 'ready' and (m[HOLD] or 0) == 0 and rank_of(m) ~= 0
    and call('SISMEMBER', P .. 'levels:' .. m[QUEUE], rank_of(m)) == 0 then
    tell('not_in_index', id)
  end
end

local function hold_of(id, m)
  if tied(m, PARKED_ITEM) then
    return HELD_PARKED
  end
  if tied(m, WAITS) and call('EXISTS', P .. 'waits:' .. id) == 1 then
    return HELD_AFTER
  end
  local line = tied(m, ORDERED) and list_of(call('HGET', P .. 'lines:' .. m[QUEUE], m[TERMS][ORDER_KEY]))
  if line and line[2] ~= id then
    return HELD_ORDER
  end
  return m[HOLD] == HELD_LIMIT and HELD_LIMIT or 0
end

local function look_at_hold(id, m)
  if m[HOLD] and m[HOLD] ~= (m[STATE] == 'ready' and hold_of(id, m) or 0) then
    tell('hold_misfits', id)
  end
end

local declared = {}
local function look_at_queue(queue)
  if declared[queue] == nil then
    declared[queue] = has('queues', queue)
    if not declared[queue] then
      tell('undeclared', queue)
    end
  end
end

local function look_beside(id, m)
  if not has('body', id) then
    tell('no_payload', id)
  end
  if m[LETTER] and not has('failure', id) then
    tell('letter_body', id)
  end
  if m[LETTER] and not call('ZSCORE', P .. 'changes', id) then
    tell('not_in_changes', id)
  end
  if has('tombstones', id) then
    tell('pruned_but_there', id)
  end
end

local scanned = call('HSCAN', P .. 'item', ARGV[2], 'COUNT', ARGV[3])
local reply = {scanned[1], flaws}
local records = {}
for index = 1, #scanned[2], 2 do
  records[scanned[2][index]] = unpacked(scanned[2][index + 1])
end
local places = misplaced(records)
for index = 1, #scanned[2], 2 do
  local id = scanned[2][index]
  local m = records[id]
  if m then
    look_at_state(id, m)
    look_at_places(id, m, places[id])
    look_at_hold(id, m)
    look_at_queue(m[QUEUE])
    look_beside(id, m)
  else
    tell('record_damaged', id)
  end
  if ARGV[4] == '1' then
    local size = #reply
    reply[size + 1], reply[size + 2], reply[size + 3] = id, scanned[2][index + 1], call('HGET', P .. 'body', id)
    reply[size + 4], reply[size + 5] = call('HGET', P .. 'failure', id), call('HGET', P .. 'result', id)
    reply[size + 6] = call('LRANGE', P .. 'attempts:' .. id, 0, -1)
    reply[size + 7], reply[size + 8] = call('HGET', P .. 'deeds', id), call('LRANGE', P .. 'revisions:' .. id, 0, -1)
  end
end
return reply
