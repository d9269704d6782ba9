#!lua flags=no-writes
-- check_lines: whether the next lines of a queue, or the next dedupe keys, fit their items.
-- Inputs:    where to go on (0 to begin); about how many; the hash without prefix: lines:<queue> or dedupe
-- Outputs:   where to go on (0 at the end); the fields that do not
-- Atomicity: one read
-- Uses: tags ledger lines truth

local name = ARGV[4]
local queue = string.match(name, '^lines:(.*)$')

local function line_fits(key, list)
  if not list or #list ~= 4 or not has_head(queue, key, list) or not sees_followers(queue, key, list) then
    return false
  end
  return (list[3] == PARKED) == (call('ZSCORE', P .. 'parked:' .. queue, key) and true or false)
end

local flaws = {}
local scanned = call('HSCAN', P .. name, ARGV[2], 'COUNT', ARGV[3])
for at = 1, #scanned[2], 2 do
  local field, list = scanned[2][at], list_of(scanned[2][at + 1])
  local fits = queue and line_fits(field, list) or not queue and list and has_holder(field, list)
  if not fits then
    flaws[#flaws + 1] = field
  end
end
return {scanned[1], flaws}
