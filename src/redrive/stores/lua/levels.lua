-- Where the ready items of a queue lie, for tally and members.
-- Inputs:    ready_keys(queue)
-- Outputs:   the keys, one per number of crashes
-- Atomicity: reads.

local function ready_keys(queue)
  local keys = {P .. 'ready:0:' .. queue}
  for _, crashes in ipairs(call('SMEMBERS', P .. 'levels:' .. queue)) do
    keys[#keys + 1] = P .. 'ready:' .. crashes .. ':' .. queue
  end
  return keys
end
