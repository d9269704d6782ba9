#!lua flags=no-writes
-- check_numbers: how many there are, and the last number given.
-- Inputs:    none
-- Outputs:   how many items; the last number kept and the highest that an item has; how many payloads, letters and
--            evidences; of changes the last number kept and the highest
-- Atomicity: one read

local highest = call('ZREVRANGE', P .. 'items', 0, 0, 'WITHSCORES')[2]
local last_change = call('ZREVRANGE', P .. 'changes', 0, 0, 'WITHSCORES')[2]
return {
  call('HLEN', P .. 'item'), call('HGET', P .. 'sequence', 'item') or '0', highest or '0',
  call('HLEN', P .. 'body'), call('ZCARD', P .. 'letters'), call('HLEN', P .. 'failure'),
  call('HGET', P .. 'sequence', 'change') or '0', last_change or '0',
}
