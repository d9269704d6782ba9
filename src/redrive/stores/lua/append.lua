#!lua
-- append: adds to the journal.
-- Inputs:    per entry: topic; actor, reason and request id as JSON; the body
-- Outputs:   their positions
-- Atomicity: one script
-- Uses: entering

local at = now()
local positions = {}
for first = 2, #ARGV, 3 do
  positions[#positions + 1] = enter(ARGV[first], ARGV[first + 1], ARGV[first + 2], at)
end
write()
return positions
