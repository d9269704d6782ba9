#!lua flags=no-writes
-- kinds: those of which something of a queue is due.
-- Inputs:    the queue
-- Outputs:   the kinds, in no order
-- Atomicity: one read
-- Uses: ranks

local queue, time = ARGV[2], now()
local ranks, seen, kinds = call('SMEMBERS', P .. 'levels:' .. queue), {}, {}
ranks[#ranks + 1] = '0'
for _, rank in ipairs(ranks) do
  local kind, first = kind_in(rank), tonumber(call('ZRANGE', ready_key(queue, rank), 0, 0, 'WITHSCORES')[2])
  if first and first <= time and not seen[kind] then
    seen[kind] = true
    kinds[#kinds + 1] = kind
  end
end
return kinds
