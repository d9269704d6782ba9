#!lua flags=no-writes
-- check_sums: whether indexes together have as many entries as there are items, or letters. Where every item is in its
-- indexes, one entry more is one that no item has.
-- Inputs:    the indexes, without prefix
-- Outputs:   those of a family in which that is not so
-- Atomicity: one read

-- All items are in one of `items`, in one of those by their state, and letters in one of each kind of theirs.
local function family_of(name)
  if name == 'items' then
    return name
  end
  return string.match(name, '^letters:%a+:') or string.match(name, '^letters:') or 'states'
end

local sums = {}
for at = 2, #ARGV do
  local family = family_of(ARGV[at])
  sums[family] = (sums[family] or 0) + call('ZCARD', P .. ARGV[at])
end
local items, letters = call('HLEN', P .. 'item'), call('ZCARD', P .. 'letters')
local reply = {}
for at = 2, #ARGV do
  local family = family_of(ARGV[at])
  if sums[family] ~= ((family == 'items' or family == 'states') and items or letters) then
    reply[#reply + 1] = ARGV[at]
  end
end
return reply
