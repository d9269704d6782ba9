#!lua flags=allow-oom
-- Prolongs leases, also of letters. Never revives one that has expired, never shortens one.
-- Inputs:    ARGV[2] msgpack list of [id, delivery]; ARGV[3] for how long from now
-- Outputs:   the places (from 1) of those that are lost; of those that somebody wants cancelled
-- Atomicity: all are judged, then all are written.

local time = now()
local until_then = time + tonumber(ARGV[3])
local lost, unwanted = {}, {}
local items = {}

-- A letter that is kept back for a while has an empty worker.
local function is_held(m)
  local by_somebody = m[STATE] == 'leased' or m[STATE] == 'dead' and m[WORKER] ~= ''
  return by_somebody and m[LEASE_UNTIL] and m[LEASE_UNTIL] > time
end

for index, held in ipairs(cmsgpack.unpack(ARGV[2])) do
  local id = held[1]
  local m = items[id] or load(id)
  if not m or m[DELIVERIES] ~= held[2] or not is_held(m) then
    lost[#lost + 1] = index
  else
    if tied(m, CANCEL) then
      unwanted[#unwanted + 1] = index
    end
    if until_then > m[LEASE_UNTIL] then
      items[id] = m
      m[LEASE_UNTIL] = until_then
      if m[LETTER] then
        set(ITEM, id, packed(m))
      else
        -- The score of a member that is there already is changed.
        lay(id, m)
      end
    end
  end
end
write()
return {lost, unwanted}
