#!lua flags=no-writes
-- check_index: whether the next entries of an index are what their items say.
-- Inputs:    where to go on (0 to begin); about how many; the index without prefix; how many characters stand before
--            the id in a member
-- Outputs:   where to go on (0 at the end); the members that no item has there
-- Atomicity: one read
-- Uses: tags ledger lines truth

local key, before_id = P .. ARGV[4], tonumber(ARGV[5])
local strays = {}
local listing = string.match(ARGV[4], '^(%a+)')
local is_binding = BINDING[listing] or listing == 'asides' or listing == 'parked' or listing == 'windows'
if call('TYPE', key).ok == 'none' then
  return {'0', strays}
end
local scanned = call('ZSCAN', key, ARGV[2], 'COUNT', ARGV[3])
local ids = {}
for index = 1, #scanned[2], 2 do
  ids[#ids + 1] = string.sub(scanned[2][index], before_id + 1)
end
local records = fetch(P .. 'item', ids)
for index, id in ipairs(ids) do
  local member, score = scanned[2][2 * index - 1], tonumber(scanned[2][2 * index])
  local fits = nil
  if is_binding then
    fits = is_reasonable(ARGV[4], score, member)
  else
    fits = belongs(id, unpacked(records[index]), key, score, member)
  end
  if not fits then
    strays[#strays + 1] = member
  end
end
return {scanned[1], strays}
