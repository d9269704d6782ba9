#!lua flags=no-writes
-- get: one item with everything that happened to it.
-- Inputs:    the id
-- Outputs:   record, payload, evidence, result (nil for what is not there), attempts, deeds (or nil), 1 if it was pruned
-- Atomicity: one read

local id = ARGV[2]
return {
  call('HGET', P .. 'item', id),
  call('HGET', P .. 'body', id),
  call('HGET', P .. 'failure', id),
  call('HGET', P .. 'result', id),
  call('LRANGE', P .. 'attempts:' .. id, 0, -1),
  call('HGET', P .. 'deeds', id),
  call('HEXISTS', P .. 'tombstones', id),
}
