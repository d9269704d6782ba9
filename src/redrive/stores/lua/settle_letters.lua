#!lua flags=allow-oom
-- settle_letters: ends leases of letters. They are over, or stay the letters they are.
-- Inputs:    as settle.lua says, in its long form; where that has the next leases, by place the audit entry or false:
--            topic, and the places of meta and body among the bodies
-- Outputs:   [place, verdict, current delivery or state, …] of those not applied: 1 ended already, 2 given away, 3 no such
--            item, 6 it is not a letter
-- Atomicity: judged and checked as a whole before the first write. Ending work is let through when memory is full.
-- Uses: bonds(ledger lines ties binding) sealing putting settling ending(ending) entering

local LIVES = 6
local FIRST_ATTEMPTS = 20
local entries = ARGV[3] ~= '' and cmsgpack.unpack(ARGV[3]) or {}

-- Out of its sets and those of its line, for all that wait for it. If it is done, it has the dedupe key of one that ran.
local function unbind(id, m)
  local bonds = bonds()
  if tied(m, ORDERED) then
    local line = bonds.line_of_item(m)
    line.gap = line.gap ~= id and line.gap or ''
  end
  if m[STATE] == 'done' then
    bonds.claimed_by_another(id, m, time)
  end
  bonds.ended(id, m)
end

local function finish(id, m, one)
  lift(id, m)
  m[LETTER], m[ALONE] = false, false
  unset(P .. 'failure', id)
  m[STATE], m[ENDED_AT] = one[3] == DONE and 'done' or 'cancelled', time
  if one[3] == DONE and one[6] > 0 then
    check_sealed(m[QUEUE], ARGV[one[6] + 3])
    set(P .. 'result', id, ARGV[one[6] + 3])
  end
  if (m[TIES] or 0) > 0 then
    unbind(id, m)
  end
end

local function settle(id, m, one)
  m[LEASE_UNTIL] = false
  if one[3] == DONE or one[3] == CANCELLED then
    finish(id, m, one)
  elseif one[3] == READY and one[6] > 0 then
    m[WORKER], m[LEASE_UNTIL] = '', time + one[6]
  end
  if one[4] > 0 then
    ending().note_attempt(id, m, one[4])
  end
  if one[5] then
    ending().follow(one[5])
  end
  -- Laid when all is known: a follow-up may wait for one that stays a letter.
  touch(id, m)
end

local ids = {}
for index, one in ipairs(settlements) do
  ids[index] = one[1]
end
for index, kept in ipairs(fetch(sound(ITEM, 'hash'), ids)) do
  local one = settlements[index]
  local m = touched[one[1]] or unpacked(kept)
  if not m then
    otherwise(index, NO_SUCH_ITEM, 0)
  elseif m[DELIVERIES] ~= one[2] then
    otherwise(index, GIVEN_AWAY, m[DELIVERIES])
  elseif m[STATE] == 'ready' or m[STATE] == 'leased' then
    otherwise(index, LIVES, m[STATE])
  elseif m[STATE] ~= 'dead' or not m[LEASE_UNTIL] or m[WORKER] == '' then
    otherwise(index, ALREADY, 0)
  else
    settle(one[1], m, one)
    local entry = entries[index]
    if entry then
      enter(entry[1], ARGV[entry[2] + 3], ARGV[entry[3] + 3], time)
    end
  end
end
if bonds_made then
  -- A follow-up may take a key that is free now.
  bonds_made.release_keys(time)
end
put(follow_ups, time, false)
if bonds_made then
  bonds_made.conclude(time)
end
write()
for _, key in ipairs(trimmed) do
  -- No record is empty: this one is marked and taken out of the middle.
  call('LSET', key, FIRST_ATTEMPTS, '')
  call('LREM', key, 1, '')
end
return others
