-- Where the ready items of a queue lie, for tally and members.
-- Inputs:    ready_keys(queue)
-- Outputs:   the keys, one per level
-- Atomicity: reads.

local function ready_keys(queue)
  local keys = {P .. 'ready:0:' .. queue}
  for _, level in ipairs(call('SMEMBERS', P .. 'levels:' .. queue)) do
    keys[#keys + 1] = P .. 'ready:' .. level .. ':' .. queue
  end
  return keys
end
