#!lua flags=no-writes
-- check_beside: whether what is kept beside the items has its item.
-- Inputs:    where to go on (0 to begin); about how many; "body", "result", "failure", "deeds" or "recall"
-- Outputs:   where to go on (0 at the end); the ids that have no item, or for a failure no letter
-- Atomicity: one read

local name = ARGV[4]
local strays = {}
local scanned = call('HSCAN', P .. name, ARGV[2], 'COUNT', ARGV[3])
for index = 1, #scanned[2], 2 do
  local id = scanned[2][index]
  local kept = call('HGET', P .. 'item', id)
  local m = unpacked(kept)
  if not kept or (name == 'failure' and m and not m[LETTER]) then
    strays[#strays + 1] = id
  end
end
return {scanned[1], strays}
