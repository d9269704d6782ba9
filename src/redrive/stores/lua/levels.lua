-- Where the ready items of a queue lie, for tally and members.
-- Inputs:    ready_keys(queue)
-- Outputs:   the keys, one per level and kind
-- Atomicity: reads.

local function ready_keys(queue)
  local keys = {P .. 'ready:0:' .. queue}
  for _, rank in ipairs(call('SMEMBERS', P .. 'levels:' .. queue)) do
    keys[#keys + 1] = ready_key(queue, rank)
  end
  return keys
end
