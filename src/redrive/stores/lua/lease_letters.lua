#!lua flags=allow-oom
-- lease_letters: gives letters to one worker where they lie. Nothing of them moves but who has them.
-- Inputs:    worker; for how long from now; 1 if those that were put off are meant as well; the replay for which they
--            are reserved, or empty; the ids, each once
-- Outputs:   of each that it has now, what rows.lua gives
-- Atomicity: all are judged, then all are written. Let through when memory is full: it is how letters become fewer.

local worker = ARGV[2]
local time = now()
local until_then = time + tonumber(ARGV[3])
local early = ARGV[4] == '1'
local reserved = ARGV[5]

-- Nobody else has it. An empty worker: it is nobody's, and put off for a while.
local function can_have(m)
  local lies = m and m[LETTER] and m[LETTER][DISPOSITION]
  if (lies ~= 'open' and lies ~= 'archived') or (m[LETTER][RESERVED] or '') ~= reserved then
    return false
  end
  return not m[LEASE_UNTIL] or m[LEASE_UNTIL] <= time or m[WORKER] == worker or early and m[WORKER] == ''
end

local ids = {}
for at = 6, #ARGV do
  ids[#ids + 1] = ARGV[at]
end
local given, records = {}, {}
for index, kept in ipairs(fetch(sound(ITEM, 'hash'), ids)) do
  local id, m = ids[index], unpacked(kept)
  if can_have(m) then
    if m[WORKER] == worker and m[LEASE_UNTIL] and m[LEASE_UNTIL] > time then
      -- It has it still: whoever repeats a call whose answer was lost is given the same.
      m[LEASE_UNTIL] = math.max(m[LEASE_UNTIL], until_then)
    else
      m[DELIVERIES], m[WORKER], m[LEASED_AT], m[LEASE_UNTIL] = m[DELIVERIES] + 1, worker, time, until_then
    end
    given[#given + 1], records[#records + 1] = id, packed(m)
    set(ITEM, id, records[#records])
  end
end
local bodies, failures = fetch(P .. 'body', given), fetch(P .. 'failure', given)
write()
local reply = {}
for index, id in ipairs(given) do
  local size = #reply
  reply[size + 1], reply[size + 2], reply[size + 3] = id, records[index], bodies[index]
  reply[size + 4], reply[size + 5], reply[size + 6] = failures[index], false, false
end
return reply
