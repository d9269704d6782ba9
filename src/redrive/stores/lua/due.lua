#!lua flags=no-writes
-- When the next item of these queues is due; paused queues have none.
-- Inputs:    ARGV[2] msgpack list of queues
-- Outputs:   time, and the earliest due time, past or to come, where there is one
-- Atomicity: reads one state.

local time = now()
local earliest = nil
for _, queue in ipairs(cmsgpack.unpack(ARGV[2])) do
  local declared = list_of(call('HGET', P .. 'queues', queue))
  if declared and not declared[1] then
    local levels = call('SMEMBERS', P .. 'levels:' .. queue)
    levels[#levels + 1] = '0'
    for _, level in ipairs(levels) do
      local first = call('ZRANGE', P .. 'ready:' .. level .. ':' .. queue, 0, 0, 'WITHSCORES')
      local when = first[2] and tonumber(first[2])
      if when and (not earliest or when < earliest) then
        earliest = when
      end
    end
  end
end
return {time, earliest}
