#!lua flags=allow-oom
-- Prolongs leases. Never revives one that has expired, never shortens one.
-- Inputs:    ARGV[2] msgpack list of [id, delivery]; ARGV[3] for how long from now
-- Outputs:   the places (from 1) of those that are lost; of those that somebody wants cancelled
-- Atomicity: all are judged, then all are written.

local time = now()
local until_then = time + tonumber(ARGV[3])
local lost, unwanted = {}, {}
local items = {}
for index, held in ipairs(cmsgpack.unpack(ARGV[2])) do
  local id = held[1]
  local m = items[id] or load(id)
  if not m or m[DELIVERIES] ~= held[2] or m[STATE] ~= 'leased' or m[LEASE_UNTIL] <= time then
    lost[#lost + 1] = index
  else
    if tied(m, CANCEL) then
      unwanted[#unwanted + 1] = index
    end
    if until_then > m[LEASE_UNTIL] then
      items[id] = m
      m[LEASE_UNTIL] = until_then
      -- The score of a member that is there already is changed.
      lay(id, m)
    end
  end
end
write()
return {lost, unwanted}
