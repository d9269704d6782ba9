#!lua flags=no-writes
-- changes: items that are or were letters, in the order of the numbers of their last changes.
-- Inputs:    the number after which to begin; how many
-- Outputs:   per item: number, id, record, payload, evidence, result, and 1 for one that is parked; nil for what is not there
-- Atomicity: one read
-- Uses: parking

local found = call('ZRANGEBYSCORE', P .. 'changes', '(' .. ARGV[2], '+inf', 'WITHSCORES', 'LIMIT', 0, ARGV[3])
local ids = {}
for at = 1, #found, 2 do
  ids[#ids + 1] = found[at]
end
local records, bodies = fetch(P .. 'item', ids), fetch(P .. 'body', ids)
local failures, results = fetch(P .. 'failure', ids), fetch(P .. 'result', ids)
local reply = {}
for index, id in ipairs(ids) do
  local size = #reply
  reply[size + 1], reply[size + 2], reply[size + 3] = found[2 * index], id, records[index]
  reply[size + 4], reply[size + 5], reply[size + 6] = bodies[index], failures[index], results[index]
  reply[size + 7] = is_parked(id, records[index]) and 1 or false
end
return reply
