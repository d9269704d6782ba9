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
-- Uses: ranks bonds(ledger lines ties heads binding) limits(limits) choosing(choosing) lending(lending)
-- Uses: families(limits opening families) sealing putting leasing
-- Uses: settling ending(ending)

local FIRST_ATTEMPTS = 20

-- The terms of an item, which begin there in its record; of one that has an order key alone only that and its place. Nil if
-- they cannot be read.
local function bond_of(kept, at, ties)
  if ties == ORDERED then
    local read, _, key, place = pcall(values_of, kept, PLACE, at + 1)
    return read and place and {key, place}
  end
  local read, _, terms = pcall(values_of, kept, 1, at)
  return read and terms
end

-- Nearly every item makes this move, so it is written out: the same as lift, change and lay. Nil for one that cannot be
-- read, and for one that somebody wants cancelled.
local function done(index, id, kept, delivery, again)
  local read, left, seq, queue, state, put_at, due_at, renewed_at, deliveries, attempt, errors, crashes, replays,
    last_chance, _, worker, leased_at, _, _, omitted, _, priority, hold, ties = pcall(
    values_of, kept or '', TERMS - 1, HEAD_SIZE
  )
  if not read or (left ~= -1) ~= (ties ~= nil) or (ties and band(ties, CANCEL) ~= 0) then
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
  local is_bound = ties and ties ~= 0
  local bond = is_bound and bond_of(kept, left, ties)
  if is_bound and not bond then
    return nil
  end
  local stamp = string.format('%016d', seq)
  remove(leased_key(queue), stamp .. id)
  add_as(ended_key(queue, 'done'), stamp, id)
  if ties then
    set(ITEM, id, string.sub(kept, 1, HEAD_SIZE) .. packed(
      seq, queue, 'done', put_at, due_at, renewed_at, deliveries, attempt, errors, crashes, replays, last_chance, false,
      worker, leased_at, false, time, omitted, false, priority, hold, ties
    ) .. string.sub(kept, left + 1))
    if ties == ORDERED then
      bonds().head_done(id, queue, bond[ORDER_KEY], bond[PLACE], seq, put_at)
    elseif is_bound then
      ending().untie(id, {[SEQ] = seq, [QUEUE] = queue, [STATE] = 'done', [ENQUEUED_AT] = put_at, [TIES] = ties, [TERMS] = bond})
    end
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
      ending().judge(index, {id, delivery, DONE, 0, false, 0}, records[index])
    end
    seen[id] = applied or seen[id]
  end
end

if type(settlements[1]) == 'string' then
  all_done()
else
  ending().settle_all()
end
if bonds_made then
  -- A follow-up may take a key that is free now.
  bonds_made.release_keys(time)
end
put(follow_ups, time, false)
if bonds_made then
  bonds_made.go_on()
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
